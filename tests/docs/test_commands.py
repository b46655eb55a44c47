"""The real command lines accept every command of the pages; commands that need nothing else are run.

Bash runs the blocks; `tfdpg`, `ray`, `python` and the other programs are replaced by scripts that log their arguments.
"""

import configparser
import functools
import inspect
import os
import re
import subprocess
from pathlib import Path

import pytest
import tyro

from tests.agents.roster import brief
from tests.docs.pages import PAGES, ROOT, fences, found_on, module, spans, table
from tests.docs.substitutions import FLAGS, NOT_RUN, prepare
from tfdpg import cli, environments
from tfdpg.agents import AGENTS
from tfdpg.agents.classes import import_agent, is_external
from tfdpg.checking.command import check as check_environment
from tfdpg.cli import commands
from tfdpg.cli.comparing import compare
from tfdpg.cli.parsing import flags_of
from tfdpg.cli.run_options import resume_flags, training_flags
from tfdpg.diagnosis.command import diagnose
from tfdpg.diagnosis.drift_command import drift
from tfdpg.formats.command import convert, verify
from tfdpg.plotting.command import plot
from tfdpg.serve.command import labels, serve
from tfdpg.tuning.command import parse_tune_flags, tune_flags
from tfdpg.tuning.space import dimensions

PROGRAMS = ("tfdpg", "ray", "python", "python3", "pip", "sphinx-build", "docker", "tensorboard")
NOTE = '#!/bin/bash\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n"; } >> "$NOTES"\n'
COMMANDS = {
    "check": check_environment,
    "evaluate": commands.evaluate,
    "export": commands.export,
    "convert": convert,
}
COMMANDS |= {"compare": compare, "diagnose": diagnose, "inspect": commands.inspect_export, "plot": plot}
COMMANDS |= {"serve": serve, "labels": labels, "verify": verify, "drift": drift}
MODEL_SERVER = {"allow_version_labels_for_unavailable_models", "enable_batching", "model_config_file"}
"""Flags of TensorFlow Serving."""
TRAINING = {name.lower() for name in AGENTS}
BLOCKS = [(page, block) for page in PAGES for block in fences(page, "sh")]
ALONE = [(page, block) for page, block in BLOCKS if page != "docs/production.md"]
"""The blocks that do not depend on each other; test_production.py runs the others in their order."""


def called(code, directory):
    """Return the arguments of each command that a block of shell code calls, in order."""
    directories = [directory / "programs", directory / ".venv/bin"]
    for place in directories:
        place.mkdir(parents=True)
        for program in PROGRAMS:
            (place / program).write_text(NOTE)
            (place / program).chmod(0o755)
    notes = directory / "notes"
    environment = {"PATH": f"{directories[0]}:{os.environ['PATH']}", "NOTES": str(notes)}
    subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=directory, env=environment, check=True)
    return [line.split("\0")[:-1] for line in notes.read_text().splitlines()]


def echo(function):
    """Return a function with the signature of another that returns its arguments."""
    return functools.wraps(function)(lambda *args, **kwargs: (args, kwargs))


def parse(command, *words):
    """Parse a command line with the parsers of `tfdpg`, which exit on errors."""
    if command == "tune":
        search, config = parse_tune_flags(words[0], words[1:])
        return dimensions(config, search.search)
    if command != "train":
        return tyro.cli(echo(COMMANDS[command]), args=words)
    if words[0] == "--resume":
        return tyro.cli(resume_flags(None), args=words[2:])
    if is_external(words[0]):
        import_agent(words[0])
    options = tyro.cli(training_flags(words[0]), args=words[1:])
    if not options.environment.env.startswith(("dm_control/", "gymnasium_robotics:")):
        environments.maker(options.environment.env)
    return options


@functools.cache
def flags(agent):
    """Return the names of the training flags of an agent."""
    return {flag.replace("-", "_") for flag in flags_of(training_flags(agent))}


def setup():
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read(ROOT / "setup.cfg")
    return parsed


def check(program, words):
    match program, words:
        case "tfdpg", _:
            parse(*words)
        case "ray", _:
            import click
            from ray.scripts.scripts import cli as ray

            name, command, rest = ray.resolve_command(click.Context(ray), words)
            command.make_context(name, rest)
        case (("python" | "python3"), ["-m", name, *_]):
            assert name in ("venv", "pytest")
        case "python", [script, *options]:
            assert (ROOT / script).is_file()
            if options:
                with pytest.MonkeyPatch.context() as patch:
                    patch.syspath_prepend((ROOT / script).parent)
                    module(script).parser().parse_args(options)
        case "docker", ["run", "--rm", *_]:
            pass  # see test_the_container_receives_the_model
        case "pip", ["install", *_, what] if "[" in what:
            assert set(re.findall(r"[\w-]+", what)) <= set(setup()["options.extras_require"])
        case "pip", ["install", *_]:
            pass  # see test_the_commands_for_tensorflow_cpu_install_all_dependencies
        case "tensorboard", ["--logdir", _]:
            pass
        case _:
            raise AssertionError(f"Nobody checks {program} {words}")


