"""Random command lines: they do it, or say on one line what is wrong with them."""

import contextlib
import functools
import io
import shutil
import typing
from pathlib import Path

import gymnasium as gym
import numpy as np

import tests.environments  # noqa: F401 (registers an environment)
import tfdpg
from tests.agents.roster import SMALL
from tests.fuzz.damage import picked
from tests.fuzz.exports import version
from tests.fuzz.saved import HELD, play
from tfdpg import cli
from tfdpg.checking.command import check
from tfdpg.cli import commands
from tfdpg.cli.parsing import flags_of
from tfdpg.cli.run_options import resume_flags, training_flags
from tfdpg.cli.training import parse_training_flags
from tfdpg.formats.command import convert
from tfdpg.plotting.command import plot
from tfdpg.serve.command import labels, serve

COMMANDS: dict = {"train": None, "resume": None, "check": (check, 1), "evaluate": (commands.evaluate, 1)}
COMMANDS |= {"export": (commands.export, 2), "convert": (convert, 2), "inspect": (commands.inspect_export, 1)}
COMMANDS |= {"serve": (serve, 1), "labels": (labels, 2), "plot": (plot, 2)}
"""What they call, and how many words they take that are no flags."""
USED = [*COMMANDS, "train", "train", "train", "resume", "export", "evaluate", "convert"]
CAPS = {"epochs": 1, "steps-per-epoch": 20, "validation-episodes": 1, "max-ep-len": 10, "episodes": 1, "steps": 30}
CAPS |= {"hidden-units": 4, "batch-size": 4, "update-after": 1000, "replay-size": 500, "verbose": 0, "n-steps": 5}
CAPS |= {"replay-start": 400}
"""Flags that are given where a command has them, so that none takes long."""
ENVS = ["tfdpg-test/Counter-v0"] * 4 + ["Pendulum-v1", "CartPole-v1", "Nope-v0", "tests.environments:Counter", "", ":"]
ENVS += ["tests.environments:Nope", "nope:Nope", "tests.broken:OldStep", "tests.broken:NotFinite", "a:b:c", "a/b/c"]
PATHS = ["run", "runs", "model", "model/1", "lstm", "damaged", "broken", "empty", "file.txt", "nope", "run/best", "."]
PATHS += ["run/checkpoints", "run/checkpoints/20", "", "\0", "file.txt/x", "/dev/null", "new", "new/deeper", "~"]
NUMBERS = ["0", "1", "2", "3", "-1", "0.5", "1.5", "-0.1", "nan", "inf", "1e-3", "1e400", "x", "", "None", "True"]
WORDS = [
    *NUMBERS,
    "auto",
    "a=b",
    "a=",
    "=",
    "stable=1",
    "stable=9",
    "length=3",
    "curves.png",
    "curves.xyz",
    "video.mp4",
]
WORDS += ["--", "-", "--x", "--=", "-h", "--help", "--version", "--env=", "é", "\ud83d", "a b", "a" * 3000, "--no-env"]
LABELS = ["stable=1", "stable=9", "=", "x", "a=1 b=1", "\0=1"]
FEW = {"jobs": ["1", "0", "x"], "actors": ["0", "-1", "x"], "num-envs": ["1", "2", "0", "x"]}
"""The values of flags that start processes."""


@functools.cache
def sandbox():
    """A directory with what commands take, sound and damaged."""
    root = Path(HELD.name) / "sandbox"
    (root / "empty").mkdir(parents=True)
    (root / "file.txt").write_text("precious\n")
    for name, model in (("model", "ddpg-pendulum"), ("lstm", "td3-lstm-pendulum"), ("run/best", "ddpg-pendulum")):
        shutil.copytree(version(model), root / name / "1")
    agent = play(tfdpg.DDPG("Pendulum-v1", **SMALL), gym.make("Pendulum-v1"), 20)
    agent.save(root / "run/checkpoints/20")
    words = "--env Pendulum-v1 --hidden-units 8 --batch-size 8 --replay-size 500 --epochs 1"
    parse_training_flags("ddpg", words.split())[1][0].write(root / "run")
    (root / "run/progress.csv").write_text("epoch,env_steps,val_return\n0,20,1.5\n1,40,2.5\n")
    for copy in ("damaged", "broken", "runs/seed-0"):
        shutil.copytree(root / "run", root / copy)
    (root / "damaged/checkpoints/20/variables.npz").write_bytes(b"PK")
    (root / "damaged/best/1/tfdpg.json").write_text("{")
    (root / "damaged/progress.csv").write_text("epoch,val_return\n0,x\n,\n")
    (root / "broken/run.json").write_text('{"agent": 3}')
    return root


