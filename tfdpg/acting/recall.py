"""What policies with a memory recall of an episode, lane by lane; a policy without one recalls nothing. NumPy only."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""From packed observations to the outputs of a policy's network, `[lanes, n]`.

With a memory, what the lanes recall comes with them as one more matrix at the end, and the outputs with the new state
behind them (see `Recall`). Its inputs are finite: `Memory.ask` applies the rule on non-finite observations.
"""


def nonfinite_rows(matrices: Sequence[np.ndarray]) -> np.ndarray | None:
    """Find the rows that hold NaN or an infinity.

    Args:
        matrices: `[batch, n]` each, of floats or integers.

    Returns:
        A mask, bool `[batch]`; None where all numbers are finite.
    """
    nonfinite: np.ndarray | None = None
    for matrix in matrices:
        if matrix.dtype.kind == "f":
            finite = np.isfinite(matrix)
            if np.count_nonzero(finite) < finite.size:
                rows: np.ndarray = ~np.logical_and.reduce(finite, axis=1)
                nonfinite = rows if nonfinite is None else np.logical_or(nonfinite, rows)
    return nonfinite


def with_zeros(matrices: Sequence[np.ndarray]) -> Packed:
    """Replace NaN and infinities by 0, so that a forward pass sees finite numbers only."""
    return tuple(np.nan_to_num(matrix, nan=0, posinf=0, neginf=0) for matrix in matrices)


class Recall(NamedTuple):
    """What a policy recalls at each step: the step before, and its state, `[lanes, before_width + state_width]`.

    The step before is the executed action, clipped to the box and in the environment's units, and the reward as the
    environment gave it.

    Attributes:
        spec: the spaces.
        action: whether the action before is recalled.
        reward: whether the reward before is recalled.
        parts: the parts of the state by their names in the export, with their widths: `(("h", 64), ("c", 64))`.
        stored: whether the state before a step is stored with it.
    """

    spec: Spec
    action: bool
    reward: bool
    parts: tuple[tuple[str, int], ...]
    stored: bool

    @property
    def before_width(self) -> int:
        """The numbers of the step before."""
        return self.action * self.spec.act_dim + self.reward

    @property
    def state_width(self) -> int:
        """The numbers of the state."""
        return sum(width for _, width in self.parts)

    @property
    def width(self) -> int:
        """The numbers of both."""
        return self.before_width + self.state_width

    @property
    def stored_width(self) -> int:
        """The numbers that a stored step has behind its action."""
        return self.state_width if self.stored else 0

    def start(self, lanes: int) -> np.ndarray:
        """What is recalled when an episode begins: the box's center, reward 0 and a state of zeros."""
        recalled = np.zeros((lanes, self.before_width + self.state_width), np.float32)
        if self.action:
            recalled[:, : self.spec.act_dim] = self.spec.center
        return recalled

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factor and offset with which the step before enters a network: an action in half-ranges from the center."""
        half_range, one = self.spec.half_range, np.ones(int(self.reward), np.float32)
        if not self.action:
            return one, 0 * one
        return np.append(1 / half_range, one), np.append(-self.spec.center / half_range, 0 * one)


class Memory(Protocol):
    """The memory of all lanes of one who acts.

    Attributes:
        width: the numbers that it adds to a stored step.
        state: all that it recalls, float32 `[lanes, n]`.
    """

    width: int
    state: np.ndarray

    def ask(self, actor: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[lanes, n]`, which goes on to its next state.

        A row with a non-finite number in its observation, its last action or reward or its recurrent state has outputs
        of NaN, and what is remembered for that row stays as it is.
        """
        ...

    def pass_by(self, actor: ForwardPass, packed: Packed) -> Any:
        """Goes on as `ask` does where nobody wants the outputs."""
        ...

    def keep(self, step: np.ndarray) -> np.ndarray:
        """Remembers the action of a step, and gives the step as it is stored, `[lanes, n + width]`."""
        ...

    def received(self, reward: np.ndarray) -> None:
        """Remembers the rewards of a step, `[lanes]`."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        ...

    def anew(self) -> "Memory":
        """Another of its kind, without a past."""
        ...


class NoMemory:
    """The memory of a policy that sees nothing but observations.

    Args:
        no_output: what the outputs of a row with a non-finite observation are.
    """

    width = 0

    def __init__(self, no_output: float = np.nan):
        self.state, self._no_output = np.zeros((0, 0), np.float32), no_output

    def ask(self, actor: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[lanes, n]`; those of a row with a non-finite observation are `no_output`."""
        nonfinite = nonfinite_rows(packed)
        if nonfinite is None:
            return actor(packed)
        outputs = np.array(actor(with_zeros(packed)))
        outputs[nonfinite] = self._no_output
        return outputs

    def pass_by(self, actor: ForwardPass, packed: Packed) -> None:
        """Asks nothing: nothing would be remembered."""

    def keep(self, step: np.ndarray) -> np.ndarray:
        """The step."""
        return step

    def received(self, reward: np.ndarray) -> None:
        """Forgets the rewards."""

    def end(self, ended: np.ndarray) -> None:
        """Forgets nothing: there is no past."""

    def anew(self) -> "NoMemory":
        """Another one."""
        return NoMemory(self._no_output)


class LaneMemory:
    """What each lane recalls; it begins anew when their number changes. See `Memory`.

    Args:
        recall: what there is to recall.
    """

    def __init__(self, recall: Recall):
        self.recall, self.width = recall, recall.stored_width
        self._start, self._before = recall.start(1), recall.before_width
        self.state = self._recalled = recall.start(0)
        self._nonfinite: np.ndarray | None = None

    def ask(self, actor: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[lanes, n]`, which goes on to its next state; see `Memory.ask`."""
        if len(self.state) != len(packed[0]):
            self.state = self.recall.start(len(packed[0]))
        self._recalled, self.state = self.state, self.state.copy()
        inputs = (*packed, self._recalled)
        self._nonfinite = nonfinite = nonfinite_rows(inputs)
        asked = actor(inputs if nonfinite is None else with_zeros(inputs))
        width = asked.shape[1] - self.recall.state_width
        self.state[:, self._before :] = asked[:, width:]
        if nonfinite is None:
            return asked[:, :width]
        self.state[nonfinite] = self._recalled[nonfinite]
        return np.where(nonfinite[:, None], np.float32(np.nan), asked[:, :width])

    pass_by = ask

    def keep(self, step: np.ndarray) -> np.ndarray:
        """Remembers the action, and puts the state with which it was taken behind the step, if it is stored.

        What answers a non-finite observation is not remembered.
        """
        spec = self.recall.spec
        if self.recall.action:
            action = np.minimum(np.maximum(step[:, : spec.act_dim], spec.low), spec.high)
            if self._nonfinite is not None:
                action = np.where(self._nonfinite[:, None], self._recalled[:, : spec.act_dim], action)
                self._nonfinite = None
            self.state[:, : spec.act_dim] = action
        return np.concatenate([step, self._recalled[:, self._before :]], axis=1) if self.width else step

    def received(self, reward: np.ndarray) -> None:
        """Remembers the rewards, `[lanes]`."""
        if self.recall.reward:
            self.state[:, self._before - 1] = reward

    def end(self, ended: np.ndarray) -> None:
        """Begins anew in the lanes whose episode ended, bool `[lanes]`."""
        if len(self.state) == len(ended):
            self.state[ended] = self._start

    def anew(self) -> "LaneMemory":
        """One of the same, without a past."""
        return LaneMemory(self.recall)
