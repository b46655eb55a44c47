"""Read TensorFlow Serving's request logs, which are TFRecord files of `PredictionLog`s, as arrays."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfdpg.arguments import natural, shown, warn
from tfdpg.compat.tensorflow import tensor_from_bytes
from tfdpg.export.warmup import PredictionLog
from tfdpg.files import check_data
from tfdpg.spec import Spec

POLICY_SIGNATURES = {b"", b"serving_default", b"pi", b"pi_and_q"}
"""The signatures whose requests are steps; requests for other signatures are ignored."""

FRAME = 16
"""The bytes around each record in a TFRecord file: its length, and the checksums of the length and of the record."""
UNKNOWN = -1
"""The version of a step whose log does not say which version answered."""


class _Request(NamedTuple):
    """A request for the policy, with its response.

    Attributes:
        client: the `client_id`.
        model: the name of the model.
        version: the version that answered, or `UNKNOWN`.
        label: the label that the client requested, or "".
        inputs: the arrays of the observation, `[n, ...]`.
        actions: `[n, ...]`.
        rate: the share of requests that the server logged; 0 or 1 for all.
    """

    client: str
    model: str
    version: int
    label: str
    inputs: dict[str, np.ndarray]
    actions: np.ndarray
    rate: float


def read_prediction_logs(
    files: str | Path | Iterable[str | Path],
    spec: Spec,
    *,
    version: int | None = None,
    label: str | None = None,
    sampled: bool = False,
) -> dict[str, Any]:
    """Return the steps that clients of an exported policy took, in the order of the log.

    Row i of a request with several rows is a step in the i-th environment of that client. Where a file is truncated or
    damaged, the records before that place are kept, and a warning says how many bytes are lost. Later files are then
    not read, since their steps do not follow those that were kept.

    Args:
        files: a TFRecord file, a directory of them, or several of these in chronological order.
        spec: the spaces of the policy.
        version: return only the steps that this version answered; None returns those of all versions.
        label: return only the steps for which the client requested this label, such as "canary"; None returns all.
        sampled: whether logs may contain only a sample of the requests, whose steps do not follow each other. Training
            needs all of them. The files after a damaged one are read, too, then.

    Returns:
        `observations`, `[n, ...]`, or a dict of them by name; `actions`, the `pi` of the responses, `[n, ...]`; and
        `client_ids`, n strings: the request's `client_id`, followed by `/1`, `/2`, ... for its further rows. Each step
        also has the name of its model in `models`, n strings; the version that answered in `versions`, int64 `[n]`,
        -1 if the log does not contain it; and the label that the client requested in `labels`, n strings, "" for none.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file holds other records, or no intact one; a request has no response, or other inputs than the
            observation; no request was for the policy, or for this version or label; or the server logged only a
            sample of the requests.
    """
    version = None if version is None else natural("version", version)
    requests = [*_requests(files, spec, sampled)]
    if not requests:
        raise ValueError(f"The prediction logs hold no request for `pi`. Received: prediction_logs={shown(str(files))}")
    steps = [each for each in requests if version in (None, each.version) and label in (None, each.label)]
    if not steps:
        raise _not_among(version, label, requests)
    arrays = {leaf.name: np.concatenate([each.inputs[leaf.name] for each in steps]) for leaf in spec.leaves}
    rows = [(each, row) for each in steps for row in range(len(each.actions))]
    return {
        "observations": arrays if spec.is_dict else arrays["x"],
        "actions": np.concatenate([each.actions for each in steps]),
        "client_ids": [each.client + (f"/{row}" if row else "") for each, row in rows],
        "models": [each.model for each, _ in rows],
        "versions": np.array([each.version for each, _ in rows], np.int64),
        "labels": [each.label for each, _ in rows],
    }


def _requests(files: str | Path | Iterable[str | Path], spec: Spec, sampled: bool) -> Iterator[_Request]:
    """Yield the requests for the policy."""
    paths = _files(files)
    for place, file in enumerate(paths):
        number, intact = -1, 0
        for number, record in enumerate(_records(file)):
            intact += FRAME + len(record)
            try:
                step = _step(record, spec)
                if step is not None and 0 < step.rate < 1 and not sampled:
                    raise ValueError(
                        f"transitions need every request, and the server logged a sample of {step.rate:g} of them"
                    )
            except (TypeError, ValueError) as error:
                raise ValueError(f"The prediction log {file} cannot be used: record {number}: {error}") from error
            if step is not None:
                yield step
        if lost := file.stat().st_size - intact:
            later = 0 if sampled else len(paths) - place - 1
            skipped = f" The {later} later files are not read, since their steps do not follow; read them apart."
            warn(
                f"The prediction log {file} is truncated or damaged: its first {number + 1} records are intact and "
                f"are used, and its other {lost:,} bytes are lost.{skipped if later else ''}"
            )
            if not sampled:
                break


def _not_among(version: int | None, label: str | None, requests: Sequence[_Request]) -> ValueError:
    """Return the error for a version or a label that no request has."""
    versions = sorted({each.version for each in requests if each.version != UNKNOWN})
    labels = sorted({each.label for each in requests if each.label})
    given = {"version": version, "label": label}
    return ValueError(
        "`version` and `label` must be those of requests in the prediction logs, which have the versions "
        f"{shown(versions)} and the labels {shown(labels)}. "
        f"Received: {', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)}"
    )


def _step(record: bytes, spec: Spec) -> _Request | None:
    """Return a request and its response; None if it was not for the policy."""
    try:
        log = PredictionLog.FromString(record)
    except DecodeError as error:
        raise ValueError(f"it is not a PredictionLog: {error}") from error
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
    logged = log.log_metadata
    specs = [calls[0].response[-1].model_spec, logged.model_spec, request.model_spec]
    answered = next((each.version.value for each in specs if each.HasField("version")), UNKNOWN)
    name, label = (
        _text(next(filter(None, (getattr(each, field) for each in reversed(specs))), b""))
        for field in ("name", "version_label")
    )
    rate = logged.sampling_config.sampling_rate
    return _Request(_text(request.client_id), name, answered, label, inputs, action, rate)


def _text(encoded: bytes) -> str:
    return encoded.decode(errors="backslashreplace")


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
