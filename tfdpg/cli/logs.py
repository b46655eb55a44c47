"""Read logged steps: prediction logs, and steps that `tfdpg evaluate --record` wrote."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfdpg.acting.stored import DAMAGE
from tfdpg.companions import companion
from tfdpg.files import check_data, content_errors
from tfdpg.spec import Spec
from tfdpg.training.data.tables import TABLES, read_table, table_arrays


class Steps(NamedTuple):
    """Logged steps.

    Attributes:
        observations: arrays `[n, ...]` by leaf name.
        actions: `[n, ...]`.
        clients: for each step the client that took it; of recorded steps, the file that has it.
        origins: for each step the name of the model that answered, its version and the label that the client
            requested. Without this information, they are "", -1 and "".
    """

    observations: Mapping[str, np.ndarray]
    actions: np.ndarray
    clients: list[str]
    origins: list[tuple[str, int, str]]


def read_steps(logs: Sequence[Path], spec: Spec, version: int | None = None, label: str | None = None) -> Steps:
    """Read prediction logs or recorded steps.

    Args:
        logs: prediction logs or directories of them; or .npz or .csv files that `tfdpg evaluate --record` wrote, or
            directories of them, of which the .npz files are read.
        spec: the spaces of the policy.
        version: the version whose answers to read; None reads those of all versions.
        label: the label that clients requested; None reads all.

    Raises:
        FileNotFoundError: a log does not exist.
        ValueError: a log cannot be used, or nothing in it is of the version or the label.
        tfdpg.files.UnsafeFileError: a log is neither a file nor a directory, or a directory contains a link.
    """
    recorded = [file for log in logs for file in _recorded(log)]
    if not recorded:
        read = companion("read_prediction_logs")(logs, spec, version=version, label=label, sampled=True)
        origins = list(zip(read["models"], read["versions"].tolist(), read["labels"], strict=True))
        return Steps(spec.by_name(read["observations"]), read["actions"], read["client_ids"], origins)
    if version is not None or label is not None:
        raise ValueError("`--version` and `--label` select requests of prediction logs; recorded steps have neither.")
    if others := [log for log in logs if not _recorded(log)]:
        raise ValueError(
            f"All logs must be of one kind. Received: {recorded[0]}, which has recorded steps, and {others[0]}"
        )
    parts = [_recorded_steps(file, spec, file in logs) for file in recorded]
    observations = {name: np.concatenate([each[0][name] for each in parts]) for name in spec.shapes}
    actions = np.concatenate([each[1] for each in parts])
    clients = [str(file) for file, each in zip(recorded, parts, strict=True) for _ in each[1]]
    return Steps(observations, actions, clients, [("", -1, "")] * len(actions))


def _recorded(log: Path) -> list[Path]:
    """Return the files of recorded steps at a path; empty if they are prediction logs."""
    if log.is_dir():
        return sorted(log.glob("[0-9]*.npz"))
    return [log] if log.suffix.lower() in (".npz", *TABLES) else []


def _recorded_steps(file: Path, spec: Spec, is_named: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the observations by leaf name and the actions in a file of `tfdpg evaluate --record`."""
    check_data(file, is_named)
    if file.suffix.lower() in TABLES:
        arrays = table_arrays(spec, read_table(file), str(file))
        observations = spec.by_name(arrays["observations"])
        actions = arrays["actions"].reshape(-1, *spec.act_shape)
    else:
        names = {leaf: f"observations/{leaf}" if spec.is_dict else "observations" for leaf in spec.shapes}
        with content_errors(file):
            archive = _arrays(file)
            if missing := sorted({*names.values(), "actions"} - archive.keys()):
                raise ValueError(f"it has no array {missing[0]!r}")
        observations = {leaf: archive[name] for leaf, name in names.items()}
        actions = archive["actions"]
    shapes = {**spec.shapes, "actions": spec.act_shape}
    for name, array in {**observations, "actions": actions}.items():
        if array.shape != (len(actions), *shapes[name]) or array.dtype.kind not in "biuf":
            expected = f"numbers of shape {(len(actions), *shapes[name])}"
            raise ValueError(f"`{name}` of {file} must be {expected}. Received: {array.dtype} {array.shape}")
    return dict(observations), actions


def _arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays in an .npz file, or raise `ValueError`."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist")
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (*DAMAGE, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"it is not an .npz file of arrays: {error}") from error
