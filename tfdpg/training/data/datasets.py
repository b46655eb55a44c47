"""Add stored transitions from arrays, files, checkpoints or data sets to a replay buffer."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.arguments import reject
from tfdpg.replay import ReplayBuffer, segments
from tfdpg.replay.segments import drop_outgoing_links
from tfdpg.spec import Spec
from tfdpg.training.checkpoints.checkpoint import is_saved, read_rows, replay_files
from tfdpg.training.data.prediction_logs import by_client, read_prediction_logs
from tfdpg.training.environment.finite import entry_name

ARRAY_ALIASES = {
    "terminations": ("terminations", "terminated", "terminals"),
    "truncations": ("truncations", "truncated", "timeouts"),
}


def load_into(buffer: ReplayBuffer, data: Any) -> None:
    """Append stored transitions to a replay buffer.

    Args:
        buffer: the replay buffer.
        data: one of these:

            - A dict of arrays, or an `.npz` file, with `observations`, `actions`, `rewards`, `terminations` and
              optionally `truncations` and `next_observations`, a row for each transition in chronological order. A
              Dict observation has `observations/<key>`, or is a dict. With `client_ids`, the rows of each client are
              in chronological order, and rewards, terminations and truncations may be dicts of arrays by client.
              `prediction_logs`, the request logs of TensorFlow Serving, replace observations, actions and clients (see
              `read_prediction_logs`).
            - A directory of such files.
            - A saved agent, or its `replay.npz`.
            - A saved replay buffer.
            - A `minari.MinariDataset`.

    Raises:
        ValueError: arrays are missing, of other shapes or not finite, or there is no transition.
        FileNotFoundError: a file does not exist.
    """
    before = buffer.added
    for segment in _segments(buffer.spec, data):
        rows = segment["rows"]
        stored = int(segment.get("state_width", 0))
        width = buffer.obs_width + buffer.step_width - buffer.state_width + 1
        received = rows.shape[1] - stored
        if received != width:
            what = "with" if buffer.step_width - buffer.state_width > buffer.spec.act_dim else "without"
            raise ValueError(
                f"`data` must be for these spaces, and {what} the distribution that drew each action, which only a "
                f"saved ACER has: {width} numbers a row. Received: {_describe_data(data)}, with {received}"
            )
        if stored != buffer.state_width:  # recurrent states of another network: replace them by zeros
            at = buffer.obs_width + buffer.spec.act_dim
            rows = np.delete(rows, slice(at, at + stored), axis=1)
            segment["rows"] = np.insert(rows, np.full(buffer.state_width, at), 0, axis=1)
        _check_stored(buffer.spec, segment["rows"], segment["successor_after"] > 0)
        buffer.append(segment)
    if buffer.added == before:
        raise ValueError(f"`data` must hold at least one transition. Received: data={data!r}")


def _check_stored(spec: Spec, rows: np.ndarray, has_acted: np.ndarray) -> None:
    """Raise `ValueError` if an observation, action or reward in stored rows is not finite."""
    width = dict(zip(spec.groups, spec.widths, strict=True)).get("float32", 0)
    known = np.delete(rows, slice(width + spec.act_dim, -1), axis=1)
    known[~has_acted, width:] = 0  # a row without a step has only an observation
    if not np.isfinite(known).all():
        row, column = map(int, np.argwhere(~np.isfinite(known))[0])
        if column < width:
            name = f"the observation's {entry_name(spec, column)}"
        else:
            name = "the reward" if column == width + spec.act_dim else f"the action's component {column - width}"
        raise ValueError(
            f"`data` must hold finite numbers. Received: {known[row, column]} as {name} in stored row {row}"
        )


def _describe_data(data: Any) -> str:
    return f"data={str(data)!r}" if isinstance(data, str | Path) else f"a {type(data).__name__}"


def _segments(spec: Spec, data: Any, source: str = "`data`") -> Iterator[dict[str, Any]]:
    """Yield the segments of the data of `load_into`; messages name `source` as their origin."""
    if isinstance(data, str | Path):
        yield from _from_path(spec, Path(data))
    elif isinstance(data, Mapping) and "successor_after" in data:
        yield drop_outgoing_links(data)
    elif isinstance(data, Mapping):
        if "prediction_logs" in data:
            given = {name: values for name, values in data.items() if name != "prediction_logs"}
            data = read_prediction_logs(data["prediction_logs"], spec) | given
        parts = by_client(data)
        sources = {client: source if client is None else f"client {client!r} in {source}" for client in parts}
        yield from [_rows(spec, part, sources[client]) for client, part in parts.items()]  # all or none
    elif hasattr(data, "iterate_episodes"):
        for number, episode in enumerate(data.iterate_episodes()):
            whole = {"actions": episode.actions, "rewards": episode.rewards, "observations": _part(episode, slice(-1))}
            whole |= {"terminations": episode.terminations, "truncations": episode.truncations}
            whole |= {"next_observations": _part(episode, slice(1, None))}
            yield _rows(spec, whole, f"episode {number} of {source}")
    else:
        raise reject("data", "a dict of arrays, a path or a Minari data set", data)


def _from_path(spec: Spec, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the segments of a saved agent, of a saved replay buffer, of an .npz file or of a directory of them."""
    agent = path.parent if path.name == "replay.npz" else path
    if is_saved(agent):
        yield from read_rows(replay_files(agent))
    elif segments.is_saved(path):
        yield from read_rows(segments.verify_saved(path)[1])
    else:
        files = sorted(path.glob("[0-9]*.npz")) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(
                f"`data` must be a saved agent, a saved replay buffer or hold .npz files. Received: data={path}"
            )
        for file in files:
            yield from _segments(spec, _arrays(file), str(file))


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with open(file, "rb") as stream, np.load(stream) as arrays:
            return dict(arrays)
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"`data` must be .npz files of arrays. Received: {file}, which is none: {error}") from error