@pytest.mark.slow
def test_commands_are_accepted(tmp_path):
    faults = {}
    for number, (page, block) in enumerate(BLOCKS):
        try:
            commands = called(block.code, tmp_path / str(number))
            assert commands, "calls no command"
            for program, *words in commands:
                check(program, words)
        except (Exception, SystemExit) as error:
            faults[f"{page}:{block.line}"] = error
    assert faults == {}


@brief
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* is out of date")  # the v4 tasks, on which the published returns were measured
@pytest.mark.parametrize("page, block", ALONE, ids=[f"{page}:{block.line}" for page, block in ALONE])
def test_commands_run(page, block, tmp_path, monkeypatch):
    commands = [words for program, *words in called(block.code, tmp_path) if program == "tfdpg"]
    commands = [words for words in commands if not any(text in " ".join(words) for text in NOT_RUN)]
    if not commands:
        pytest.skip("nothing that can be run here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    prepare(page, tmp_path)
    for command, *words in commands:
        assert cli.main([command, *words, *small(command, words)]) == 0


def small(command, arguments):
    """Return the flags that shorten the run of a command."""
    if command == "train" and arguments[0] != "--resume":
        networks = FLAGS["--networks" if "--networks" in arguments else arguments[0]]
        workers = FLAGS["--actors"] if "--actors" in arguments else ""
        return f"{networks} {FLAGS['all']} {workers}".split()
    return FLAGS.get(command, "").split()


def test_the_commands_of_the_readme_are_on_the_pages_of_results(tmp_path):
    def measured(page):
        for i, block in enumerate(fences(page, "sh")):
            for program, *words in called(block.code, tmp_path / page / str(i)):
                if (program, words[0]) == ("tfdpg", "train") and words[1] in TRAINING:
                    yield re.sub(r" --seeds( \d+)+", "", " ".join(words))

    results = {command for page in PAGES if page.startswith("docs/algorithms/") for command in measured(page)}
    commands = [command for command in measured("README.md") if "--epochs" in command and "--target" not in command]
    assert len(commands) == len(table("README.md", "agent")) and set(commands) <= results


def test_the_flags_of_a_page_exist():
    of_commands = {name for function in COMMANDS.values() for name in inspect.signature(function).parameters}
    of_commands |= {flag.replace("-", "_") for flag in [*flags_of(resume_flags(None)), *flags_of(tune_flags("td3"))]}

    def unknown(page):
        agents = [page.split("/")[-1].removesuffix(".md")] if page.startswith("docs/algorithms/") else sorted(TRAINING)
        known = {name for agent in agents for name in flags(agent)} | of_commands
        for span in spans(page):
            for flag in re.findall(r"^--([a-z_-]+)", span):
                name = flag.replace("-", "_")
                if name not in known | MODEL_SERVER | {"resume"} and name.removeprefix("no_") not in known:
                    yield span

    assert found_on(PAGES, unknown) == {}


def test_the_options_of_the_ablations_are_accepted():
    for page, agent in (("docs/algorithms/d4pg.md", "d4pg"), ("docs/algorithms/acer.md", "acer")):
        given = [span for span in spans(page) if span.startswith("--")]
        assert len(given) >= 4
        for span in given:
            parse("train", agent, "--env", "Pendulum-v1", *span.split())


def test_the_synopsis_matches_the_command_line():
    (block,) = fences("docs/command-line.md", "text")
    seen = set()
    for line in re.sub(r"\n +", " ", block.code).splitlines():
        _, command, *arguments = line.split()
        seen.add(command)
        function = COMMANDS.get(command)
        known = set(inspect.signature(function).parameters) if function else set()
        if "--resume" in arguments:
            known = {flag.replace("-", "_") for flag in flags_of(resume_flags(None))}
        if agents := re.search(r"\{(.*?)\}", line):
            assert set(agents[1].split(",")) == (TRAINING - {"acer"} if "--actors" in arguments else TRAINING)
            known = flags("td3") | {flag.replace("-", "_") for flag in flags_of(tune_flags("td3"))}
        assert {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", line)} <= known | {"resume"}, line
    assert seen == {*COMMANDS, "train", "tune"}


def test_the_commands_for_tensorflow_cpu_install_all_dependencies(tmp_path):
    block = next(block for block in fences("docs/quickstart.md", "sh") if "tensorflow-cpu" in block.code)
    packages = [name for program, *pip in called(block.code, tmp_path) if program == "pip" for name in pip[1:]]
    needed = setup()["options"]["install_requires"].replace("tensorflow>=", "tensorflow-cpu>=").split("\n")
    assert sorted(packages) == sorted(["--no-deps", ".", *filter(None, needed)])


def test_the_test_command_is_the_one_that_ci_runs():
    awk = re.search(r"command=\$\((awk .*)\)", (ROOT / ".ci/run").read_text())[1]
    found = subprocess.run(["bash", "-c", awk], cwd=Path(ROOT), capture_output=True, text=True, check=True).stdout
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest"
    assert " ".join(found.split()) == command
