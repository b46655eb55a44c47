"""Add stored transitions from arrays, files, checkpoints or data sets to a replay buffer."""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import Preprocessing
from tfdpg.acting.preprocessing import differs
from tfdpg.arguments import reject, shown, warn
from tfdpg.companions import companion
from tfdpg.files import check_data
from tfdpg.hints import did_you_mean
from tfdpg.replay import ReplayBuffer, segments
from tfdpg.replay.names import KNOWN, with_standard_names
from tfdpg.replay.segments import as_one_segment, drop_outgoing_links
from tfdpg.spec import Spec
from tfdpg.training.checkpoints.checkpoint import is_saved, read_rows, replay_files
from tfdpg.training.data.tables import TABLES, is_table, read_table, table_arrays

OBSERVATIONS = "observations", "next_observations"
AMBIGUOUS = {"done", "dones"}
"""Arrays with ends of episodes that may be terminal states or others."""
DESCRIPTIVE = {"infos", "metadata", "observation_names", "models", "versions", "labels"}
"""Arrays that describe the data: of D4RL, of recorded episodes, and of request logs."""
ROUNDING = 1e-6
"""The part of an action's range by which a stored action may be outside of it: the rounding of another program."""


def load_into(
    buffer: ReplayBuffer,
    data: Any,
    clip_actions: bool = False,
    grow: Callable[[int], None] | None = None,
    preprocessing: Preprocessing | None = None,
) -> None:
    """Append stored transitions to a replay buffer: all of them, or none if one cannot be used.

    Args:
        buffer: the replay buffer.
        data: one of these:

            - A dict of arrays, or an `.npz` file, with `observations`, `actions`, `rewards`, `terminations` and
              optionally `truncations` and `next_observations`, a row for each transition in chronological order. A
              Dict or Tuple observation is a dict or tuple, or has `observations/<name>` for each part. With
              `client_ids`, the rows of each client are in chronological order, and rewards, terminations and
              truncations may be dicts of arrays by client.
              `prediction_logs`, the request logs of TensorFlow Serving, replace observations, actions and clients (see
              `tfdpg.export.read_prediction_logs`). Other names are read, too (`tfdpg.replay.names.ALIASES`).
            - A pandas DataFrame, or a CSV or Parquet file (see `tfdpg.training.data.tables.table_arrays`).
            - A directory of `.npz` files.
            - A saved agent, or its `replay.npz`.
            - A saved replay buffer.
            - A `ReplayBuffer`, or an agent, whose replay buffer is taken.
            - A `minari.MinariDataset`.
        clip_actions: whether actions outside the action space are clipped to it; False refuses them.
        grow: makes the replay buffer larger, given the number of rows, if the transitions do not fit; None refuses
            them.
        preprocessing: computes the features that the replay buffer holds from the observations of `data`; None if it
            holds these. Saved agents and replay buffers have features already.

    Raises:
        ValueError: arrays are missing, of other shapes or not finite; the ends of episodes are not known; actions are
            outside the action space; an agent or a replay buffer has other spaces, or a Minari data set another action
            space; there is no transition, or there are too many.
        FileNotFoundError: a file does not exist.
        tfdpg.files.UnsafeFileError: a directory of files contains a symbolic link, or a file is not a regular file.
    """
    names: set[str] = set()

    def usable() -> Iterator[dict[str, Any]]:
        for segment in _Reader(buffer, clip_actions, preprocessing, names).segments(data):
            _fit_columns(buffer, segment, data)
            _check_stored(buffer, segment, clip_actions)
            yield segment

    # Files are read twice rather than held in memory together; both times they give the same segments.
    read = usable if isinstance(data, str | Path) or hasattr(data, "iterate_episodes") else list(usable()).copy
    count = sum(len(segment["rows"]) for segment in read())
    if unread := sorted(names - KNOWN - DESCRIPTIVE):
        warn(f"`data` has arrays that are not read: {shown(unread)}.{did_you_mean(unread[0], KNOWN, '{!r}')}")
    if not count:
        raise ValueError(f"`data` must hold at least one transition. Received: {_describe_data(data)}")
    if grow is not None and buffer.size + count > buffer.replay_size:
        grow(buffer.size + count)
    if count > buffer.replay_size:
        raise ValueError(
            f"`replay_size` must be at least the {count:,} rows of `data`, which has one row for each transition and "
            f"one more for each episode. Received: replay_size={buffer.replay_size}. "
            "Raise it, or leave it out: the replay buffer then gets as large as the data."
        )
    for segment in read():
        buffer.append(segment)


