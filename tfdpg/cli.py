"""The command line. Flags come from the options of what they set.

Nothing heavy is imported before it is known which command runs, so that `tfdpg --help` answers at once.
"""

import ast
import dataclasses
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

import tfdpg

USAGE = """\
usage: tfdpg COMMAND [OPTIONS]

Train continuous-control policies, evaluate them, and export them for TensorFlow Serving.

commands:
  train {agents}  train an agent on an environment, in a run directory
  train --resume RUN   go on with a run
  evaluate             run episodes with a trained or an exported policy
  export               export the policy of a run
  inspect              show what an exported model holds
  plot                 plot the learning curves of runs

`tfdpg --version` prints the version; `tfdpg COMMAND --help` and `tfdpg train AGENT --help` show the options.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status. Errors of use are one line on standard error."""
    command, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "evaluate": lambda args: tyro.cli(evaluate, args=args, prog="tfdpg evaluate"),
        "export": lambda args: tyro.cli(export, args=args, prog="tfdpg export"),
        "inspect": lambda args: tyro.cli(inspect_export, args=args, prog="tfdpg inspect"),
        "plot": lambda args: tyro.cli(plot, args=args, prog="tfdpg plot"),
    }
    if command in ("-h", "--help"):
        print(_usage(), end="")
        return 0
    if command == "--version":
        print(f"tfdpg {tfdpg.__version__}")
        return 0
    if command not in commands:
        print(f"tfdpg: there is no command {command!r}\n\n{_usage()}", end="", file=sys.stderr)
        return 2
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the user's modules are where the command is run
    try:
        commands[command](rest)
    except KeyboardInterrupt as error:
        print(f"\n{_told(error, str(error) or 'interrupted')}", file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            print(_told(error, "ended by SIGTERM."), file=sys.stderr)
        raise
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        print(_told(error, str(error)), file=sys.stderr)
        return 1
    return 0


def _told(error: BaseException, message: str) -> str:
    """What went wrong on one line, and a line for each note."""
    return "\n".join([f"tfdpg: {message}", *getattr(error, "__notes__", ())])


def _import_tensorflow() -> None:
    """Imports TensorFlow without the lines that it writes to standard error before its log level counts."""
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        importlib.import_module("keras")
        importlib.import_module("tensorflow")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _usage() -> str:
    from tfdpg.agents import AGENTS

    return USAGE.format(agents="{" + ",".join(name.lower() for name in AGENTS) + "}")


def _train(argv: list[str]) -> None:
    from tfdpg.agents import AGENTS

    known = {name.lower() for name in AGENTS}
    if argv[:1] == ["--resume"]:
        tyro.cli(resume, args=argv[1:], prog="tfdpg train --resume")
    elif argv and argv[0].lower() in known:
        train(argv[0], tyro.cli(training_flags(argv[0]), args=argv[1:], prog=f"tfdpg train {argv[0]}"))
    elif argv in (["-h"], ["--help"], []):
        print(_usage(), end="")
    elif "--resume" in argv:
        raise ValueError("`--resume RUN` comes first: tfdpg train --resume RUN [--epochs N]")
    else:
        raise ValueError(f"There is no agent {argv[0]!r} to train. Known: {', '.join(sorted(known))}, or --resume RUN")


GROUPS = (
    *("run", "environment", "training", "schedule", "exploration", "algorithm", "returns", "networks", "optimisers"),
    *("observations", "replay", "machine", "rollout workers"),
)
"""The groups of flags in the order of their help, the common ones first."""


def training_flags(agent: str) -> type:
    """A dataclass with a dataclass for each group of flags of a run, of an agent, of `fit` and of its workers."""
    from tfdpg.agents.options import OPTIONS
    from tfdpg.distributed.options import Distribution
    from tfdpg.options import options_of
    from tfdpg.run_options import RunFlags
    from tfdpg.training.options import FitOptions

    kinds = RunFlags, FitOptions, OPTIONS[agent.upper()], Distribution
    flags: dict[str, list[Any]] = {title: [] for title in GROUPS}
    for option in (option for kind in kinds for option in options_of(kind)):
        if option.is_object or option.name == "seed":
            continue  # objects come from `--networks`, and seeds from `--seeds`
        if option.name == "actors":
            option = option._replace(kind=int | None, default=None)  # None trains without workers
        annotation = Annotated[option.kind, tyro.conf.arg(help=option.help)]
        default = {} if option.default is dataclasses.MISSING else {"default": option.default}
        flags[option.group].append((option.name, annotation, dataclasses.field(**default)))
    groups = [
        (
            title.replace(" ", "_"),
            tyro.conf.OmitArgPrefixes[dataclasses.make_dataclass(title.title(), fields, kw_only=True)],
        )
        for title, fields in flags.items()
    ]
    namespace = {"__doc__": f"Train {agent.upper()} on an environment."}
    return dataclasses.make_dataclass("TrainingFlags", groups, namespace=namespace)


def train(agent: str, flags: Any) -> None:
    """Trains one run for each seed."""
    from tfdpg.options import options_of
    from tfdpg.run_options import Run, RunConfig, RunFlags

    values: dict[str, Any] = {}
    for group in dataclasses.fields(flags):
        values |= vars(getattr(flags, group.name))
    run = RunFlags(**{option.name: values.pop(option.name) for option in options_of(RunFlags)})
    if not run.seeds or len(set(run.seeds)) < len(run.seeds):
        raise ValueError(f"`--seeds` must be one or more different integers. Received: {list(run.seeds)}")
    spread = _chosen_distribution(values)
    configs = [
        RunConfig(
            agent=agent.lower(),
            seed=seed,
            env_kwargs=_parse_kwargs(run.env_kwargs),
            options=values,
            distributed=spread,
            **{option.name: getattr(run, option.name) for option in options_of(Run)},
        )
        for seed in run.seeds
    ]
    parent = run.run_dir or Path("runs") / f"{agent.lower()}-{run.env.replace('/', '-')}"
    directories = [parent / f"seed-{seed}" for seed in run.seeds]
    _import_tensorflow()
    from tfdpg import runs

    for directory in directories:
        runs.check_free(directory)
    for directory, config in zip(directories, configs, strict=True):
        runs.start(directory, config)


def _chosen_distribution(values: dict[str, Any]) -> dict[str, Any] | None:
    """The options of `tfdpg.distributed.fit`, which are taken out of `values`; None without `--actors`.

    Raises:
        ValueError: an option without `--actors`, which all of them need.
    """
    from tfdpg.distributed.options import Distribution
    from tfdpg.options import options_of

    options = options_of(Distribution)
    chosen = {option.name: values.pop(option.name) for option in options}
    if chosen["actors"] is not None:
        return chosen
    for option in options:
        if option.name != "actors" and chosen[option.name] != option.default:
            raise ValueError(f"`--{option.name.replace('_', '-')}` needs `--actors`, the number of rollout workers.")
    return None


def _parse_kwargs(pairs: Sequence[str]) -> dict[str, Any]:
    kwargs = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise ValueError(f"`--env-kwargs` takes name=value pairs. Received: {pair!r}")
        try:
            kwargs[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            kwargs[name] = text
    return kwargs


def resume(run: Annotated[Path, tyro.conf.Positional], /, epochs: int | None = None, trusted: bool = False) -> None:
    """Go on with a run from its latest checkpoint.

    Args:
        run: the run directory.
        epochs: the epoch to stop at; the default is the run's own.
        trusted: import the modules, and use the replay directory, that its files name.
    """
    _import_tensorflow()
    from tfdpg import runs

    runs.resume(run, epochs, trusted)


def evaluate(
    path: Annotated[Path, tyro.conf.Positional],
    /,
    env: str | None = None,
    episodes: int = 10,
    checkpoint: str | None = None,
    render: bool = False,
    video: Path | None = None,
    max_ep_len: int | None = None,
    seed: int = 0,
    trusted: bool = False,
) -> None:
    """Run episodes without exploration noise, and print each return and length, then mean, std, max and min.

    Args:
        path: a run directory, or an exported model.
        env: id of the environment; the default is the run's own.
        episodes: how many.
        checkpoint: of a run: latest (the default), best, or the environment steps of a checkpoint.
        render: show the environment in a window.
        video: write all episodes to this file.
        max_ep_len: cut episodes after this many steps; the default is the environment's own limit.
        seed: fixes the initial states.
        trusted: import the modules, and use the replay directory, that the files name.
    """
    _import_tensorflow()
    from tfdpg import runs
    from tfdpg.filming import evaluation_env
    from tfdpg.training.evaluation import run_episodes, summarise

    policy, environment = runs.load_policy(path, checkpoint, trusted)
    with evaluation_env(environment, env, render=render, video=video, trusted=trusted) as environment:
        ended = []
        for episode in run_episodes(policy, environment, episodes, seed=seed, max_ep_len=max_ep_len):
            ended.append(episode)
            print(f"episode {len(ended)}: return {episode.episode_return:.3f}, length {episode.length}", flush=True)
    scores = summarise(ended)
    print(
        f"return: mean {scores['return']:.3f}, std {scores['return_std']:.3f}, "
        f"max {scores['return_max']:.3f}, min {scores['return_min']:.3f}; "
        f"length: mean {scores['episode_length']:.1f}"
    )


def export(
    run: Annotated[Path, tyro.conf.Positional],
    directory: Annotated[Path, tyro.conf.Positional],
    /,
    checkpoint: str = "best",
    trusted: bool = False,
) -> None:
    """Export the policy of a run as the next version of a model directory.

    Args:
        run: the run directory.
        directory: the model directory, as TensorFlow Serving takes it.
        checkpoint: best, latest, or the environment steps of a checkpoint.
        trusted: import the modules, and use the replay directory, that the files name.
    """
    _import_tensorflow()
    from tfdpg import runs

    print(f"exported {runs.export_policy(run, directory, checkpoint, trusted)}")


def inspect_export(path: Annotated[Path, tyro.conf.Positional], /) -> None:
    """Show what an exported model holds: its signatures, spaces, scores and versions.

    Args:
        path: a model directory, of which the newest version is shown, or a version's directory.
    """
    _import_tensorflow()
    from tfdpg.export import describe

    print(describe(path))


def plot(
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    out: Path = Path("curves.png"),
    x: str = "env_steps",
    y: str = "val_return",
    smooth: int = 1,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    separate: bool = False,
    title: str = "",
    label: tuple[str, ...] = (),
) -> None:
    """Plot learning curves; runs of one configuration together: from three on as mean and 95 % bootstrap interval.

    Args:
        run_dirs: run directories, or directories of run directories.
        out: the image to write: .png, .pdf, .svg, ...
        x: the column of progress.csv on the x axis.
        y: the column of progress.csv on the y axis.
        smooth: average over this many points.
        select: take only runs whose path contains one of these.
        exclude: leave out runs whose path contains one of these.
        separate: a curve for each run.
        title: stands above the picture.
        label: what the legend calls the curves, in their order; the default names what tells them apart.
    """
    from tfdpg import plotting

    named = {"title": title, "label": label}
    plotting.plot(run_dirs, out, x=x, y=y, smooth=smooth, select=select, exclude=exclude, separate=separate, **named)
    print(f"wrote {out}")
