"""The one who acts: a policy's forward pass, and what its outputs become."""

import copy
from collections.abc import Callable

import numpy as np

from tfdpg.exploration import Exploration, uniform_actions
from tfdpg.spec import Packed, Spec

ForwardPass = Callable[[Packed], np.ndarray]
"""From packed observations to the outputs of a policy's network, `[lanes, n]`."""


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
        return self.exploration(self.actor(packed), factor, rng)

    def greedy(self, packed: Packed) -> np.ndarray:
        """Steps that do not explore."""
        return self.exploration.greedy(self.actor(packed))

    def at_random(self, lanes: int, rng: np.random.Generator) -> np.ndarray:
        """Actions drawn uniformly from the action box, `[lanes, act_dim]`."""
        return uniform_actions(self.spec, lanes, rng)

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        self.exploration.end(ended)

    def by(self, actor: ForwardPass) -> "Behaviour":
        """The same of another forward pass, without a past."""
        explores = copy.deepcopy(self.exploration)
        explores.state = np.zeros_like(explores.state)
        return Behaviour(self.spec, actor, explores)