def _fit_columns(buffer: ReplayBuffer, segment: dict[str, Any], data: Any) -> None:
    """Give the rows of a segment the columns of a replay buffer. States of another network are replaced by zeros."""
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
    if stored != buffer.state_width:
        at = buffer.obs_width + buffer.spec.act_dim
        rows = np.delete(rows, slice(at, at + stored), axis=1)
        segment["rows"] = np.insert(rows, np.full(buffer.state_width, at), 0, axis=1)


def _check_stored(buffer: ReplayBuffer, segment: dict[str, Any], clip_actions: bool) -> None:
    """Raise `ValueError` for numbers in stored rows that are not finite, and for actions outside the action space."""
    spec = buffer.spec
    rows = segment["rows"]
    source = "the stored rows"
    columns = slice(buffer.obs_width, buffer.obs_width + spec.act_dim)
    has_acted = segment["successor_after"] > 0  # a row without a step has only an observation
    actions = np.where(has_acted[:, None], rows[:, columns], spec.low)
    _check_finite("observations", rows[:, : buffer.obs_width], source, spec)
    _check_finite("actions", actions, source)
    _check_finite("rewards", np.where(has_acted, rows[:, -1], 0), source)
    if buffer.step_width - buffer.state_width == spec.act_dim:  # ACER stores what its distribution drew
        inside = _inside(spec, actions, source, clip_actions)
        if clip_actions:
            segment["rows"] = rows.copy()
            segment["rows"][has_acted, columns] = inside[has_acted]


def _inside(spec: Spec, actions: np.ndarray, source: str, clip: bool) -> np.ndarray:
    """Return actions `[n, act_dim]`, clipped to the action space.

    Raises:
        ValueError: an action is outside the action space by more than rounding, and `clip` is False.
    """
    inside = np.clip(actions, spec.low, spec.high)
    excess = np.abs(actions - inside)
    if spec.actions is not None or spec.integer_type is not None:
        excess = np.maximum(excess, np.abs(actions - np.round(actions)))
        inside = np.round(inside)
    rounding = np.maximum(ROUNDING * (spec.high - spec.low), np.spacing(np.maximum(abs(spec.low), abs(spec.high))))
    is_outside = (excess > rounding).any(axis=1)
    if not is_outside.any() or clip:
        return inside
    row = int(np.argmax(is_outside))
    component = int(np.argmax(excess[row] > rounding))
    raise ValueError(
        f"The array 'actions' of {source} must hold actions of the environment's action space. Received: "
        f"{np.count_nonzero(is_outside)} of {len(actions)} rows ({is_outside.mean():.1%}) are outside, by up to "
        f"{excess.max():g}; the first is row {row}, with {actions[row, component]:g} as component {component}, which "
        f"goes from {spec.low[component]:g} to {spec.high[component]:g}. They may be in other units. "
        "clip_actions=True clips them."
    )


def _describe_data(data: Any) -> str:
    return f"data={str(data)!r}" if isinstance(data, str | Path) else f"a {type(data).__name__}"


