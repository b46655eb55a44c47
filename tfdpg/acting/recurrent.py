"""What policies with a memory recall of an episode, lane by lane; a policy without one recalls nothing. NumPy only."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""From packed observations to the outputs of a policy's network, `[num_envs, n]`.

With a memory, what the lanes recall comes with them as one more matrix at the end, and the outputs with the new state
behind them (see `RecurrentSpec`). Its inputs are finite: `PolicyState.forward` replaces other numbers.
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


class RecurrentSpec(NamedTuple):
    """What a policy recalls at each step: the step before, and its state, `[num_envs, previous_width + state_width]`.

    The step before is the executed action, clipped to the box and in the environment's units, and the reward as the
    environment gave it.

    Attributes:
        spec: the spaces.
        uses_action: whether the action before is recalled.
        uses_reward: whether the reward before is recalled.
        parts: the parts of the state by their names in the export, with their widths: `(("h", 64), ("c", 64))`.
        stored: whether the state before a step is stored with it.
    """

    spec: Spec
    uses_action: bool
    uses_reward: bool
    parts: tuple[tuple[str, int], ...]
    stored: bool

    @property
    def previous_width(self) -> int:
        """The numbers of the step before."""
        return self.uses_action * self.spec.act_dim + self.uses_reward

    @property
    def state_width(self) -> int:
        """The numbers of the state."""
        return sum(width for _, width in self.parts)

    @property
    def width(self) -> int:
        """The numbers of both."""
        return self.previous_width + self.state_width

    @property
    def stored_width(self) -> int:
        """The numbers that a stored step has behind its action."""
        return self.state_width if self.stored else 0

    def initial_state(self, num_envs: int) -> np.ndarray:
        """What is recalled when an episode begins: the box's center, reward 0 and a state of zeros."""
        recurrent_inputs = np.zeros((num_envs, self.previous_width + self.state_width), np.float32)
        if self.uses_action:
            recurrent_inputs[:, : self.spec.act_dim] = self.spec.center
        return recurrent_inputs

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factor and offset with which the step before enters a network: an action in half-ranges from the center."""
        action_scale = self.spec.action_scale
        one = np.ones(int(self.uses_reward), np.float32)
        if not self.uses_action:
            return one, 0 * one
        return np.append(1 / action_scale, one), np.append(-self.spec.center / action_scale, 0 * one)


class PolicyState(Protocol):
    """The memory of all lanes of one who acts.

    Attributes:
        width: the numbers that it adds to a stored step.
        state: all that it recalls, float32 `[num_envs, n]`.
    """

    width: int
    state: np.ndarray

    def forward(self, network: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[num_envs, n]`, which goes on to its next state.

        A row with a non-finite number in its observation, its last action or reward or its recurrent state has outputs
        of NaN, and what is remembered for that row stays as it is.
        """
        ...

    def advance(self, network: ForwardPass, packed: Packed) -> Any:
        """Goes on as `forward` does where nobody wants the outputs."""
        ...

    def record_step(self, step: np.ndarray) -> np.ndarray:
        """Remembers the action of a step, and gives the step as it is stored, `[num_envs, n + width]`."""
        ...

    def received(self, reward: np.ndarray) -> None:
        """Remembers the rewards of a step, `[num_envs]`."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        ...

    def fresh_copy(self) -> "PolicyState":
        """Another of its kind, without a past."""
        ...


class NoState:
    """The memory of a policy that sees nothing but observations.

    Args:
        no_output: what the outputs of a row with a non-finite observation are.
    """

    width = 0

    def __init__(self, no_output: float = np.nan):
        self.state = np.zeros((0, 0), np.float32)
        self._no_output = no_output

    def forward(self, network: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[num_envs, n]`; those of a row with a non-finite observation are `no_output`."""
        nonfinite = nonfinite_rows(packed)
        if nonfinite is None:
            return network(packed)
        outputs = np.array(network(with_zeros(packed)))
        outputs[nonfinite] = self._no_output
        return outputs

    def advance(self, network: ForwardPass, packed: Packed) -> None:
        """Asks nothing: nothing would be remembered."""

    def record_step(self, step: np.ndarray) -> np.ndarray:
        """The step."""
        return step

    def received(self, reward: np.ndarray) -> None:
        """Forgets the rewards."""

    def end(self, ended: np.ndarray) -> None:
        """Forgets nothing: there is no past."""

    def fresh_copy(self) -> "NoState":
        """Another one."""
        return NoState(self._no_output)


class RecurrentState:
    """What each lane recalls; it begins anew when their number changes. See `PolicyState`.

    Args:
        recurrent_spec: what there is to recall.
    """

    def __init__(self, recurrent_spec: RecurrentSpec):
        self.recurrent_spec = recurrent_spec
        self.width = recurrent_spec.stored_width
        self._initial_state = recurrent_spec.initial_state(1)
        self._previous_width = recurrent_spec.previous_width
        self.state = self._recurrent_inputs = recurrent_spec.initial_state(0)
        self._nonfinite: np.ndarray | None = None

    def forward(self, network: ForwardPass, packed: Packed) -> np.ndarray:
        """The outputs of a policy, `[num_envs, n]`, which goes on to its next state; see `PolicyState.forward`."""
        if len(self.state) != len(packed[0]):
            self.state = self.recurrent_spec.initial_state(len(packed[0]))
        self._recurrent_inputs = self.state
        self.state = self.state.copy()
        inputs = (*packed, self._recurrent_inputs)
        self._nonfinite = nonfinite = nonfinite_rows(inputs)
        outputs = network(inputs if nonfinite is None else with_zeros(inputs))
        width = outputs.shape[1] - self.recurrent_spec.state_width
        self.state[:, self._previous_width :] = outputs[:, width:]
        if nonfinite is None:
            return outputs[:, :width]
        self.state[nonfinite] = self._recurrent_inputs[nonfinite]
        return np.where(nonfinite[:, None], np.float32(np.nan), outputs[:, :width])

    advance = forward

    def record_step(self, step: np.ndarray) -> np.ndarray:
        """Remembers the action, and puts the state with which it was taken behind the step, if it is stored.

        What answers a non-finite observation is not remembered.
        """
        spec = self.recurrent_spec.spec
        if self.recurrent_spec.uses_action:
            action = np.minimum(np.maximum(step[:, : spec.act_dim], spec.low), spec.high)
            if self._nonfinite is not None:
                action = np.where(self._nonfinite[:, None], self._recurrent_inputs[:, : spec.act_dim], action)
                self._nonfinite = None
            self.state[:, : spec.act_dim] = action
        return np.concatenate([step, self._recurrent_inputs[:, self._previous_width :]], axis=1) if self.width else step

    def received(self, reward: np.ndarray) -> None:
        """Remembers the rewards, `[num_envs]`."""
        if self.recurrent_spec.uses_reward:
            self.state[:, self._previous_width - 1] = reward

    def end(self, ended: np.ndarray) -> None:
        """Begins anew in the lanes whose episode ended, bool `[num_envs]`."""
        if len(self.state) == len(ended):
            self.state[ended] = self._initial_state

    def fresh_copy(self) -> "RecurrentState":
        """One of the same, without a past."""
        return RecurrentState(self.recurrent_spec)
