"""Read TensorFlow Serving's request logs, which are TFRecord files of `PredictionLog`s, as arrays."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfdpg.arguments import shown, warn
from tfdpg.compat.tensorflow import tensor_from_bytes
from tfdpg.export.warmup import PredictionLog
from tfdpg.files import check_data
from tfdpg.spec import Spec

POLICY_SIGNATURES = {b"", b"serving_default", b"pi", b"pi_and_q"}
"""The signatures whose requests are steps; requests for other signatures are ignored."""

FRAME = 16
"""The bytes around each record in a TFRecord file: its length, and the checksums of the length and of the record."""


def read_prediction_logs(files: str | Path | Iterable[str | Path], spec: Spec) -> dict[str, Any]:
    """Return the steps that clients of an exported policy took, in the order of the log.

    Row i of a request with several rows is a step in the i-th environment of that client. Where a file is truncated or
    damaged, the records before that place are kept, and a warning says how many bytes are lost. Later files are then
    not read, since their steps do not follow those that were kept.

    Args:
        files: a TFRecord file, a directory of them, or several of these in chronological order.
        spec: the spaces of the policy.

    Returns:
        `observations`, `[n, ...]`, or a dict of them by name; `actions`, the `pi` of the responses, `[n, ...]`; and
        `client_ids`, n strings: the request's `client_id`, followed by `/1`, `/2`, ... for its further rows.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file holds other records, or no intact one; a request has no response, or other inputs than the
            observation; no request was for the policy; or the server logged only a sample of the requests.
    """
    observations: dict[str, list[np.ndarray]] = {leaf.name: [] for leaf in spec.leaves}
    actions = []
    client_ids = []
    paths = _files(files)
    for place, file in enumerate(paths):
        number, intact = -1, 0
        for number, record in enumerate(_records(file)):
            intact += FRAME + len(record)
            try:
                step = _step(record, spec)
            except (TypeError, ValueError) as error:
                raise ValueError(f"The prediction log {file} cannot be used: record {number}: {error}") from error
            if step is None:
                continue
            client, inputs, action = step
            actions.append(action)
            client_ids += [client + (f"/{row}" if row else "") for row in range(len(action))]
            for name, values in inputs.items():
                observations[name].append(values)
        if lost := file.stat().st_size - intact:
            later = len(paths) - place - 1
            skipped = f" The {later} later files are not read, since their steps do not follow; read them apart."
            warn(
                f"The prediction log {file} is truncated or damaged: its first {number + 1} records are intact and "
                f"are used, and its other {lost:,} bytes are lost.{skipped if later else ''}"
            )
            break
    if not actions:
        raise ValueError(f"The prediction logs hold no request for `pi`. Received: prediction_logs={shown(str(files))}")
    arrays = {name: np.concatenate(values) for name, values in observations.items()}
    return {
        "observations": arrays if spec.is_dict else arrays["x"],
        "actions": np.concatenate(actions),
        "client_ids": client_ids,
    }


def _step(record: bytes, spec: Spec) -> tuple[str, dict[str, np.ndarray], np.ndarray] | None:
    """Return a request's client, observation arrays `[n, ...]` and actions; None if it was not for the policy."""
    try:
        log = PredictionLog.FromString(record)
    except DecodeError as error:
        raise ValueError(f"it is not a PredictionLog: {error}") from error
    rate = log.log_metadata.sampling_config.sampling_rate
    if 0 < rate < 1:
        raise ValueError(f"transitions need every request, and the server logged a sample of {rate:g} of them")
    calls = [getattr(log, name) for name in ("predict_log", "predict_streamed_log") if log.HasField(name)]
    if not calls or not calls[0].request or calls[0].request[-1].model_spec.signature_name not in POLICY_SIGNATURES:
        return None
    request = calls[0].request[-1]
    outputs = _tensors(calls[0].response[-1].outputs if calls[0].response else [], {"pi"})
    if "pi" not in outputs:
        raise ValueError("the response has no `pi`")
    inputs = _tensors(request.inputs, {leaf.name for leaf in spec.leaves})
    action = outputs["pi"]
    for leaf in spec.leaves:
        received = inputs[leaf.name].shape if leaf.name in inputs else None
        if received != (len(action), *leaf.shape):
            expected = (len(action), *leaf.shape)
            raise ValueError(f"the input `{leaf.name}` must be of shape {expected}. Received: {received}")
    return request.client_id.decode(errors="backslashreplace"), inputs, action


def _tensors(entries: Iterable[Any], names: set[str]) -> dict[str, np.ndarray]:
    """Return the tensors with these names in the entries of a map."""
    contents = {entry.name.decode(): entry.content for entry in entries}
    try:
        return {name: tensor_from_bytes(contents[name]) for name in names & set(contents)}
    except DecodeError as error:
        raise ValueError(f"it is not a PredictionLog: {error}") from error


def _files(files: str | Path | Iterable[str | Path]) -> list[Path]:
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    found = [(file, path) for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    for file, path in found:
        check_data(file, is_named=file == path)
    return [file for file, _ in found]


def _records(file: Path) -> Iterator[bytes]:
    if not file.is_file():
        raise FileNotFoundError(f"The prediction log {file} does not exist")
    has_intact = False
    try:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            has_intact = True
            yield bytes(record)
    except tf.errors.DataLossError:
        if not has_intact:
            raise ValueError(
                f"The prediction log {file} must be a TFRecord file. Received: {file.stat().st_size:,} bytes that do "
                "not begin with an intact record"
            ) from None
