"""The command line `tfdpg`. The flags of a command are the parameters of a function, or the options of what it trains.

A companion of the core, and the user of all others. A command is a function that `FUNCTIONS` names; those of runs and
exported models are here, and use `agents`, `training`, `options`, `exported` and `export`; each other companion has its
own. Large libraries are imported only when a command needs them, so that `tfdpg --help` responds immediately.
"""

import os
import pkgutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tfdpg
from tfdpg.cli.parsing import UsageError, deferred_call, parse
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.hints import did_you_mean

DIVERGED = 3
"""The exit status when training diverged."""
QUOTED = "'{}'"
USAGE = """\
usage: tfdpg COMMAND [OPTIONS]

Train continuous-control policies, evaluate them, and export them for TensorFlow Serving.

commands:
  train AGENT         train {agents} on an environment, in a run directory
  train --resume RUN  resume a run, or all runs in a directory
  tune AGENT          search for the options with the highest return
  check               look for problems of an environment
  diagnose            find out why a run does not learn
  evaluate            run episodes with a trained or an exported policy
  compare             compare two policies in the same episodes
  export              export the policy of a run
  convert             write an exported model in another format
  verify              check an exported model where it is deployed
  inspect             describe an exported model
  serve               serve an exported model as TensorFlow Serving does, for development
  labels              assign labels such as stable and canary to versions of an exported model
  drift               find out whether logged observations differ from the training data
  plot                plot the learning curves of runs

`tfdpg --version` prints the version.
`tfdpg COMMAND --help`, `tfdpg train AGENT --help` and `tfdpg tune AGENT --help` list the options.
"""
TRAIN = """\
usage: tfdpg train AGENT --env ID [OPTIONS]
       tfdpg train --resume RUN [OPTIONS]

Train {agents} on an environment, in one run directory for each seed; or resume runs.

common options with an agent:
  --env ID             a registered Gymnasium environment, module:id or module:Class
  --epochs N           number of epochs
  --minutes N          time budget of each run, instead of a number of epochs or in addition to it
  --steps-per-epoch N  environment steps per epoch
  --seeds N ...        seeds; each makes one run
  --sweep NAME=V,V ... options to vary; all combinations are trained with each seed
  --jobs N             number of runs to train at the same time
  --run-dir DIR        parent of the run directories; the default is runs/<agent>-<env>

with --resume:
  --epochs N           the epoch to stop at
  --minutes N          time budget, including the minutes that the run has been trained for
  --trusted            import and follow what the files of the run name

`tfdpg train AGENT --help` and `tfdpg train --resume RUN --help` list all options.
"""
TUNE = """\
usage: tfdpg tune AGENT --env ID [OPTIONS]

Search for the options of an agent with the highest return: {agents}. Each trial is a run.
The same command resumes a search.

common options:
  --env ID             a registered Gymnasium environment, module:id or module:Class
  --epochs N           number of epochs of each trial
  --steps-per-epoch N  environment steps per epoch
  --search NAME ...    options to search
  --trials N           number of trials
  --minutes N          minutes after which the search ends
  --jobs N             number of trials to train at the same time

`tfdpg tune AGENT --help` lists all options.
"""
FUNCTIONS = {
    "check": "tfdpg.checking.command:check",
    "diagnose": "tfdpg.diagnosis.command:diagnose",
    "evaluate": "tfdpg.cli.commands:evaluate",
    "compare": "tfdpg.cli.comparing:compare",
    "export": "tfdpg.cli.commands:export",
    "convert": "tfdpg.formats.command:convert",
    "verify": "tfdpg.formats.command:verify",
    "inspect": "tfdpg.cli.commands:inspect_export",
    "serve": "tfdpg.serve.command:serve",
    "labels": "tfdpg.serve.command:labels",
    "drift": "tfdpg.diagnosis.drift_command:drift",
    "plot": "tfdpg.plotting.command:plot",
}
"""The function of each command except `train` and `tune`, as module:function."""
REFUSED = {"check": {"env": "`check` takes the environment without a flag: tfdpg check ENV"}}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status. Errors and warnings are written to standard error, one per line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _short_warnings(warnings.showwarning)
            try:
                return _run_command_line(argv)
            finally:
                sys.stdout.flush()
    except BrokenPipeError as error:
        try:
            print(flush=True)
        except BrokenPipeError:  # the program that reads the output has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return _report_error(error, str(error))


