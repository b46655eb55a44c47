"""The one who acts: a policy's forward pass, what it remembers, and what its outputs become."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tfdpg.acting.recurrent import ForwardPass, NoState, PolicyState
from tfdpg.spec import Packed, Spec


class Exploration(Protocol):
    """What is done with a policy's outputs `[num_envs, n]`, and stored with the step: the action, what belongs to it.

    Attributes:
        step_width: the numbers that are stored with a step.
    """

    step_width: int

    @property
    def state(self) -> np.ndarray:
        """What the next step depends on besides the generator, `[num_envs, n]`."""
        ...

    @state.setter
    def state(self, state: np.ndarray) -> None: ...

    def factor(self, step: int) -> float:
        """How much it explores at an environment step, of 1."""
        ...

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """What is stored with an exploring step, float32 `[num_envs, step_width]`; the action comes first."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """What is stored with a step that does not explore."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        ...

    def at_scale(self, scale: float | None) -> "Exploration":
        """The same in another process, with noise of another scale; None leaves it.

        Raises:
            ValueError: it does not explore with noise.
        """
        ...


class BehaviourPolicy:
    """Acts on all lanes, and keeps what each of them remembers; the collector, evaluation and workers have one each.

    What it gives is stored with the step, float32 `[num_envs, step_width]`: the action first, then what belongs to it.

    Args:
        spec: the spaces.
        network: the policy's forward pass.
        exploration: makes steps of its outputs.
        policy_state: what the policy remembers of each lane; None is nothing.
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
        """The numbers that are stored with a step."""
        return self.exploration.step_width + self.policy_state.width

    def explore(self, packed: Packed, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Exploring steps; `factor` is how much of the exploration there is, of 1."""
        return self.policy_state.record_step(
            self.exploration.explore(self.policy_state.forward(self.network, packed), factor, rng)
        )

    def greedy(self, packed: Packed) -> np.ndarray:
        """Steps that do not explore."""
        return self.policy_state.record_step(self.exploration.greedy(self.policy_state.forward(self.network, packed)))

    def act_uniformly(self, packed: Packed, rng: np.random.Generator) -> np.ndarray:
        """Steps whose actions are drawn uniformly from the action box; what is remembered goes on."""
        self.policy_state.advance(self.network, packed)
        low = self.spec.low
        high = self.spec.high
        return self.policy_state.record_step(
            low + rng.random((len(packed[0]), self.spec.act_dim), np.float32) * (high - low)
        )

    def received(self, reward: np.ndarray) -> None:
        """Takes note of what the last steps were rewarded with by the environment, `[num_envs]`."""
        self.policy_state.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        self.exploration.end(ended)
        self.policy_state.end(ended)

    def with_network(self, network: ForwardPass) -> "BehaviourPolicy":
        """The same of another forward pass, without a past."""
        explores = copy.deepcopy(self.exploration)
        explores.state = np.zeros_like(explores.state)
        return BehaviourPolicy(self.spec, network, explores, self.policy_state.fresh_copy())

    def state(self) -> dict[str, Any]:
        """What the next steps depend on besides a generator, as plain JSON values."""
        return {"noise": self.exploration.state.tolist(), "memory": self.policy_state.state.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave."""
        self.exploration.state = np.array(state["noise"], np.float32).reshape(-1, self.spec.act_dim)
        self.policy_state.state = np.array(state["memory"], np.float32)