class _Reader(NamedTuple):
    """Reads data as segments for a replay buffer. The names of arrays are added to `names`."""

    buffer: ReplayBuffer
    clip_actions: bool
    preprocessing: Preprocessing | None
    names: set[str]

    @property
    def spec(self) -> Spec:
        """The spaces of the data."""
        return self.buffer.spec if self.preprocessing is None else self.preprocessing.raw

    def segments(self, data: Any, source: str = "`data`") -> Iterator[dict[str, Any]]:
        """Yield the segments of the data of `load_into`; messages name `source` as their origin."""
        if not isinstance(data, ReplayBuffer) and isinstance(getattr(data, "replay", None), ReplayBuffer):
            data = data.replay
        if isinstance(data, str | Path):
            yield from self._from_path(Path(data))
        elif isinstance(data, ReplayBuffer):
            if data is self.buffer:
                raise ValueError("`data` must not be the agent's own replay buffer. data=None trains on its content.")
            self._check_spaces(self.buffer.spec, data.spec, "data")
            yield drop_outgoing_links(as_one_segment(data))
        elif isinstance(data, Mapping) and "successor_after" in data:
            yield drop_outgoing_links(data)
        elif isinstance(data, Mapping):
            yield from self._from_arrays(data, source)
        elif is_table(data):
            yield from self._from_arrays(table_arrays(self.spec, data, source), source)
        elif hasattr(data, "iterate_episodes"):
            yield from self._from_minari(data, source)
        else:
            known = "a dict of arrays, a DataFrame, a path, a replay buffer, an agent or a Minari data set"
            raise reject("data", known, data)

    def _check_spaces(self, own: Spec, other: Spec, source: str) -> None:
        """Raise `ValueError` for data of other spaces. Bounds of numbers in observations may differ."""
        parts = [[(leaf.name, leaf.shape, leaf.integer_bounds) for leaf in spec.leaves] for spec in (own, other)]
        observation_space = own.observation_space if parts[0] == parts[1] else other.observation_space
        own.check(Spec(observation_space, own.action_space if self.clip_actions else other.action_space), source)

    def _from_arrays(self, data: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
        """Return a segment for each client, or one."""
        if getattr(data, "n_step", 1) > 1:
            raise ValueError(
                "`data` must hold a row for each step. Received: rows whose rewards are sums over up to "
                f"{getattr(data, 'n_step', 1)} steps. agent.replay.transitions() returns single steps."
            )
        data = with_standard_names(data, "data")
        _refuse_ambiguous_ends(data, source)
        self.names.update(name.split("/")[0] for name in data)
        if "prediction_logs" in data:
            given = {name: values for name, values in data.items() if name != "prediction_logs"}
            data = companion("read_prediction_logs")(data["prediction_logs"], self.spec) | given
        if self.spec.is_dict:
            data = {**data} | {name: self.spec.by_name(data[name]) for name in OBSERVATIONS if name in data}
        return [
            self._rows(part, source if client is None else f"client {client!r} in {source}")
            for client, part in _by_client(data).items()
        ]

    def _from_minari(self, data: Any, source: str) -> Iterator[dict[str, Any]]:
        """Yield the episodes of a Minari data set."""
        if data.action_space != self.spec.action_space and not self.clip_actions:
            raise ValueError(
                f"The action_space of `data` must be the agent's, {self.spec.action_space}. Received: "
                f"{data.action_space}. clip_actions=True takes its actions if they are in the same units."
            )
        for number, episode in enumerate(data.iterate_episodes()):
            whole = {name: getattr(episode, name) for name in ("actions", "rewards", "terminations", "truncations")}
            whole["observations"] = _part(self.spec, episode, slice(-1))
            whole["next_observations"] = _part(self.spec, episode, slice(1, None))
            yield self._rows(whole, f"episode {number} of {source}")

    def _from_path(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the segments of a saved agent or replay buffer, of an .npz file, a directory of them, or a table."""
        agent = path.parent if path.name == "replay.npz" else path
        if is_saved(agent):
            spec, found = replay_files(agent)
            self._check_spaces(self.spec, spec, str(path))
            yield from read_rows(found)
        elif segments.is_saved(path):
            description, found = segments.verify_saved(path)
            self._check_spaces(self.buffer.spec, Spec.from_json(description), str(path))
            yield from read_rows(found)
        elif path.suffix.lower() in TABLES:
            yield from self._from_arrays(table_arrays(self.spec, read_table(path), str(path)), str(path))
        else:
            files = sorted(path.glob("[0-9]*.npz")) if path.is_dir() else [path]
            if not files:
                raise FileNotFoundError(
                    "`data` must be a saved agent, a saved replay buffer or hold .npz files. "
                    f"Received: data={str(path)!r}"
                )
            for file in files:
                check_data(file, is_named=file == path)
                yield from self.segments(_arrays(file), str(file))

    def _rows(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Return a segment with these transitions, and with the final observation after each end of an episode."""
        spec = self.spec
        arrays = {"actions": _actions(spec, _array(data, "actions"))}
        per_row = ("rewards", "terminations", *({"truncations"} & data.keys()))
        arrays |= {name: _per_row(name, _array(data, name), source) for name in per_row}
        count = len(arrays["rewards"])
        extra = self._extra_columns(data)
        if extra is not None:
            arrays[extra] = _matrix(extra, _array(data, extra))
        observation = spec.pack(_observations(spec, data, "observations"))
        sizes = {name: len(values) for name, values in arrays.items()} | {"observations": len(observation[0])}
        has_next = any(name.split("/")[0] == "next_observations" for name in data)
        if has_next:
            following = spec.pack(_observations(spec, data, "next_observations"))
            sizes["next_observations"] = len(following[0])
        else:  # the last transition and truncated ones have no next observation to bootstrap from
            following = tuple(np.concatenate([part[1:], part[-1:]]) for part in observation)
        if len(set(sizes.values())) != 1:
            raise ValueError(f"`data` must have a row for each transition in every array. Received: rows {sizes}")
        for name, values in arrays.items():
            _check_finite(name, values, source)
        for name, packed in (("observations", observation), ("next_observations", following)):
            _check_finite(name, packed[0], source, spec)
        _check_steps(data, arrays, source)
        if extra != "behaviours":  # ACER stores what its distribution drew
            arrays["actions"] = _inside(spec, arrays["actions"], source, self.clip_actions)
        terminated = arrays["terminations"].astype(bool)
        truncated = arrays.get("truncations", np.zeros(count)).astype(bool)
        if not (has_next or "truncations" in data or terminated.any()) and count > 1:
            raise ValueError(
                f"The ends of the episodes of {source} must be known: 'terminations' is False in all {count} rows. Add "
                "'truncations', True in the last row of each episode that did not terminate (all False for one that is "
                "still open), or 'next_observations'."
            )
        is_break = np.zeros(count, bool)
        both = zip(following, observation, strict=True)
        is_break[:-1] = np.any([differs(after[:-1], now[1:]).any(axis=1) for after, now in both], axis=0)
        ends = terminated | truncated | is_break
        if count:
            ends[-1] = True
        if self.preprocessing is not None:
            observation, following = zip(self.preprocessing.transitions(observation, following, ends), strict=True)
        more = None if extra is None else arrays[extra]
        drop_truncated = not has_next
        segment = _interleave(self.buffer, observation, following, arrays, more, terminated, ends, drop_truncated)
        return segment | ({"state_width": more.shape[1]} if more is not None and extra == "states" else {})

    def _extra_columns(self, data: Mapping[str, Any]) -> str | None:
        """Return the array whose columns the replay buffer stores after the actions; None if there is none."""
        name = "states" if self.buffer.state_width else "behaviours"
        return name if name in data and self.buffer.step_width > self.spec.act_dim else None


def _refuse_ambiguous_ends(data: Mapping[str, Any], source: str) -> None:
    """Raise `ValueError` for ends of episodes that do not say which they are, where others are missing."""
    if not {"terminations", "truncations"} <= data.keys() and (ends := AMBIGUOUS & data.keys()):
        raise ValueError(
            f"{source} must have 'terminations' for terminal states and 'truncations' for other ends of episodes. "
            f"Received: {min(ends)!r}, which may mean either"
        )


def _by_client(data: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Split transitions by the array `client_ids`; without it, return all of them under the key None.

    Rewards, terminations and truncations may be dicts by client, with arrays in the order of the client's steps.

    Raises:
        ValueError: an array does not have a row for each step, or a client is missing.
    """
    if "client_ids" not in data:
        for name, values in data.items():
            if isinstance(values, Mapping) and name not in OBSERVATIONS:
                raise reject(name, "an array if there are no `client_ids`", values)
        return {None: dict(data)}
    rows: dict[Any, list[int]] = {}
    for row, client in enumerate(data["client_ids"]):
        rows.setdefault(client, []).append(row)
    rest = {name: values for name, values in data.items() if name != "client_ids"}
    count = len(data["client_ids"])
    return {
        client: {name: _select_client(name, values, client, client_rows, count) for name, values in rest.items()}
        for client, client_rows in rows.items()
    }


def _select_client(name: str, values: Any, client: Any, rows: list[int], count: int) -> Any:
    if isinstance(values, Mapping) and name in OBSERVATIONS:
        return {key: _select_client(f"{name}/{key}", part, client, rows, count) for key, part in values.items()}
    if isinstance(values, Mapping):
        if client not in values or len(values[client]) != len(rows):
            received = f"{len(values[client])} of them" if client in values else f"the clients {shown(list(values))}"
            raise ValueError(f"`{name}` must have {len(rows)} numbers for client {client!r}. Received: {received}")
        return np.asarray(values[client])
    if len(values) != count:
        raise ValueError(f"`{name}` must have a row for each of {count} steps. Received: {len(values)} rows")
    return np.asarray(values)[rows]


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with open(file, "rb") as stream, np.load(stream) as arrays:
            return dict(arrays)
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"`data` must be .npz files of arrays. Received: {file}, which is none: {error}") from error


def _part(spec: Spec, episode: Any, steps: slice) -> Any:
    return spec.nested({name: values[steps] for name, values in spec.by_name(episode.observations).items()})


def _check_steps(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Raise `ValueError` unless ends of episodes are 0 or 1, and each row is one step."""
    for name in ("terminations", "truncations"):
        values = arrays.get(name, np.zeros(0))
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise ValueError(
                f"The array {name!r} of {source} must be 0 or 1 in each row. "
                f"Received: {values[wrong[0]]} in row {wrong[0]}"
            )
    discounts = np.unique(np.asarray(data.get("discounts", ()), np.float32))
    if np.count_nonzero(discounts) > 1:
        raise ValueError(
            f"The rows of {source} must be single steps. Received: 'discounts' from "
            f"{discounts[discounts != 0].min():g} to {discounts.max():g}, so that rewards are sums over several steps. "
            "agent.replay.transitions() returns single steps."
        )


def _check_finite(name: str, values: np.ndarray, source: str, spec: Spec | None = None) -> None:
    """Raise `ValueError` if an array holds NaN or an infinity, or a number beyond float32.

    Args:
        name: the array's name.
        values: the array, a row for each transition.
        source: where it comes from.
        spec: the spaces, if it holds packed observations.
    """
    if values.dtype.kind in "bu" or not len(values) or (spec is not None and spec.missing == "hold"):
        return
    table = values.reshape(len(values), -1)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(table.astype(np.float32))
    if not is_finite.all():
        row, column = map(int, np.argwhere(~is_finite)[0])
        where = f"row {row}, column {column}" if table.shape[1] > 1 or values.ndim > 1 else f"row {row}"
        entry = "" if spec is None else f" ({spec.entry_name(column)})"
        raise ValueError(
            f"The array {name!r} of {source} must hold finite numbers. "
            f"Received: {table[row, column]} in {where}{entry}; "
            f"{np.count_nonzero(~is_finite.all(axis=1))} of {len(table)} rows have such numbers"
        )


def _interleave(
    buffer: ReplayBuffer,
    observation: Any,
    following: Any,
    arrays: Mapping[str, np.ndarray],
    more: np.ndarray | None,
    terminated: np.ndarray,
    ends: np.ndarray,
    drop_truncated: bool,
) -> dict[str, Any]:
    """Insert a final observation after each end of an episode; `more` are columns stored after the actions.

    With `drop_truncated`, the observation of the last, truncated transition becomes the final one.
    """
    steps = arrays["actions"] if more is None else np.concatenate([arrays["actions"], more], axis=1)
    place = np.arange(len(ends)) + np.cumsum(ends) - ends
    final = place[ends] + 1
    total = len(place) + len(final)
    width = buffer.obs_width
    segment = {
        "rows": np.zeros((total, width + steps.shape[1] + 1), np.float32),
        "terminated": np.zeros(total, bool),
        "successor_after": np.zeros(total, np.int32),
    }
    if buffer.image_width:
        segment["images"] = np.zeros((total, buffer.image_width), np.uint8)
    for group, part, after in zip(buffer.spec.groups, observation, following, strict=True):
        columns = segment["images"] if group == "uint8" else segment["rows"][:, :width]
        columns[place] = part
        columns[final] = after[ends]
    segment["rows"][place, width:-1] = steps
    segment["rows"][place, -1] = arrays["rewards"]
    segment["terminated"][place] = terminated
    segment["successor_after"][place] = ~ends | terminated if drop_truncated else 1
    return segment


def _array(data: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in data:
        raise ValueError(f"`data` must have the array {name!r}. Received: {shown(sorted(data))}")
    return _numbers(name, data[name])


def _per_row(name: str, values: np.ndarray, source: str) -> np.ndarray:
    """Return an array `[n]`, which may have been `[n, 1]`."""
    if values.ndim not in (1, 2) or values.shape[1:] not in ((), (1,)):
        raise ValueError(
            f"The array {name!r} of {source} must have the shape (n,) or (n, 1), with a number for each transition. "
            f"Received: {values.shape}"
        )
    return values.reshape(len(values))


def _matrix(name: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 2:
        raise ValueError(f"`data` must have {name!r} of shape (n, width). Received: {values.shape}")
    return values


def _actions(spec: Spec, actions: np.ndarray) -> np.ndarray:
    """Return actions `[n, act_dim]`, which may have the environment's shape, or `[n]` if they have one component."""
    flat = spec.flat_actions(actions)
    if flat.ndim == 1 and spec.act_dim == 1:
        flat = flat[:, None]
    if flat.ndim != 2 or flat.shape[1] != spec.act_dim:
        raise ValueError(f"`data` must have actions of shape (n, {spec.act_dim}). Received: {actions.shape}")
    return flat


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
