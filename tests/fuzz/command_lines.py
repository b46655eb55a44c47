"""Random command lines: they do it, or say on one line what is wrong with them."""

import contextlib
import functools
import io
import os
import shutil
import typing

import numpy as np

import tests.environments  # noqa: F401 (registers an environment)
import tfdpg
from tests.agents.roster import SMALL
from tests.fuzz.damage import picked
from tests.fuzz.exports import version
from tests.fuzz.outcome import within_bounds
from tests.fuzz.saved import place
from tfdpg import cli, runs
from tfdpg.checking.command import check
from tfdpg.cli.flags import resume_flags, training_flags
from tfdpg.cli.parsing import flags_of
from tfdpg.cli.training import configured
from tfdpg.serve.command import labels, serve

COMMANDS: dict = {
    "train": None,
    "resume": None,
    "check": (check, 1),
    "evaluate": (cli.evaluate, 1),
    "export": (cli.export, 2),
    "convert": (cli.convert, 2),
    "inspect": (cli.inspect_export, 1),
    "serve": (serve, 1),
    "labels": (labels, 2),
    "plot": (cli.plot, 2),
}
"""What they call, and how many words they take that are no flags."""
USED = [*COMMANDS, "train", "train", "train", "resume", "export", "evaluate", "convert"]
"""The commands, those that do much more often."""
CAPS = {"epochs": 1, "steps-per-epoch": 20, "validation-episodes": 1, "max-ep-len": 10, "episodes": 1, "steps": 30}
CAPS |= {"hidden-units": 4, "batch-size": 4, "update-after": 1000, "replay-size": 500, "verbose": 0, "n-steps": 5}
CAPS |= {"replay-start": 400}
"""Flags that are given where a command has them, so that none takes long."""
ENVS = ["tfdpg-test/Counter-v0"] * 4 + ["Pendulum-v1", "CartPole-v1", "Nope-v0", "tests.environments:Counter", "", ":"]
ENVS += ["tests.environments:Nope", "nope:Nope", "tests.broken:OldStep", "tests.broken:NotFinite", "a:b:c", "a/b/c"]
PATHS = ["run", "runs", "model", "model/1", "lstm", "damaged", "broken", "empty", "file.txt", "nope", "run/best", "."]
PATHS += ["run/checkpoints", "run/checkpoints/20", "", "\0", "file.txt/x", "/dev/null", "new", "new/deeper", "~"]
NUMBERS = ["0", "1", "2", "3", "-1", "0.5", "1.5", "-0.1", "nan", "inf", "1e-3", "1e400", "x", "", "None", "True"]
WORDS = [*NUMBERS, "auto", "a=b", "a=", "=", "stable=1", "stable=9", "length=3", "curves.png", "curves.xyz", "film.mp4"]
WORDS += ["--", "-", "--x", "--=", "-h", "--help", "--version", "--env=", "é", "\ud83d", "a b", "a" * 3000, "--no-env"]
FEW = {"jobs": ["1", "0", "x"], "actors": ["0", "-1", "x"], "num-envs": ["1", "2", "0", "x"]}
"""The values of flags that start processes."""


@functools.cache
def sandbox():
    """A directory with what commands take, sound and damaged."""
    root = place() / "sandbox"
    (root / "empty").mkdir(parents=True)
    (root / "file.txt").write_text("precious\n")
    for name, model in (("model", "ddpg-pendulum"), ("lstm", "td3-lstm-pendulum"), ("run/best", "ddpg-pendulum")):
        shutil.copytree(version(model), root / name / "1")
    words = ["--env", "Pendulum-v1", "--hidden-units", "8", "--batch-size", "8", "--replay-size", "500"]
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL)
    agent.save(root / "run/checkpoints/20")
    runs._write_config(root / "run", configured("ddpg", [*words, "--epochs", "1"])[1][0])
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
    if name in FEW:
        return [picked(rng, FEW[name] if is_wild else FEW[name][:1])]
    if name == "env":
        return [picked(rng, ENVS if is_wild else ENVS[:6])]
    if is_wild and rng.random() < 0.4:
        return [picked(rng, [*WORDS, *PATHS]) for _ in range(rng.integers(3))]
    if kind is bool:
        return []
    text, literals = str(kind), _literals(kind)
    if literals and rng.random() < 0.8:
        return [str(picked(rng, literals))]
    good = PATHS if "Path" in text else WORDS
    if "float" in text or "int" in text:
        good = NUMBERS if is_wild else ["0.5", "0.9", "1"] if "float" in text else ["1", "2", "3", "7"]
    return [picked(rng, good)]


