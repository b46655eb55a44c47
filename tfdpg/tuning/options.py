"""The options of a search. This module imports neither Optuna nor TensorFlow."""

from pathlib import Path
from typing import Annotated

from tfdpg.options import Only, Options
from tfdpg.ranges import Count, Natural, Positive


class TuneOptions(Options, group="search"):
    """The options of a search that are not options of the agent, of `fit` or of the runs."""

    search: tuple[str, ...] = ()
    """options to search. The default is those of pi_lr, q_lr, lr, gamma, batch_size, act_noise, sigma and hidden_units
    that the agent has."""
    trials: Count = 50
    """number of trials."""
    minutes: Positive | None = None
    """minutes after which the search ends, with the runs that confirm the best settings: no trial starts that would
    leave them too little time. None sets no limit."""
    jobs: Annotated[Count, Only("`ray_address` is given: every CPU of the cluster trains a run", ray_address=None)] = 1
    """number of runs to train at the same time, each in its own process with an equal share of the cores."""
    ray_address: str | None = None
    """`host:port` of a Ray cluster whose CPUs train one run each, or "auto" for the one that this machine belongs to.
    All machines must have access to `run_dir`. None trains on this machine, without Ray."""
    confirm: Natural = 3
    """number of new seeds with which the best five settings, and the initial one, are trained again; 0 for none."""
    seed: Natural = 0
    """seed of the search and of the agents of all trials. The new seeds are the next larger numbers."""
    run_dir: Path | None = None
    """directory of the search. The default is runs/tune-<agent>-<env>."""

    def check(self) -> None:
        """Reject options that are named twice."""
        if len(set(self.search)) < len(self.search):
            raise ValueError(f"`search` must name different options. Received: {', '.join(self.search)}")
