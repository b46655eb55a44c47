"""The recurrent state of policies in each sub-environment. NumPy only."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""Maps packed observations to the outputs of a policy network, `[num_envs, n]`.

A recurrent policy receives its recurrent inputs (see `RecurrentSpec`) as the last matrix, and its outputs are followed
by the new state, `[num_envs, n + state_width]`. All inputs are finite: `RecurrentState.forward` replaces other numbers.
"""


def nonfinite_rows(matrices: Sequence[np.ndarray]) -> np.ndarray | None:
    """Find the rows that contain NaN or an infinity.

    Args:
        matrices: floats or integers, `[batch, n]` each.

    Returns:
        A mask, bool `[batch]`; None if all numbers are finite.
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
    """Replace NaN and infinities by 0, so that a forward pass receives finite numbers only."""
    return tuple(np.nan_to_num(matrix, nan=0, posinf=0, neginf=0) for matrix in matrices)


class RecurrentSpec(NamedTuple):
    """The recurrent inputs of a policy at each step, `[num_envs, previous_width + state_width]`.

    They are the previous action (as executed, clipped to the box, in the environment's units), the previous reward (as
    the environment returned it) and the recurrent state.

    Attributes:
        spec: the spaces of the environment.
        uses_action: whether the policy receives the previous action.
        uses_reward: whether the policy receives the previous reward.
        parts: names and widths of the parts of the recurrent state, as in the export: `(("h", 64), ("c", 64))`.
        stored: whether the replay buffer stores the recurrent state before each step (R2D2's stored state).
    """

    spec: Spec
    uses_action: bool
    uses_reward: bool
    parts: tuple[tuple[str, int], ...]
    stored: bool

    @property
    def previous_width(self) -> int:
        """Number of columns of the previous action and the previous reward."""
        return self.uses_action * self.spec.act_dim + self.uses_reward

    @property
    def state_width(self) -> int:
        """Number of columns of the recurrent state."""
        return sum(width for _, width in self.parts)

    @property
    def width(self) -> int:
        """Number of columns of the recurrent inputs."""
        return self.previous_width + self.state_width

    @property
    def stored_width(self) -> int:
        """Number of columns that a stored step has after its action."""
        return self.state_width if self.stored else 0

    def initial_state(self, num_envs: int) -> np.ndarray:
        """Return the recurrent inputs at the start of an episode: the box's center, reward 0 and a state of zeros."""
        recurrent_inputs = np.zeros((num_envs, self.previous_width + self.state_width), np.float32)
        if self.uses_action:
            recurrent_inputs[:, : self.spec.act_dim] = self.spec.center
        return recurrent_inputs

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factor and offset, `[previous_width]` each, that rescale the previous action to [-1, 1]."""
        action_scale = self.spec.action_scale
        one = np.ones(int(self.uses_reward), np.float32)
        if not self.uses_action:
            return one, 0 * one
        return np.append(1 / action_scale, one), np.append(-self.spec.center / action_scale, 0 * one)


class NoState:
    """The empty state of a policy that is not recurrent.

    Args:
        no_output: the outputs of a row with a non-finite observation.

    Attributes:
        width: number of columns that it adds to a stored step.
        state: the recurrent inputs, float32 `[num_envs, 0]`.
    """

    recurrent_spec = None
    width = 0

    def __init__(self, no_output: float = np.nan):
        self.state = np.zeros((0, 0), np.float32)
        self._no_output = no_output

    def forward(self, network: ForwardPass, packed: Packed) -> np.ndarray:
        """Compute the outputs of a policy, `[num_envs, n]`; a row with a non-finite observation has `no_output`."""
        nonfinite = nonfinite_rows(packed)
        if nonfinite is None:
            return network(packed)
        outputs = np.array(network(with_zeros(packed)))
        outputs[nonfinite] = self._no_output
        return outputs

    def advance(self, network: ForwardPass, packed: Packed) -> None:
        """Do nothing: there is no state to advance."""

    def record_step(self, step: np.ndarray) -> np.ndarray:
        """Return the step unchanged."""
        return step

    def executed(self, action: np.ndarray) -> None:
        """Ignore the actions."""

    def received(self, reward: np.ndarray) -> None:
        """Ignore the rewards."""

    def end(self, ended: np.ndarray) -> None:
        """Do nothing: there is no state to reset."""

    def fresh_copy(self) -> "NoState":
        """Return a new instance."""
        return NoState(self._no_output)


class RecurrentState:
    """The recurrent inputs of each sub-environment, reset when the number of sub-environments changes.

    Attributes:
        recurrent_spec: describes the recurrent inputs.
        width: number of columns that it adds to a stored step.
        state: the recurrent inputs, float32 `[num_envs, n]`.
    """

    def __init__(self, recurrent_spec: RecurrentSpec):
        self.recurrent_spec = recurrent_spec
        self.width = recurrent_spec.stored_width
        self._initial_state = recurrent_spec.initial_state(1)
        self._previous_width = recurrent_spec.previous_width
        self.state = self._recurrent_inputs = recurrent_spec.initial_state(0)
        self._nonfinite: np.ndarray | None = None

    def forward(self, network: ForwardPass, packed: Packed) -> np.ndarray:
        """Compute the outputs of a policy, `[num_envs, n]`, and advance the recurrent state.

        A row with a non-finite number in its observation, its previous action or reward or its recurrent state has
        outputs of NaN, and its recurrent state does not change. Observations may have such numbers if the policy holds
        missing ones.
        """
        if len(self.state) != len(packed[0]):
            self.state = self.recurrent_spec.initial_state(len(packed[0]))
        self._recurrent_inputs = self.state
        self.state = self.state.copy()
        inputs = (*packed, self._recurrent_inputs)
        checked = inputs[-1:] if self.recurrent_spec.spec.missing == "hold" else inputs
        self._nonfinite = nonfinite = nonfinite_rows(checked)
        if nonfinite is not None:
            inputs = (*inputs[: len(inputs) - len(checked)], *with_zeros(checked))
        outputs = network(inputs)
        width = outputs.shape[1] - self.recurrent_spec.state_width
        self.state[:, self._previous_width :] = outputs[:, width:]
        if nonfinite is None:
            return outputs[:, :width]
        self.state[nonfinite] = self._recurrent_inputs[nonfinite]
        return np.where(nonfinite[:, None], np.float32(np.nan), outputs[:, :width])

    advance = forward

    def record_step(self, step: np.ndarray) -> np.ndarray:
        """Keep the actions of a step, `[num_envs, n]`, and append the recurrent state before it if that is stored.

        The action for a non-finite observation is not kept. Returns the step to store, `[num_envs, n + width]`.
        """
        spec = self.recurrent_spec.spec
        if self.recurrent_spec.uses_action:
            action = np.minimum(np.maximum(step[:, : spec.act_dim], spec.low), spec.high)
            if self._nonfinite is not None:
                action = np.where(self._nonfinite[:, None], self._recurrent_inputs[:, : spec.act_dim], action)
                self._nonfinite = None
            self.state[:, : spec.act_dim] = action
        return np.concatenate([step, self._recurrent_inputs[:, self._previous_width :]], axis=1) if self.width else step

    def executed(self, action: np.ndarray) -> None:
        """Keep other actions, `[num_envs, act_dim]`, than those of `record_step`."""
        if self.recurrent_spec.uses_action:
            self.state[:, : self.recurrent_spec.spec.act_dim] = action

    def received(self, reward: np.ndarray) -> None:
        """Keep the rewards, `[num_envs]`, if the policy receives the previous reward."""
        if self.recurrent_spec.uses_reward:
            self.state[:, self._previous_width - 1] = reward

    def end(self, ended: np.ndarray) -> None:
        """Reset the sub-environments whose episode ended, bool `[num_envs]`."""
        if len(self.state) == len(ended):
            self.state[ended] = self._initial_state

    def fresh_copy(self) -> "RecurrentState":
        """Return a new instance with the same options and a reset state."""
        return RecurrentState(self.recurrent_spec)


PolicyState = NoState | RecurrentState
"""The recurrent state of a policy in all sub-environments."""
