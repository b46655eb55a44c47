"""What policies with a memory recall of an episode, lane by lane; a policy without one recalls nothing. NumPy only."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""From packed observations to the outputs of a policy's network, `[lanes, n]`.

With a memory, what the lanes recall comes with them as one more matrix at the end, and the outputs with the new state
behind them (see `Recall`).
"""


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
        """The outputs of a policy, `[lanes, n]`, which goes on to its next state."""
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
    """The memory of a policy that sees nothing but observations."""

    width = 0

    def __init__(self):
        self.state = np.zeros((0, 0), np.float32)

    def ask(self, actor: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[lanes, n]`."""
        return actor(packed)

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
        return NoMemory()


class LaneMemory:
    """What each lane recalls; it begins anew when their number changes. See `Memory`.

    Args:
        recall: what there is to recall.
    """

    def __init__(self, recall: Recall):
        self.recall, self.width = recall, recall.stored_width
        self._start, self._before = recall.start(1), recall.before_width
        self.state = self._recalled = recall.start(0)

    def ask(self, actor: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[lanes, n]`, which goes on to its next state."""
        if len(self.state) != len(packed[0]):
            self.state = self.recall.start(len(packed[0]))
        self._recalled, self.state = self.state, self.state.copy()
        asked = actor((*packed, self._recalled))
        outputs = asked.shape[1] - self.recall.state_width
        self.state[:, self._before :] = asked[:, outputs:]
        return asked[:, :outputs]

    pass_by = ask

    def keep(self, step: np.ndarray) -> np.ndarray:
        """Remembers the action, and puts the state with which it was taken behind the step, if it is stored."""
        spec = self.recall.spec
        if self.recall.action:
            action = step[:, : spec.act_dim]
            self.state[:, : spec.act_dim] = np.minimum(np.maximum(action, spec.low), spec.high)
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
