"""The one who acts: a policy's forward pass, and what its outputs become."""

import copy
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""From packed observations to the outputs of a policy's network, `[lanes, n]`."""


class Exploration(Protocol):
    """What is done with a policy's outputs `[lanes, n]`, and stored with the step: the action, what belongs to it."""

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
    """

    def __init__(self, spec: Spec, actor: ForwardPass, exploration: Exploration):
        self.spec, self.actor, self.exploration = spec, actor, exploration

    def explore(self, packed: Packed, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Exploring steps; `factor` is how much of the exploration there is, of 1."""
        return self.exploration.explore(self.actor(packed), factor, rng)

    def greedy(self, packed: Packed) -> np.ndarray:
        """Steps that do not explore."""
        return self.exploration.greedy(self.actor(packed))

    def at_random(self, lanes: int, rng: np.random.Generator) -> np.ndarray:
        """Actions drawn uniformly from the action box, `[lanes, act_dim]`."""
        low, high = self.spec.low, self.spec.high
        return low + rng.random((lanes, self.spec.act_dim), np.float32) * (high - low)

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        self.exploration.end(ended)

    def by(self, actor: ForwardPass) -> "Behaviour":
        """The same of another forward pass, without a past."""
        explores = copy.deepcopy(self.exploration)
        explores.state = np.zeros_like(explores.state)
        return Behaviour(self.spec, actor, explores)
