"""Observations with missing numbers, the user's preprocessing and stacked frames: what networks receive. NumPy only.

The environment's observation x, `[n]`, becomes the features that are stored and that networks receive, in three steps.

1. With `missing="hold"`, a number that is NaN or infinite is replaced by its last finite value in the episode, or by 0
   before there was one. There is a flag for each number, which is 1 where it is missing.
2. With `preprocess=`, the user's model computes other numbers from these.
3. With `frame_stack=k`, the numbers and flags of the last k observations are the features, the newest first. At the
   start of an episode the first observation is repeated.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tfdpg.acting.layers import LayerFunction, numpy_layer
from tfdpg.acting.recurrent import ForwardPass, RecurrentSpec
from tfdpg.spec import Packed, Spec


def hold(x: np.ndarray, held: np.ndarray, flagged: np.ndarray) -> np.ndarray:
    """Replace missing numbers by their last values.

    Args:
        x: raw observations, float32 `[batch, n]`.
        held: the last finite value of each number, float32 `[batch, n]`; 0 before there was one.
        flagged: 1 for each number whose flag networks receive, 0 for one whose flag is always 0, `[n]`.

    Returns:
        The numbers, which are the new `held`, followed by the flags, float32 `[batch, 2n]`.
    """
    is_missing = ~np.isfinite(x)
    return np.concatenate([np.where(is_missing, held, x), is_missing * flagged], axis=1, dtype=np.float32)


def stack(frame: np.ndarray, state: np.ndarray, frames: int) -> np.ndarray:
    """Join the newest frame to those before it.

    Args:
        frame: the newest frame, float32 `[batch, m]`.
        state: the `frames - 1` frames before it, and 1 after the first step of an episode, float32
            `[batch, (frames - 1) m + 1]`; zeros begin an episode.
        frames: the number of frames, at least 2.

    Returns:
        The frames, the newest first, followed by the new state, float32 `[batch, frames m + (frames - 1) m + 1]`.
    """
    before = np.where(state[:, -1:] > 0.5, state[:, :-1], np.tile(frame, frames - 1))
    newest = before[:, : before.shape[1] - frame.shape[1]]
    return np.concatenate([frame, before, frame, newest, np.ones_like(state[:, -1:])], axis=1)


@numpy_layer("tfdpg>Hold")
def hold_layer(flagged: np.ndarray) -> LayerFunction:
    """See `hold`."""
    return lambda x, held: hold(x, held, flagged)


@numpy_layer("tfdpg>Stack", "frames")
def stack_layer(*, frames: int) -> LayerFunction:
    """See `stack`."""
    return lambda frame, state: stack(frame, state, frames)


class Preprocessing:
    """From the environment's observations to the features that networks receive.

    Args:
        spec: the spaces of the environment, with the treatment of missing numbers.
        frames: the number of successive observations that networks receive.
        compute: the user's preprocessing, from packed observations to numbers `[batch, p]`; None uses the observations.

    Attributes:
        raw: the spaces of the environment.
        spec: the spaces of the features, a Box `[width]`, and of the actions.
        frames: see above.
        is_invertible: whether features contain the environment's observations.
        parts: names and widths of the parts of the state: `held`, the last finite values; `frames`, the features of the
            observations before; and `begun`, 1 after the first step of an episode.
        flagged: which numbers have been missing so far, bool `[n]`.

    Raises:
        ValueError: a part of the observation is an image or an integer.
    """

    def __init__(self, spec: Spec, frames: int, compute: ForwardPass | None = None):
        needs_floats = frames > 1 or spec.missing == "hold"
        if needs_floats and (other := [leaf.name for leaf in spec.leaves if leaf.dtype != "float32"]):
            option = f"frame_stack={frames}" if frames > 1 else 'missing="hold"'
            raise ValueError(
                f"`{option}` needs observations of floats. Received: {other[0]!r} of {spec.observation_space}. "
                "gymnasium.wrappers.FrameStackObservation stacks images."
            )
        self.raw = spec
        self.frames = frames
        self.is_invertible = compute is None
        self._compute = compute
        self._holds = spec.missing == "hold"
        self._count = spec.widths[0] if self._holds else 0  # of the numbers that may be missing
        names = self._names()
        self._frame_width = len(names) // frames
        held = (("held", self._count),) if self._holds else ()
        before = (("frames", (frames - 1) * self._frame_width), ("begun", 1)) if frames > 1 else ()
        self.parts = held + before
        self.flagged = np.zeros(self._count, bool)
        box = spaces.Box(-np.inf, np.inf, (len(names),), np.float32)
        self.spec = Spec(box, spec.action_space, observation_names=names)

    def _names(self) -> list[str]:
        """Return the names of the features."""
        raw = [self.raw.entry_name(column) for column in range(self.raw.widths[0])] if self.is_invertible else []
        names = raw or [f"preprocessed[{i}]" for i in range(self._output_width())]
        if self._holds:
            names += [f"{self.raw.entry_name(column)} is missing" for column in range(self._count)]
        before = {0: "", 1: ", 1 step before"}
        return [f"{name}{before.get(age, f', {age} steps before')}" for age in range(self.frames) for name in names]

    def _output_width(self) -> int:
        """Return the number of outputs of the user's preprocessing.

        Raises:
            ValueError: the outputs are not a row of float32 numbers for each observation.
        """
        found = self.examples()
        if found.ndim != 2 or len(found) != 2 or found.dtype != np.float32:
            received = f"{found.dtype} {list(found.shape)} for two observations"
            raise ValueError(f"`preprocess` must return float32 [batch, features]. Received: {received}")
        return found.shape[1]

    def examples(self) -> np.ndarray:
        """Return the outputs of the user's preprocessing for an observation of zeros and one of ones, `[2, p]`."""
        widths = zip(self.raw.groups, self.raw.widths, strict=True)
        return np.asarray(self._computed(tuple(np.tile([[0], [1]], width).astype(group) for group, width in widths)))

    def _computed(self, packed: Packed) -> np.ndarray:
        return packed[0] if self._compute is None else self._compute(packed)

    @property
    def width(self) -> int:
        """The number of features."""
        return self.spec.widths[0]

    @property
    def recurrent_spec(self) -> RecurrentSpec | None:
        """The state of an exported policy, which receives the environment's observations; None if there is none."""
        if not self.parts:
            return None
        return RecurrentSpec(self.raw, uses_action=False, uses_reward=False, parts=self.parts, stored=False)

    def step(self, packed: Packed, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features `[batch, width]` of packed observations, and the state after them.

        Numbers that are missing for the first time are noted in `flagged`.
        """
        count = self._count
        flags = held = state[:, :0]
        if not self.is_invertible and not self._holds:
            self._check_finite(packed[0])
        if self._holds:
            x = packed[0]
            if not np.isfinite(x).all():
                self.flagged |= ~np.isfinite(x).all(axis=0)
            outputs = hold(x, state[:, :count], np.ones(count, np.float32))
            held, flags = outputs[:, :count], outputs[:, count:]
            packed = (held,)
        frame = np.concatenate([self._computed(packed), flags], axis=1)
        if self.frames == 1:
            return frame, held
        outputs = stack(frame, state[:, count:], self.frames)
        return outputs[:, : self.width], np.concatenate([held, outputs[:, self.width :]], axis=1)

    def _check_finite(self, x: np.ndarray) -> None:
        """Raise `ValueError` if an observation is not finite: the user's model may hide it from later checks."""
        if x.dtype != np.uint8 and not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            name = self.raw.entry_name(column)
            raise ValueError(f"The environment's observation is not finite: {name} = {x[row, column]}")

    def initial_state(self, rows: int) -> np.ndarray:
        """Return the state at the start of an episode, float32 `[rows, s]`."""
        return np.zeros((rows, sum(width for _, width in self.parts)), np.float32)

    def newest(self, features: np.ndarray) -> np.ndarray:
        """Return the environment's observations `[batch, n]` of features, with NaN where a number was missing.

        There is no such method for `preprocess=` (see `is_invertible`).
        """
        frame = features[:, : self._frame_width]
        if not self._holds:
            return frame
        return np.where(frame[:, self._count :] > 0, np.float32(np.nan), frame[:, : self._count])

    def transitions(self, observation: Packed, following: Packed, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of stored transitions and of the observations after them.

        Args:
            observation: packed observations in chronological order, `[n, ...]`.
            following: the observations after them.
            ends: which transitions are the last of an episode, bool `[n]`.
        """
        features = np.zeros((len(ends), self.width), np.float32)
        after = np.zeros_like(features)
        state = self.initial_state(1)
        begins = True
        for row in range(len(ends)):
            if begins:
                features[row], state = self.step(_row(observation, row), self.initial_state(1))
            else:
                features[row] = after[row - 1]
            after[row], state = self.step(_row(following, row), state)
            begins = ends[row]
        return features, after


def _row(packed: Packed, row: int) -> Packed:
    return tuple(part[row : row + 1] for part in packed)


class FeatureRows:
    """The features of each sub-environment's newest observation, and the state that follows.

    Args:
        preprocessing: computes the features.

    Attributes:
        features: float32 `[num_envs, width]`.
    """

    def __init__(self, preprocessing: Preprocessing):
        self._preprocessing = preprocessing
        self.features = np.zeros((0, preprocessing.width), np.float32)
        self._state = preprocessing.initial_state(0)
        self._packed: Packed = ()
        self._ended = np.zeros(0, bool)

    def begin(self, observation: Any, rows: np.ndarray) -> np.ndarray:
        """Begin episodes in the sub-environments of a mask; return the features of all sub-environments."""
        packed = self._preprocessing.raw.pack(observation)
        count = len(packed[0])
        if count != len(self.features):
            rows = np.ones(count, bool)
            self._ended = np.zeros(count, bool)
            self.features = np.zeros((count, self._preprocessing.width), np.float32)
            self._state = self._preprocessing.initial_state(count)
            self._packed = packed
        if rows.any():
            initial = self._preprocessing.initial_state(int(np.count_nonzero(rows)))
            self.features = self.features.copy()
            self.features[rows], self._state[rows] = self._preprocessing.step(
                tuple(part[rows] for part in packed), initial
            )
            pairs = zip(packed, self._packed, strict=True)
            self._packed = tuple(np.where(rows[:, None], new, old) for new, old in pairs)
            self._ended = self._ended & ~rows
        return self.features

    def advance(self, observation: Any, ended: np.ndarray, final_observation: Any = None) -> np.ndarray:
        """Return the features after a step.

        Args:
            observation: the observations after the step, a batch.
            ended: the sub-environments whose episode ended, bool `[num_envs]`.
            final_observation: see `Spec.pack_final`; None if `observation` holds the last observations.
        """
        raw = self._preprocessing.raw
        packed = raw.pack(observation)
        if final_observation is not None and final_observation is not observation and ended.any():
            packed = raw.pack_final(packed, final_observation, ended)
        self._packed = tuple(part.copy() for part in packed)
        self.features, self._state = self._preprocessing.step(self._packed, self._state)
        self._ended = ended
        return self.features

    def of(self, observation: Any) -> np.ndarray:
        """Return the features of the observations on which an agent acts, in a training loop of the user.

        An observation that is not the one after the last step begins an episode, and so does one after an episode's
        end.
        """
        packed = self._preprocessing.raw.pack(observation)
        is_new = np.ones(len(packed[0]), bool)
        if len(is_new) == len(self.features):
            pairs = zip(packed, self._packed, strict=True)
            is_new = self._ended | np.any([differs(new, old).any(axis=1) for new, old in pairs], axis=0)
        return self.begin(observation, is_new)


def differs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return where numbers differ; NaN is equal to NaN."""
    return (one != other) & ~((one != one) & (other != other))


def preprocessing_of(
    spec: Spec, frames: int, compute: ForwardPass | None = None, refused: Sequence[str] = ()
) -> Preprocessing | None:
    """Return the preprocessing of an agent's observations; None if networks receive them as they are.

    Args:
        spec: the spaces of the environment.
        frames: the option `frame_stack`.
        compute: the option `preprocess`, from packed observations to numbers `[batch, p]`.
        refused: the options of the agent, as text, with which there is none.

    Raises:
        ValueError: see `Preprocessing`; or an option in `refused` is set.
    """
    if frames == 1 and spec.missing == "error" and compute is None:
        return None
    made = Preprocessing(spec, frames, compute)
    if refused:
        option = f"frame_stack={frames}" if frames > 1 else "preprocess" if compute is not None else 'missing="hold"'
        raise ValueError(f"`{option}` cannot be combined with `{refused[0]}`.")
    return made