def _literals(kind):
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return list(parts)
    return [value for part in parts for value in _literals(part)]


def _path(rng, command, is_wild):
    runs, models = ["run", "run", "runs/seed-0", "damaged", "runs"], ["model", "model/1", "lstm", "run/best"]
    right = {"resume": runs, "export": runs, "plot": runs, "evaluate": runs + models}.get(command, models)
    return picked(rng, PATHS if is_wild and rng.random() < 0.6 else right)


def _positional(rng, command, count, is_wild):
    if command == "check":
        return [picked(rng, ENVS if is_wild else ENVS[:6])]
    count += rng.integers(-1, 2) if is_wild and rng.random() < 0.2 else 0
    words = [_path(rng, command, is_wild) for _ in range(count)]
    if len(words) > 1 and command in ("export", "convert"):
        words[1] = picked(rng, ["new", "new/deeper", *PATHS])
    if len(words) > 1 and command == "labels":
        words[1] = picked(rng, ["stable=1", "stable=9", "=", "x", "a=1 b=1", "\0=1"])
    return words


def words_of(rng):
    """A command line: half of them are such as people type, with another value here and there."""
    command, is_wild = picked(rng, USED), bool(rng.random() < 0.5)
    if command in ("train", "resume"):
        agent = picked(rng, ["ddpg", "td3", "d4pg", "acer"])
        flags = flags_of(training_flags(agent) if command == "train" else resume_flags(None))
        shown = picked(rng, [agent, agent, agent, "TD3", "sac", "", "--env"]) if is_wild else agent
        words = ["train", shown] if command == "train" else ["train", "--resume", _path(rng, command, is_wild)]
        chosen = ["env"] if command == "train" and not (is_wild and rng.random() < 0.1) else []
    else:
        target, count = COMMANDS[command]
        flags, chosen, words = flags_of(target), [], [command, *_positional(rng, command, count, is_wild)]
        if command == "convert":
            words += ["--format", picked(rng, ["c"] * 8 + ["onnx", "litert"])]
    others = [name for name in flags if name not in chosen and (is_wild or name != "actors")]
    chosen += list(rng.permutation(others)[: rng.integers(5 if is_wild else 4)])
    for name in chosen:
        given = _values(rng, name, flags[name], is_wild)
        if len(given) == 1 and rng.random() < 0.1:
            words.append(f"--{name}={given[0]}")
        else:
            words += [f"--{'no-' * (flags[name] is bool and rng.random() < 0.3)}{name}", *given]
    if is_wild and rng.random() < 0.4:
        _misspell(rng, words)
    given = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words}
    words += [word for name in sorted((CAPS.keys() & flags.keys()) - given) for word in (f"--{name}", str(CAPS[name]))]
    if "serve" in words and not {"-h", "--help"} & set(words):
        words += ["--port", "70000"]  # it would serve for ever
    return words


def _misspell(rng, words):
    place = rng.integers(len(words))
    match picked(rng, ["drop", "double", "swap", "insert", "letter"]):
        case "drop":
            del words[place]
        case "double":
            words.insert(place, words[place])
        case "swap":
            other = rng.integers(len(words))
            words[place], words[other] = words[other], words[place]
        case "insert":
            words.insert(place, picked(rng, WORDS))
        case "letter" if len(words[place]) > 1 and not words[place].lstrip("-").isdigit():
            cut = rng.integers(len(words[place]))
            words[place] = words[place][:cut] + words[place][cut + 1 :]


def case(number, directory, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
    shutil.copytree(sandbox(), directory / "work")
    words = words_of(np.random.default_rng([3, number]))
    done.append(str(words)[:500])
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    os.chdir(directory / "work")
    try:
        with within_bounds(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main(words)
            except SystemExit as end:  # after the help
                status = end.code or 0
    finally:
        os.chdir(before)
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("tfdpg: warning: ")]
    shown = err.getvalue()[-3000:]
    assert status in (0, 1, 2) and "Traceback" not in shown, f"{status}: {shown}"
    if status == 1 and words[0] != "check":
        assert len(lines) == 1 and lines[0].startswith("tfdpg: ") and len(lines[0]) > 12, shown
    elif status == 2:
        assert lines[0].startswith("tfdpg: ") and (len(lines) <= 2 or "usage: tfdpg" in shown), shown
    return f"status-{status}"