def _part(episode: Any, steps: slice) -> Any:
    observations = episode.observations
    if isinstance(observations, Mapping):
        return {key: values[steps] for key, values in observations.items()}
    return observations[steps]


def _rows(spec: Spec, data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a segment with these transitions, and with the final observation after each end of an episode."""
    arrays = {name: _array(data, name) for name in ("actions", "rewards", "terminations")}
    arrays["actions"] = spec.flat_actions(arrays["actions"])
    count = len(arrays["rewards"])
    truncated = _array(data, "truncations", np.zeros(count, bool))
    observation = spec.pack(_observations(spec, data, "observations"))
    has_next = any(name.split("/")[0] == "next_observations" for name in data)
    if has_next:
        following = spec.pack(_observations(spec, data, "next_observations"))
    else:  # the last transition and truncated ones have no next observation to bootstrap from
        following = tuple(np.concatenate([part[1:], part[-1:]]) for part in observation)
    sizes = {name: len(values) for name, values in arrays.items()} | {"observations": len(observation[0])}
    if len(set(sizes.values())) != 1 or arrays["actions"].shape != (count, spec.act_dim):
        raise ValueError(
            f"`data` must have a row for each transition in every array, and actions of shape (n, {spec.act_dim}). "
            f"Received: rows {sizes}, actions of shape {arrays['actions'].shape}"
        )
    for name, values in (arrays | {"truncations": truncated}).items():
        _check_finite(name, values, source)
    for name, packed in (("observations", observation), ("next_observations", following)):
        _check_finite(name, packed[0], source, spec)
    terminated = arrays["terminations"].astype(bool)
    truncated = truncated.astype(bool)
    is_break = np.zeros(count, bool)
    is_break[:-1] = np.any([(a[:-1] != b[1:]).any(axis=1) for a, b in zip(following, observation, strict=True)], axis=0)
    ends = terminated | truncated | is_break
    if count:
        ends[-1] = True
    return _interleave(spec, observation, following, arrays, terminated, ends, drop_truncated=not has_next)


def _check_finite(name: str, values: np.ndarray, source: str, spec: Spec | None = None) -> None:
    """Raise `ValueError` if an array holds NaN or an infinity, or a number beyond float32.

    Args:
        name: the array's name.
        values: the array, a row for each transition.
        source: where it comes from.
        spec: the spaces, if it holds packed observations.
    """
    if values.dtype.kind in "bu" or not len(values):
        return
    table = values.reshape(len(values), -1)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(table.astype(np.float32))
    if not is_finite.all():
        row, column = map(int, np.argwhere(~is_finite)[0])
        where = f"row {row}, column {column}" if table.shape[1] > 1 or values.ndim > 1 else f"row {row}"
        entry = "" if spec is None else f" ({entry_name(spec, column)})"
        raise ValueError(
            f"The array {name!r} of {source} must hold finite numbers. "
            f"Received: {table[row, column]} in {where}{entry}; "
            f"{np.count_nonzero(~is_finite.all(axis=1))} of {len(table)} rows have such numbers"
        )


def _interleave(
    spec: Spec,
    observation: Any,
    following: Any,
    arrays: Mapping[str, np.ndarray],
    terminated: np.ndarray,
    ends: np.ndarray,
    drop_truncated: bool,
) -> dict[str, Any]:
    """Insert a final observation after each end of an episode.

    With `drop_truncated`, the observation of the last, truncated transition becomes the final one.
    """
    place = np.arange(len(ends)) + np.cumsum(ends) - ends
    final = place[ends] + 1
    total = len(place) + len(final)
    widths = dict(zip(spec.groups, spec.widths, strict=True))
    width = widths.get("float32", 0)
    segment = {
        "rows": np.zeros((total, width + spec.act_dim + 1), np.float32),
        "terminated": np.zeros(total, bool),
        "successor_after": np.zeros(total, np.int32),
    }
    if "uint8" in widths:
        segment["images"] = np.zeros((total, widths["uint8"]), np.uint8)
    for group, part, after in zip(spec.groups, observation, following, strict=True):
        columns = segment["images"] if group == "uint8" else segment["rows"][:, :width]
        columns[place] = part
        columns[final] = after[ends]
    segment["rows"][place, width:-1] = arrays["actions"]
    segment["rows"][place, -1] = arrays["rewards"]
    segment["terminated"][place] = terminated
    segment["successor_after"][place] = ~ends | terminated if drop_truncated else 1
    return segment


def _array(data: Mapping[str, Any], name: str, default: np.ndarray | None = None) -> np.ndarray:
    for known in ARRAY_ALIASES.get(name, (name,)):
        if known in data:
            return _numbers(name, data[known])
    if default is None:
        raise ValueError(f"`data` must have the array {name!r}. Received: {sorted(data)}")
    return default


def _numbers(name: str, values: Any) -> np.ndarray:
    """Return values as an array of numbers; integers that are too large for NumPy become floats."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    try:
        if array.dtype.kind == "O":
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"The array {name!r} of `data` must hold real numbers. Received: an array of {array.dtype}")


def _observations(spec: Spec, data: Mapping[str, Any], name: str) -> Any:
    if not spec.is_dict:
        return _array(data, name)
    given = data.get(name)
    if isinstance(given, Mapping):
        return given
    return {leaf.name: _array(data, f"{name}/{leaf.name}") for leaf in spec.leaves}
