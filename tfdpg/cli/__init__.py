"""The command line. Flags come from the options of what they set.

Nothing heavy is imported before it is known which command runs, so that `tfdpg --help` answers at once.
"""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import tyro

import tfdpg
from tfdpg.arguments import positive_int
from tfdpg.cli import run_paths as paths
from tfdpg.cli.exporting import convert, export
from tfdpg.cli.parsing import UsageError, deferred_call, parse
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.hints import did_you_mean

QUOTED = "'{}'"
USAGE = """\
usage: tfdpg COMMAND [OPTIONS]

Train continuous-control policies, evaluate them, and export them for TensorFlow Serving.

commands:
  train AGENT         train {agents} on an environment, in a run directory
  train --resume RUN  go on with a run, or with all runs in a directory
  check               look for what is wrong with an environment
  evaluate            run episodes with a trained or an exported policy
  export              export the policy of a run
  convert             write an exported model in another format
  inspect             show what an exported model holds
  serve               serve an exported model as TensorFlow Serving does, for development
  labels              give versions of an exported model labels, such as stable and canary
  plot                plot the learning curves of runs

`tfdpg --version` prints the version.
`tfdpg COMMAND --help` and `tfdpg train AGENT --help` show the options.
"""
TRAIN = """\
usage: tfdpg train AGENT --env ID [OPTIONS]
       tfdpg train --resume RUN [OPTIONS]

Train {agents} on an environment, in a run directory for each seed; or go on with runs.

used most, with an agent:
  --env ID             a registered Gymnasium environment, module:id or module:Class
  --epochs N           how many
  --steps-per-epoch N  environment steps in each
  --seeds N ...        a run for each
  --jobs N             how many run side by side
  --run-dir DIR        where the runs go; the default is runs/<agent>-<env>

with --resume:
  --epochs N           the epoch to stop at from now on
  --trusted            import and follow what the files of the run name

`tfdpg train AGENT --help` and `tfdpg train --resume RUN --help` show all options.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status. Errors of use, and warnings, are one line on standard error."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _one_line_warnings(warnings.showwarning)
            try:
                return _run_command_line(argv)
            finally:
                sys.stdout.flush()
    except BrokenPipeError as error:
        try:
            print(flush=True)
        except BrokenPipeError:  # whoever read has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        print(_error_text(error, str(error)), file=sys.stderr)
        return 1


def _one_line_warnings(show: Callable[..., None]) -> Callable[..., None]:
    """What shows a user's warnings on one line, and others as `show` does."""

    def shown(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            print(f"tfdpg: warning: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return shown


def _run_command_line(argv: Sequence[str] | None) -> int:
    command, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    commands: dict[str, Callable[[list[str]], int | None]] = {
        "train": _train,
        "check": _check,
        "evaluate": lambda args: parse(deferred_call(evaluate), args, "tfdpg evaluate")(),
        "export": lambda args: parse(deferred_call(export), args, "tfdpg export")(),
        "convert": lambda args: parse(deferred_call(convert), args, "tfdpg convert")(),
        "inspect": lambda args: parse(deferred_call(inspect_export), args, "tfdpg inspect")(),
        "serve": _serve,
        "labels": _labels,
        "plot": lambda args: parse(deferred_call(plot), args, "tfdpg plot")(),
    }
    if command in ("-h", "--help"):
        print(_usage(), end="")
        return 0
    if command == "--version":
        print(f"tfdpg {tfdpg.__version__}")
        return 0
    if command not in commands:
        meant = did_you_mean(command, commands, QUOTED)
        print(f"tfdpg: there is no command {command!r}.{meant}\n\n{_usage()}", end="", file=sys.stderr)
        return 2
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the user's modules are where the command is run
    return _run_command(commands[command], rest)


def _run_command(command: Callable[[list[str]], int | None], words: list[str]) -> int:
    """Runs a command, and tells what went wrong."""
    try:
        return command(words) or 0
    except UsageError as error:
        print(f"tfdpg: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"\n{_error_text(error, str(error) or 'interrupted')}", file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            print(_error_text(error, "ended by SIGTERM."), file=sys.stderr)
        raise
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        print(_error_text(error, str(error)), file=sys.stderr)
        return 1
    except Exception as error:  # of an environment's or a network's own code: where it was raised helps
        print(_error_text(error, f"{type(error).__name__}: {error}"), file=sys.stderr)
        traceback.print_exc()
        return 1


def _error_text(error: BaseException, message: str) -> str:
    """What went wrong on one line, and a line for each note."""
    return "\n".join([f"tfdpg: {message}", *getattr(error, "__notes__", ())])


def _usage(text: str = USAGE) -> str:
    from tfdpg.agents import AGENTS

    return text.format(agents="|".join(name.lower() for name in AGENTS))


def _check(argv: list[str]) -> int:
    from tfdpg.checking.command import check

    plain = {"env": "the environment goes in plainly: tfdpg check ENV"}
    return parse(deferred_call(check), argv, "tfdpg check", plain)()


def _serve(argv: list[str]) -> None:
    from tfdpg.serve.command import serve

    parse(deferred_call(serve), argv, "tfdpg serve")()


def _labels(argv: list[str]) -> None:
    from tfdpg.serve.command import labels

    parse(deferred_call(labels), argv, "tfdpg labels")()


def _train(argv: list[str]) -> None:
    from tfdpg.agents import AGENTS

    known = [name.lower() for name in AGENTS]
    if argv in (["-h"], ["--help"], []):
        print(_usage(TRAIN), end="")
        return
    if "--resume" in argv[1:]:
        raise UsageError("`--resume RUN` comes first: tfdpg train --resume RUN [--epochs N]")
    if argv[0].lower() not in (*known, "--resume"):
        agents = f"Agents: {', '.join(known)}; to go on with a run: --resume RUN"
        raise UsageError(f"there is no agent {argv[0]!r}.{did_you_mean(argv[0].lower(), known, QUOTED)}\n{agents}")
    from tfdpg.cli.training import resume, train

    if argv[0] == "--resume":
        resume(argv[1:])
    else:
        train(argv[0], argv[1:])


def evaluate(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")],
    /,
    env: str | None = None,
    episodes: int = 10,
    checkpoint: str | None = None,
    render: bool = False,
    video: Path | None = None,
    max_ep_len: int | None = None,
    seed: int = 0,
    trusted: bool = False,
    json: bool = False,
) -> None:
    """Run episodes without exploration noise, and print each return and length, then mean, std, max and min.

    Args:
        path: a run directory, or an exported model.
        env: id of the environment; the default is the run's own.
        episodes: how many.
        checkpoint: of a run: latest (the default), best, or the environment steps of a checkpoint.
        render: show the environment in a window.
        video: write all episodes to this file, whose name ends with .mp4, .mkv, .mov, .avi or .gif.
        max_ep_len: cut episodes after this many steps; the default is the environment's own limit.
        seed: fixes the initial states.
        trusted: import the modules, follow the links and the replay directory that the files name, and load an exported
            model whatever its operations do.
        json: print one JSON object with the scores, and the return and length of each episode, instead of text.
    """
    from tfdpg.cli import video_recording

    paths.check_policy(path)
    if max_ep_len is not None:
        positive_int("max_ep_len", max_ep_len)
    video_recording.check(render, video)
    import_tensorflow()
    from tfdpg.cli import runs
    from tfdpg.training.evaluation import run_episodes, summarise

    policy, environment = runs.load_policy(path, checkpoint, trusted)
    file = path / "run.json" if paths.is_run(path) else path
    rendering = {"render": render, "video": video, "trusted": trusted, "file": file}
    with video_recording.evaluation_env(environment, env, **rendering) as environment:
        ended = []
        for episode in run_episodes(policy, environment, episodes, seed=seed, max_ep_len=max_ep_len):
            ended.append(episode)
            if not json:
                print(f"episode {len(ended)}: return {episode.episode_return:.3f}, length {episode.length}", flush=True)
    scores = summarise(ended)
    if json:
        returns = [float(episode.episode_return) for episode in ended]
        print(dumps({**scores, "episodes": len(ended), "returns": returns, "lengths": [each.length for each in ended]}))
        return
    print(
        f"return: mean {scores['return']:.3f}, std {scores['return_std']:.3f}, "
        f"max {scores['return_max']:.3f}, min {scores['return_min']:.3f}; "
        f"length: mean {scores['episode_length']:.1f}"
    )
    if video is not None:
        print(f"wrote {video}")


def inspect_export(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    /,
    trusted: bool = False,
    json: bool = False,
) -> None:
    """Show what an exported model holds: its signatures, spaces, scores and versions.

    Args:
        path: a model directory, of which the newest version is shown, or a version's directory.
        trusted: load the model whatever its operations do.
        json: print one JSON object, which is the model's tfdpg.json without checksums and with its directory.
    """
    paths.check_model(path)
    if json:
        from tfdpg.exported.versions import latest_version, metadata

        version = latest_version(path)
        facts = {name: value for name, value in metadata(version).items() if name not in ("files", "sha256")}
        print(dumps({"directory": str(version), **facts}))
        return
    import_tensorflow()
    from tfdpg.export import describe

    print(describe(path, trusted))


def plot(
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    out: Path = Path("curves.png"),
    x: str = "env_steps",
    y: str = "val_return",
    smooth: int = 1,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    separate: bool = False,
    aggregate: bool = False,
    normalize: tuple[str, ...] = (),
    title: str = "",
    label: tuple[str, ...] = (),
) -> None:
    """Plot learning curves; from three runs of one configuration on, their mean and its 95 % confidence interval.

    Args:
        run_dirs: run directories, files of results that begin with `# tfdpg train ...`, or directories of them.
        out: the image to write: .png, .pdf, .svg, ...
        x: the column of progress.csv on the x axis.
        y: the column of progress.csv on the y axis.
        smooth: average over this many points.
        select: take only runs whose path contains one of these.
        exclude: leave out runs whose path contains one of these.
        separate: a curve for each run.
        aggregate: pool the environments of a configuration, as interquartile mean with 95 % bootstrap interval.
        normalize: the returns that are 0 and 1 in a pooled environment, as ENV=LOW:HIGH; the default is random actions
            and TD3 after 1,000,000 steps for Ant, HalfCheetah, Hopper, Humanoid and Walker2d.
        title: stands above the picture.
        label: what the legend calls the curves, in their order; the default names what tells them apart.
    """
    from tfdpg.cli import plotting

    chosen: dict[str, Any] = {"smooth": smooth, "select": select, "exclude": exclude, "separate": separate}
    chosen |= {"aggregate": aggregate, "normalize": normalize, "title": title, "label": label}
    plotting.plot(run_dirs, out, x=x, y=y, **chosen)
    print(f"wrote {out}")
