"""The command `tfdpg diagnose`."""

import contextlib
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tfdpg import files
from tfdpg.arguments import natural, positive_int
from tfdpg.cli import run_paths as paths
from tfdpg.cli.run_options import read_run
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.environments import check_trusted, make
from tfdpg.training.options import FitOptions

if TYPE_CHECKING:
    from tfdpg.diagnosis.report import Diagnosis


def diagnose(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    env: str | None = None,
    episodes: int = 10,
    checkpoint: str = "latest",
    seed: int | None = None,
    plot: Path | None = None,
    trusted: bool = False,
    json: bool = False,
) -> int:
    """Find out what is wrong with a run: the worst first, each with its evidence and what to try next.

    The exit status is 1 if there are findings.

    Args:
        run: the run directory.
        env: id of the environment; the default is the environment of the run.
        episodes: number of evaluation episodes of the greedy policy, with exploration, and with random actions.
        checkpoint: latest, or the number of environment steps of a checkpoint.
        seed: seed of the initial states; the default is the seed of the run.
        plot: write a picture of the evidence to this file.
        trusted: import the modules and follow the links and the replay directory that the files of the run name.
        json: print one JSON object with the returns and the findings instead of text.
    """
    paths.check_run(run)
    positive_int("episodes", episodes)
    if seed is not None:
        natural("seed", seed)
    if checkpoint == "best":
        raise ValueError("`--checkpoint` must be latest or a number of steps, because `best` has no replay buffer.")
    import_tensorflow()
    from tfdpg.diagnosis import picture

    if plot is not None:
        picture.check(plot)
    diagnosis = _diagnosis(run, env, checkpoint, episodes, seed, trusted)
    print(dumps(diagnosis.to_json()) if json else diagnosis)
    if plot is not None:
        diagnosis.plot(plot)
        print(f"wrote {plot}", file=sys.stderr if json else sys.stdout)
    return int(bool(diagnosis.verdicts))


def _diagnosis(
    run: Path, env_id: str | None, checkpoint: str, episodes: int, seed: int | None, trusted: bool
) -> "Diagnosis":
    """Diagnose a checkpoint of a run.

    Args:
        run: the run directory.
        env_id: the environment of the evaluation episodes; None takes that of the run.
        checkpoint: `latest`, or its number of environment steps.
        episodes: the number of episodes of each policy.
        seed: the seed of the episodes; None takes that of the run.
        trusted: whether to import and follow what the run names, as for the user's own run in any case.
    """
    from tfdpg.cli.runs import load_checkpoint

    config, is_own = read_run(run, trusted)
    trusted = trusted or is_own
    if env_id is None:
        check_trusted(config.env, config.env_kwargs, trusted, run / "run.json")
    agent = load_checkpoint(run, config, checkpoint, trusted)
    columns = files.read_numbers(run / "progress.csv")
    kept = [i for i, step in enumerate(columns.get("env_steps", ())) if step <= agent.env_steps]
    history = {name: [values[i] for i in kept] for name, values in columns.items()}
    max_ep_len = FitOptions(**config.fit_options).max_ep_len
    made = make(config.env, **config.env_kwargs) if env_id is None else make(env_id)
    with contextlib.closing(made) as env:
        return agent.diagnose(env, episodes=episodes, seed=seed, max_ep_len=max_ep_len, history=history)
