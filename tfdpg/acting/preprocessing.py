"""Observations with missing numbers, and stacked frames: what networks receive in their place. NumPy only.

The environment's observation x, `[n]`, becomes the features that are stored and that networks receive. With
`missing="hold"`, a number that is NaN or infinite is replaced by its last finite value in the episode, or by 0 before
there was one, and each number is followed by a flag that is 1 where it is missing. With `frame_stack=k`, the features
are those of the last k observations, the oldest first; at the start of an episode the first one is repeated.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tfdpg.acting.layers import LayerFunction, numpy_layer
from tfdpg.acting.recurrent import RecurrentSpec
from tfdpg.spec import Spec


def preprocess(x: np.ndarray, state: np.ndarray, flagged: np.ndarray | None, frames: int) -> np.ndarray:
    """Compute the features of a step, and the state for the next one.

    Args:
        x: raw observations, float32 `[batch, n]`.
        state: the state before the step, float32 `[batch, s]` (see `Preprocessing.parts`); zeros begin an episode.
        flagged: 1 for each number whose flag networks receive, 0 for one whose flag is always 0, `[n]`; None if
            numbers must not be missing.
        frames: the number of observations in the features.

    Returns:
        The features, followed by the new state, float32 `[batch, width + s]`.
    """
    held = x[:, :0]
    frame = x
    if flagged is not None:
        is_missing = ~np.isfinite(x)
        held = np.where(is_missing, state[:, : x.shape[1]], x)
        frame = np.concatenate([held, is_missing * flagged], axis=1, dtype=np.float32)
    if frames == 1:
        return np.concatenate([frame, held], axis=1)
    has_begun = state[:, -1:] > 0.5
    before = np.where(has_begun, state[:, held.shape[1] : -1], np.tile(frame, frames - 1))
    newer = before[:, frame.shape[1] :]
    return np.concatenate([before, frame, held, newer, frame, np.ones_like(state[:, -1:])], axis=1)


@numpy_layer("tfdpg>Preprocess", "frames")
def preprocess_layer(*weights: np.ndarray, frames: int) -> LayerFunction:
    """The features and the new state; see `preprocess`."""
    flagged = weights[0] if weights else None
    return lambda x, state: preprocess(x, state, flagged, frames)


class Preprocessing:
    """From the environment's observations to the features that networks receive.

    Args:
        spec: the spaces of the environment, with the treatment of missing numbers.
        frames: the number of successive observations that networks receive.

    Attributes:
        raw: the spaces of the environment.
        spec: the spaces of the features, a Box `[width]`, and of the actions.
        frames: see above.
        parts: names and widths of the parts of the state: `held`, the last finite values; `frames`, the features of the
            observations before; and `begun`, 1 after the first step of an episode.
        flagged: which numbers have been missing so far, bool `[n]`.

    Raises:
        ValueError: a part of the observation is an image or an integer.
    """

    def __init__(self, spec: Spec, frames: int):
        if other := [leaf.name for leaf in spec.leaves if leaf.dtype != "float32"]:
            option = f"frame_stack={frames}" if frames > 1 else 'missing="hold"'
            raise ValueError(
                f"`{option}` needs observations of floats. Received: {other[0]!r} of {spec.observation_space}. "
                "gymnasium.wrappers.FrameStackObservation stacks images."
            )
        self.raw = spec
        self.frames = frames
        self._count = spec.widths[0]
        holds = spec.missing == "hold"
        self._frame_width = self._count * (1 + holds)
        held = (("held", self._count),) if holds else ()
        before = (("frames", (frames - 1) * self._frame_width), ("begun", 1)) if frames > 1 else ()
        self.parts = held + before
        self.flagged = np.zeros(self._count, bool)
        width = frames * self._frame_width
        box = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.spec = Spec(box, spec.action_space, observation_names=self._names())

    def _names(self) -> list[str]:
        """Return the names of the features."""
        names = [self.raw.entry_name(column) for column in range(self._count)]
        if self.raw.missing == "hold":
            names += [f"{name} is missing" for name in names]
        ages = range(self.frames - 1, -1, -1)
        before = {0: "", 1: ", 1 step before"}
        return [f"{name}{before.get(age, f', {age} steps before')}" for age in ages for name in names]

    @property
    def width(self) -> int:
        """The number of features."""
        return self.spec.widths[0]

    @property
    def recurrent_spec(self) -> RecurrentSpec:
        """The state of an exported policy, which receives the environment's observations."""
        return RecurrentSpec(self.raw, uses_action=False, uses_reward=False, parts=self.parts, stored=False)

    def step(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features `[batch, width]` of raw observations `[batch, n]`, and the state after them.

        Numbers that are missing for the first time are noted in `flagged`.
        """
        flagged = None
        if self.raw.missing == "hold":
            flagged = np.ones(self._count, np.float32)
            if not np.isfinite(x).all():
                self.flagged |= ~np.isfinite(x).all(axis=0)
        outputs = preprocess(x, state, flagged, self.frames)
        return outputs[:, : self.width], outputs[:, self.width :]

    def initial_state(self, rows: int) -> np.ndarray:
        """Return the state at the start of an episode, float32 `[rows, s]`."""
        return np.zeros((rows, sum(width for _, width in self.parts)), np.float32)

    def newest(self, features: np.ndarray) -> np.ndarray:
        """Return the environment's observations `[batch, n]` of features, with NaN where a number was missing."""
        frame = features[:, -self._frame_width :]
        x = frame[:, : self._count]
        return np.where(frame[:, self._count :] > 0, np.float32(np.nan), x) if self.raw.missing == "hold" else x

    def transitions(self, x: np.ndarray, following: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of stored transitions and of the observations after them.

        Args:
            x: raw observations in chronological order, `[n, ...]`.
            following: the observations after them.
            ends: which transitions are the last of an episode, bool `[n]`.
        """
        features = np.zeros((len(x), self.width), np.float32)
        after = np.zeros_like(features)
        state = self.initial_state(1)
        begins = True
        for row in range(len(x)):
            if begins:
                state = self.initial_state(1)
                features[row], state = self.step(x[row : row + 1], state)
            else:
                features[row] = after[row - 1]
            after[row], state = self.step(following[row : row + 1], state)
            begins = ends[row]
        return features, after


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
        self._x = np.zeros((0, 0), np.float32)
        self._ended = np.zeros(0, bool)

    def begin(self, observation: Any, rows: np.ndarray) -> np.ndarray:
        """Begin episodes in the sub-environments of a mask; return the features of all sub-environments."""
        x = self._preprocessing.raw.pack(observation)[0]
        if x.shape != self._x.shape:
            rows = np.ones(len(x), bool)
            self._ended = np.zeros(len(x), bool)
            self.features = np.zeros((len(x), self._preprocessing.width), np.float32)
            self._state = self._preprocessing.initial_state(len(x))
            self._x = np.zeros_like(x)
        if rows.any():
            initial = self._preprocessing.initial_state(np.count_nonzero(rows))
            features, state = self._preprocessing.step(x[rows], initial)
            self.features = self.features.copy()
            self.features[rows] = features
            self._state[rows] = state
            self._x = np.where(rows[:, None], x, self._x)
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
        self._x = packed[0].copy()
        self.features, self._state = self._preprocessing.step(self._x, self._state)
        self._ended = ended
        return self.features

    def of(self, observation: Any) -> np.ndarray:
        """Return the features of the observations on which an agent acts, in a training loop of the user.

        An observation that is not the one after the last step begins an episode, and so does one after an episode's
        end.
        """
        x = self._preprocessing.raw.pack(observation)[0]
        if x.shape != self._x.shape:
            return self.begin(observation, np.ones(len(x), bool))
        is_same = ((x == self._x) | ((x != x) & (self._x != self._x))).all(axis=1)
        return self.begin(observation, ~is_same | self._ended)


def preprocessing_of(spec: Spec, frames: int, refused: Sequence[str] = ()) -> Preprocessing | None:
    """Return the preprocessing of an agent's observations; None if networks receive them as they are.

    Args:
        spec: the spaces of the environment.
        frames: the option `frame_stack`.
        refused: the options of the agent, as text, with which there is none.

    Raises:
        ValueError: see `Preprocessing`; or an option in `refused` is set.
    """
    if frames == 1 and spec.missing == "error":
        return None
    made = Preprocessing(spec, frames)
    if refused:
        option = f"frame_stack={frames}" if frames > 1 else 'missing="hold"'
        raise ValueError(f"`{option}` cannot be combined with `{refused[0]}`.")
    return made
