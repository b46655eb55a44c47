"""The support of categorical critics: from the returns that were seen, and watched while training."""

import warnings
from collections.abc import Mapping, Sequence

from tfdpg.networks import Categorical
from tfdpg.training.learning import Minibatches

PERIOD = 5000
"""Updates; a range of 100,000 returns takes a twentieth of a second."""
MOST_EDGE_MASS = 0.1
"""A critic of 51 atoms has up to 0.07 where it knows nothing yet: its random weights, as at an episode's last, cut
observation, which no update ever asks about."""
FIRST_UPDATES = 200
"""Until then much of the target is the uniform distribution that critics begin with, shifted by the rewards."""


class Support:
    """The support of an agent whose options leave it open: it is chosen before the first update.

    One that runs is [−R, R], with R the largest absolute return to be expected, and is widened once in `PERIOD` updates
    to what R has become. With the probabilities that critics have, that is the same as rewards scaled by 1 / R on a
    support that stays (SimbaV2's, Lee et al. 2025).

    Args:
        heads: the last layers of all critics and their targets.
        runs: whether it follows the returns.
    """

    def __init__(self, heads: Sequence[Categorical], runs: bool = False):
        self._heads, self._runs = heads, runs
        self._unknown = heads[0].v_min, heads[0].v_max
        self._period = 0

    def __call__(self, updates: int, minibatches: Minibatches) -> None:
        """Takes the range of returns that were seen, if it is due; not where atoms were loaded."""
        before, self._period = self._period, updates // PERIOD
        v_min, v_max = self._heads[0].atoms.numpy()[[0, -1]].tolist()
        if updates == 0 and (v_min, v_max) == self._unknown:
            try:
                v_min, v_max = minibatches.return_range()
            except ValueError as error:
                raise ValueError(
                    f"{error} Give `v_min` and `v_max` to an agent that is to learn without it."
                ) from error
        elif self._runs and before < self._period:
            v_max = max(v_max, *map(abs, minibatches.return_range()))
        else:
            return
        if self._runs:
            v_max = max(-v_min, v_max)
            v_min = -v_max
        for head in self._heads:
            head.set_range(v_min, v_max)

    def state(self) -> int:
        """The periods that were looked at."""
        return self._period

    def restore(self, state: int) -> None:
        """Takes what `state` gave."""
        self._period = state


class EdgeWatch:
    """Warns when much of the projected targets' probability lies on the edges of a support that is too small."""

    def __init__(self) -> None:
        self._warned_for: tuple[float, float] | None = None

    def __call__(self, updates: int, logs: Mapping[str, float]) -> None:
        """Looks at what a learning round measured, after so many updates; warns once for each support."""
        if updates < FIRST_UPDATES or logs["edge_mass"] <= MOST_EDGE_MASS:
            return
        support = logs["v_min"], logs["v_max"]
        if support != self._warned_for:
            self._warned_for = support
            warnings.warn(
                f"{logs['edge_mass']:.1%} of the projected targets' probability lies on the edge atoms of the support "
                f"[{support[0]:g}, {support[1]:g}] (q1 is {logs['q1']:g} on average), so returns beyond it cannot be "
                "told apart. Give a new agent a wider `v_min` and `v_max`; a saved one keeps its own.",
                stacklevel=2,
            )
