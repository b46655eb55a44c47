"""The behaviour policy: a policy network with its recurrent state and its exploration."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tfdpg.acting.recurrent import ForwardPass, NoState, PolicyState
from tfdpg.spec import Packed, Spec


class Exploration(Protocol):
    """Turn the outputs of a policy network, `[num_envs, n]`, into actions and the values stored with them.

    A stored step is one row per sub-environment: the action first, then values such as the parameters of the
    distribution that the action was sampled from. A subclass has `step_width`, `explore` and `greedy`, and inherits an
    exploration without state whose noise has the factor 1.

    Attributes:
        step_width: number of columns of a stored step.
    """

    step_width: int

    @property
    def state(self) -> np.ndarray:
        """The state of noise that is correlated in time, `[num_envs, n]`; an empty array if there is none."""
        return np.zeros((0, 1), np.float32)

    @state.setter
    def state(self, state: np.ndarray) -> None:
        pass

    def factor(self, step: int) -> float:
        """Return the factor of the exploration noise, at least 0, which `explore` receives.

        Args:
            step: the number of environment steps so far.
        """
        return 1.0

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Choose exploratory actions.

        Args:
            output: outputs of the policy network, `[num_envs, n]`.
            factor: scales the noise; see the method `factor`.
            rng: source of the random numbers.

        Returns:
            The steps to store, float32 `[num_envs, step_width]`.
        """
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Choose actions without exploration.

        Args:
            output: outputs of the policy network, `[num_envs, n]`.

        Returns:
            The steps to store, float32 `[num_envs, step_width]`.
        """
        ...

    def end(self, ended: np.ndarray) -> None:
        """Reset the noise of the sub-environments whose episode ended.

        Args:
            ended: whether the episode of each sub-environment ended, bool `[num_envs]`.
        """

    def at_scale(self, scale: float | None) -> "Exploration":
        """Return a copy for another process.

        Args:
            scale: standard deviation of the noise as a fraction of the action scale; None keeps the scale.

        Raises:
            ValueError: This exploration does not work in other processes.
        """
        return self


class BehaviourPolicy:
    """Choose actions in all sub-environments, and keep the recurrent state and the noise state of each.

    The collector, the evaluation and each worker have their own instance. The methods that act return the steps to
    store, float32 `[num_envs, step_width]`: the action first, then the columns that `exploration` and `policy_state`
    add.

    Args:
        spec: the spaces of the environment.
        network: forward pass of the policy network.
        exploration: chooses actions from the network's outputs.
        policy_state: recurrent state of the policy; None for a policy that is not recurrent.
    """

    def __init__(
        self, spec: Spec, network: ForwardPass, exploration: Exploration, policy_state: PolicyState | None = None
    ):
        self.spec = spec
        self.network = network
        self.exploration = exploration
        self.policy_state: PolicyState = NoState() if policy_state is None else policy_state

    @property
    def step_width(self) -> int:
        """Number of columns of a stored step."""
        return self.exploration.step_width + self.policy_state.width

    def explore(self, packed: Packed, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Act with exploration; `factor`, between 0 and 1, scales the noise."""
        return self._recorded(self.exploration.explore(self.policy_state.forward(self.network, packed), factor, rng))

    def greedy(self, packed: Packed) -> np.ndarray:
        """Act without exploration."""
        return self._recorded(self.exploration.greedy(self.policy_state.forward(self.network, packed)))

    def act_uniformly(self, packed: Packed, rng: np.random.Generator) -> np.ndarray:
        """Sample actions uniformly from the action box; the recurrent state advances as with any other action."""
        self.policy_state.advance(self.network, packed)
        low, high = self.spec.random_bounds
        return self._recorded(low + rng.random((len(packed[0]), self.spec.act_dim), np.float32) * (high - low))

    def _recorded(self, step: np.ndarray) -> np.ndarray:
        """Round the actions of a Box of integers, unless their distribution is stored with them; record the step."""
        if self.spec.integer_type is not None and step.shape[1] == self.spec.act_dim:
            step = self.spec.rounded(step)
        return self.policy_state.record_step(step)

    def received(self, reward: np.ndarray) -> None:
        """Pass the rewards of the last steps, `[num_envs]`, to policies that receive the previous reward."""
        self.policy_state.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Reset the sub-environments whose episode ended, bool `[num_envs]`."""
        self.exploration.end(ended)
        self.policy_state.end(ended)

    def with_network(self, network: ForwardPass) -> "BehaviourPolicy":
        """Return a copy that acts with another network, with its recurrent state and noise reset."""
        explores = copy.deepcopy(self.exploration)
        explores.state = np.zeros_like(explores.state)
        return BehaviourPolicy(self.spec, network, explores, self.policy_state.fresh_copy())

    def state(self) -> dict[str, Any]:
        """Return the noise state and the recurrent state as JSON values."""
        return {"noise": self.exploration.state.tolist(), "recurrent_state": self.policy_state.state.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self.exploration.state = np.array(state["noise"], np.float32).reshape(-1, self.spec.act_dim)
        self.policy_state.state = np.array(state["recurrent_state"], np.float32)