def _values(rng, name, kind, is_wild):
    """Values of a flag: of its type, or any."""
    if name in FEW or name == "env":
        known = FEW.get(name, ENVS)
        return [picked(rng, known if is_wild else known[: 6 if name == "env" else 1])]
    if is_wild and rng.random() < 0.4:
        return [picked(rng, [*WORDS, *PATHS]) for _ in range(rng.integers(3))]
    text = str(kind)
    literals = _literals(kind)
    if kind is bool or (literals and rng.random() < 0.8):
        return [str(picked(rng, literals))] if literals else []
    good = PATHS if "Path" in text else WORDS
    if "float" in text or "int" in text:
        good = NUMBERS if is_wild else ["0.5", "0.9", "1"] if "float" in text else ["1", "2", "3", "7"]
    return [picked(rng, good)]


def _literals(kind):
    parts = typing.get_args(kind)
    is_literal = typing.get_origin(kind) is typing.Literal
    return [value for part in parts for value in ([part] if is_literal else _literals(part))]


def _path(rng, command, is_wild):
    runs = ["run", "run", "runs/seed-0", "damaged", "runs"]
    models = ["model", "model/1", "lstm", "run/best"]
    if command == "check":
        return picked(rng, ENVS if is_wild else ENVS[:6])
    right = {"resume": runs, "export": runs, "plot": runs, "evaluate": runs + models}.get(command, models)
    return picked(rng, PATHS if is_wild and rng.random() < 0.6 else right)


def _positional(rng, command, is_wild):
    count = COMMANDS[command][1] + (rng.integers(-1, 2) if is_wild and rng.random() < 0.2 else 0)
    words = [_path(rng, command, is_wild) for _ in range(count)]
    if count > 1 and command != "plot":
        words[1] = picked(rng, LABELS if command == "labels" else ["new", "new/deeper", *PATHS])
    return words + (["--format", picked(rng, ["c"] * 8 + ["onnx", "litert"])] if command == "convert" else [])


def random_arguments(rng):
    """A command line: half of them are such as people type, with another value here and there."""
    command = picked(rng, USED)
    agent = picked(rng, ["ddpg", "td3", "d4pg", "acer"])
    is_wild = bool(rng.random() < 0.5)
    chosen = []
    if command == "train":
        flags = flags_of(training_flags(agent))
        chosen = [] if is_wild and rng.random() < 0.1 else ["env"]
        line = ["train", picked(rng, [agent, agent, agent, "TD3", "sac", "", "--env"]) if is_wild else agent]
    elif command == "resume":
        flags = flags_of(resume_flags(None))
        line = ["train", "--resume", _path(rng, command, is_wild)]
    else:
        flags = flags_of(COMMANDS[command][0])
        line = [command, *_positional(rng, command, is_wild)]
    others = [name for name in flags if name not in chosen and (is_wild or name != "actors")]
    for name in [*chosen, *rng.permutation(others)[: rng.integers(5 if is_wild else 4)]]:
        given = _values(rng, name, flags[name], is_wild)
        flag = f"--{'no-' * (flags[name] is bool and rng.random() < 0.3)}{name}"
        line += ["=".join([flag, *given])] if rng.random() < 0.1 else [flag, *given]
    if is_wild and rng.random() < 0.4:
        _misspell(rng, line)
    given = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in line}
    line += [word for name in sorted((CAPS.keys() & flags.keys()) - given) for word in (f"--{name}", str(CAPS[name]))]
    # a server that finds its model would serve for ever
    return line + (["--port", "70000"] if "serve" in line and not {"-h", "--help"} & set(line) else [])


def _misspell(rng, words):
    place, other, cut = rng.integers(len(words), size=3)
    word = words[place]
    match rng.integers(4):
        case 0:
            del words[place]
        case 1:
            words.insert(place, picked(rng, [word, *WORDS]))
        case 2:
            words[place] = words[other]
            words[other] = word
        case _ if not word.lstrip("-").isdigit():
            words[place] = word[:cut] + word[cut + 1 :]


def case(number, place, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
    shutil.copytree(sandbox(), place / "work")
    words = random_arguments(np.random.default_rng([3, number]))
    out = io.StringIO()
    err = io.StringIO()
    done.append(str(words)[:500])
    with contextlib.chdir(place / "work"), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(words)
        except SystemExit as end:  # after the help
            status = end.code or 0
    shown = err.getvalue()[-3000:]
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("tfdpg: warning: ")]
    assert status in (0, 1, 2, 3) and "Traceback" not in shown, f"{status}: {shown}"
    if status in (1, 3) and words[0] != "check":
        assert len(lines) == 1 and lines[0].startswith("tfdpg: ") and len(lines[0]) > 12, shown
    elif status == 2:
        assert lines[0].startswith("tfdpg: ") and (len(lines) <= 2 or "usage: tfdpg" in shown), shown
    return f"status-{status}"
