"""The one who acts: a policy's forward pass, what it remembers, and what its outputs become."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tfdpg.acting.recall import ForwardPass, Memory, NoMemory
from tfdpg.spec import Packed, Spec


class Exploration(Protocol):
    """What is done with a policy's outputs `[lanes, n]`, and stored with the step: the action, what belongs to it.

    Attributes:
        step_width: the numbers that are stored with a step.
    """

    step_width: int

    @property
    def state(self) -> np.ndarray:
        """What the next step depends on besides the generator, `[lanes, n]`."""
        ...

    @state.setter
    def state(self, state: np.ndarray) -> None: ...

    def factor(self, step: int) -> float:
        """How much it explores at an environment step, of 1."""
        ...

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """What is stored with an exploring step, float32 `[lanes, step_width]`; the action comes first."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """What is stored with a step that does not explore."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        ...

    def at_scale(self, scale: float | None) -> "Exploration":
        """The same in another process, with noise of another scale; None leaves it.

        Raises:
            ValueError: it does not explore with noise.
        """
        ...


class Behaviour:
    """Acts on all lanes, and keeps what each of them remembers; the collector, evaluation and workers have one each.

    What it gives is stored with the step, float32 `[lanes, step_width]`: the action first, then what belongs to it.

    Args:
        spec: the spaces.
        actor: the policy's forward pass.
        exploration: makes steps of its outputs.
        memory: what the policy remembers of each lane; None is nothing.
    """

    def __init__(self, spec: Spec, actor: ForwardPass, exploration: Exploration, memory: Memory | None = None):
        self.spec, self.actor, self.exploration = spec, actor, exploration
        self.memory: Memory = NoMemory() if memory is None else memory

    @property
    def step_width(self) -> int:
        """The numbers that are stored with a step."""
        return self.exploration.step_width + self.memory.width

    def explore(self, packed: Packed, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Exploring steps; `factor` is how much of the exploration there is, of 1."""
        return self.memory.keep(self.exploration.explore(self.memory.ask(self.actor, packed), factor, rng))

    def greedy(self, packed: Packed) -> np.ndarray:
        """Steps that do not explore."""
        return self.memory.keep(self.exploration.greedy(self.memory.ask(self.actor, packed)))

    def at_random(self, packed: Packed, rng: np.random.Generator) -> np.ndarray:
        """Steps whose actions are drawn uniformly from the action box; what is remembered goes on."""
        self.memory.pass_by(self.actor, packed)
        low, high = self.spec.low, self.spec.high
        return self.memory.keep(low + rng.random((len(packed[0]), self.spec.act_dim), np.float32) * (high - low))

    def received(self, reward: np.ndarray) -> None:
        """Takes note of what the last steps were rewarded with by the environment, `[lanes]`."""
        self.memory.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        self.exploration.end(ended)
        self.memory.end(ended)

    def by(self, actor: ForwardPass) -> "Behaviour":
        """The same of another forward pass, without a past."""
        explores = copy.deepcopy(self.exploration)
        explores.state = np.zeros_like(explores.state)
        return Behaviour(self.spec, actor, explores, self.memory.anew())

    def state(self) -> dict[str, Any]:
        """What the next steps depend on besides a generator, as plain JSON values."""
        return {"noise": self.exploration.state.tolist(), "memory": self.memory.state.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave."""
        self.exploration.state = np.array(state["noise"], np.float32).reshape(-1, self.spec.act_dim)
        self.memory.state = np.array(state["memory"], np.float32)
