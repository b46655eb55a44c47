"""Search for the options of an agent with the highest return: `tfdpg.tune` and `tfdpg tune`.

A companion of the core; importing it does not import Optuna. It uses `agents.classes`, `options` (`options_of` and what
an option's annotation says of its search) and `training.options`. `space` makes the space of options, `runs` trains,
`search` asks Optuna, and `report` writes what was found.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg.agents import AGENTS, classes
from tfdpg.cli.run_options import Run, RunConfig
from tfdpg.cli.run_paths import parent_of
from tfdpg.environments import make
from tfdpg.hints import did_you_mean
from tfdpg.imports import require
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions
from tfdpg.tuning.options import TuneOptions

if TYPE_CHECKING:
    import optuna

__all__ = ["tune"]


def __dir__() -> list[str]:
    return __all__


def tune(
    agent: str,
    env: str,
    *,
    search: Sequence[str] = (),
    trials: int = 50,
    minutes: float | None = None,
    jobs: int = 1,
    ray_address: str | None = None,
    confirm: int = 3,
    seed: int = 0,
    run_dir: str | Path | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> "optuna.Study":
    """Search for the options of an agent with the highest return, as `tfdpg tune` does.

    Each trial is a run of `tfdpg train` in its own process, with the score of its last three evaluations: the mean
    return, or the rate of success if the environment reports it. The first trial has the initial values, which are the
    defaults and the arguments given here. The same call resumes a search that was interrupted.

    Args:
        agent: the name of the algorithm, such as "td3", or module:Class of one in your own file.
        env: the id of the environment, module:id or module:Class.
        search: the names of the options to search; none for the default.
        trials: number of trials.
        minutes: minutes after which the search ends, with the runs that confirm the best settings; None sets no limit.
        jobs: number of runs to train at the same time.
        ray_address: `host:port` of a Ray cluster whose CPUs train one run each, or "auto" for the one that this machine
            belongs to. All machines must have access to `run_dir`. None trains on this machine.
        confirm: number of new seeds with which the best five settings, and the initial one, are trained again.
        seed: seed of the search and of the agents of all trials. The new seeds are the next larger numbers.
        run_dir: directory of the search; None is runs/tune-<agent>-<env>.
        env_kwargs: arguments of the environment.
        options: further options of the runs, that is flags of `tfdpg train`: options of the agent and of `fit`, such as
            `epochs` and `steps_per_epoch`.

    Returns:
        Optuna's study. Each trial has the attributes `options`, the values that were drawn, and `run`, its run
        directory. The study has the attribute `best`, a dict with the keys `trial`, `options` and `command`.

    Raises:
        ImportError: Optuna is not installed.
        ValueError: an argument is not valid, or `run_dir` holds a search with other options.
        RuntimeError: the first trial failed, or three trials in a row, or another process runs the search.

    Example:
        ```python
        study = tfdpg.tune("td3", "Pendulum-v1", epochs=8, steps_per_epoch=1000, trials=20)
        study.user_attrs["best"]["command"]
        ```
    """
    require_optuna()
    if not isinstance(agent, str) or not (classes.is_external(agent) or agent.upper() in AGENTS):
        known = ", ".join(AGENTS).lower()
        raise ValueError(f"`agent` must be one of {known}, or module:Class of your own. Received: {agent!r}")
    if classes.is_external(agent):
        classes.import_agent(agent)
    if not isinstance(env, str):
        raise ValueError(f"`env` must be the id of an environment, for other processes to make it. Received: {env!r}")
    values = initial_options(agent)
    run = {option.name: option.default for option in options_of(Run) if option.name != "env"}
    for name, value in options.items():
        if name not in values | run:
            meant = did_you_mean(name, values | run, "'{}'")
            raise TypeError(f"tune() takes the flags of `tfdpg train`, and there is no flag {name!r}.{meant}")
        (run if name in run else values)[name] = value
    tune_options = TuneOptions(
        search=tuple(search),
        trials=trials,
        minutes=minutes,
        jobs=jobs,
        ray_address=ray_address,
        confirm=confirm,
        seed=seed,
        run_dir=None if run_dir is None else Path(run_dir),
    )
    kwargs: Any = {} if env_kwargs is None else env_kwargs
    config = RunConfig(agent=classes.full_name(agent), env=env, seed=seed, env_kwargs=kwargs, options=values, **run)
    return start(config, tune_options)


def start(config: RunConfig, options: TuneOptions) -> "optuna.Study":
    """Check that the environment can be made, and search in the directory of the search."""
    make(config.env, **config.env_kwargs).close()
    from tfdpg.tuning.search import search

    parent = parent_of(config.agent, config.env)
    return search(options.run_dir or parent.with_name(f"tune-{parent.name}"), config, options)


def require_optuna() -> None:
    """Raise `ImportError` if Optuna, or what draws the plot of parameter importance, is not installed."""
    require("A search", "tune", "optuna", "seaborn")


def initial_options(agent: str) -> dict[str, Any]:
    """Return the defaults of the options of an agent and of `fit` that are flags of a search."""
    options = [option for kind in (FitOptions, classes.options_class(agent)) for option in options_of(kind)]
    fixed = {"seed", "minutes", "verbose", "initial_epoch"}
    return {each.name: each.default for each in options if not each.is_object and each.name not in fixed}