def _short_warnings(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that shows a `UserWarning` on one line, and other warnings as `show` does."""

    def show_warning(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, UserWarning):
            print(f"tfdpg: warning: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            show(message, category, *args, **kwargs)

    return show_warning


def _run_command_line(argv: Sequence[str] | None) -> int:
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(_usage(USAGE), end="")
        return 0
    if command == "--version":
        print(f"tfdpg {tfdpg.__version__}")
        return 0
    commands = ["train", "tune", *FUNCTIONS]
    if command not in commands:
        meant = did_you_mean(command, commands, QUOTED)
        print(f"tfdpg: there is no command {command!r}.{meant}\n\n{_usage(USAGE)}", end="", file=sys.stderr)
        return 2
    return _run_command(command, arguments)


def _run_command(command: str, arguments: list[str]) -> int:
    """Run a command and return the exit status. Report exceptions on standard error."""
    try:
        if command in ("train", "tune"):
            return _train_or_tune(command, arguments)
        function = pkgutil.resolve_name(FUNCTIONS[command])
        return parse(deferred_call(function), arguments, f"tfdpg {command}", REFUSED.get(command, {}))() or 0
    except UsageError as error:
        return _report_error(error, str(error), 2)
    except KeyboardInterrupt as error:
        print(file=sys.stderr)  # ends the line on which the terminal shows ^C
        return _report_error(error, str(error) or "interrupted", 130)
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            _report_error(error, "ended by SIGTERM.")
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        return report_failure(error)


def report_failure(error: Exception) -> int:
    """Report why a command or a run failed on standard error, and return its exit status."""
    if isinstance(error, (ValueError, OSError, ImportError, RuntimeError, FloatingPointError)):
        return _report_error(error, str(error), DIVERGED if isinstance(error, FloatingPointError) else 1)
    status = _report_error(error, f"{type(error).__name__}: {error}")
    traceback.print_exception(error)  # raised by the user's environment or network
    return status


def _report_error(error: BaseException, message: str, status: int = 1) -> int:
    """Print an error message and the notes of the exception, each on its own line, and return the exit status."""
    print("\n".join([f"tfdpg: {message}", *getattr(error, "__notes__", ())]), file=sys.stderr)
    return status


def _usage(text: str) -> str:
    from tfdpg.agents import AGENTS

    return text.format(agents="|".join(name.lower() for name in AGENTS))


def _train_or_tune(command: str, arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"], []):
        print(_usage(TRAIN if command == "train" else TUNE), end="")
        return 0
    if command == "tune":
        pkgutil.resolve_name("tfdpg.tuning.command:tune")(_agent_name(arguments[0]), arguments[1:])
        return 0
    if "--resume" in arguments[1:]:
        raise UsageError("`--resume RUN` comes first: tfdpg train --resume RUN [--epochs N]")
    from tfdpg.cli.training import resume, train

    if arguments[0] == "--resume":
        resume(arguments[1:])
    else:
        train(_agent_name(arguments[0], " To resume a run: --resume RUN"), arguments[1:])
    return 0


def _agent_name(given: str, remark: str = "") -> str:
    """Return the full name of an algorithm. One in a user's own file is imported: naming it is the user's consent.

    Raises:
        UsageError: there is no agent with this name. The message ends with the remark.
    """
    from tfdpg.agents import classes

    if classes.is_external(given):
        import_tensorflow()
        classes.import_agent(given)
        return classes.full_name(given)
    known = [each.lower() for each in classes.AGENTS]
    if given.lower() not in known:
        meant = did_you_mean(given.lower(), known, QUOTED)
        names = f"{', '.join(known)}, and module:Class or file.py:Class for one of your own."
        raise UsageError(f"there is no agent {given!r}.{meant}\nAgents: {names}{remark}")
    return given.lower()
