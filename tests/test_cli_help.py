"""The help and the error messages of the command line. They cover every option and import nothing large."""

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import types
import typing

import pytest

from tfdpg import cli
from tfdpg.agents import AGENTS, agent_class
from tfdpg.cli import parsing
from tfdpg.cli.run_options import training_flags


def test_help_imports_nothing_heavy():
    code = "import sys; from tfdpg.cli import main; main(['--help']); "
    code += "assert not {'tensorflow', 'gymnasium'} & set(sys.modules)"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert all(
        command in shown
        for command in (
            "train ddpg|td3|d4pg|td7|acer",
            "check",
            "diagnose",
            "evaluate",
            "export",
            "convert",
            "inspect",
            "serve",
            "labels",
            "plot",
        )
    )


TD3 = "train td3 --env Pendulum-v1"
MISTAKES = {
    "evalute": "there is no command 'evalute'. Did you mean 'evaluate'?",
    "fly": "there is no command 'fly'.",
    "train td4 --env X": "there is no agent 'td4'. Did you mean 'td7'?",
    "train ppo": "there is no agent 'ppo'.",
    "train --epochs 3 --resume X": "`--resume RUN` comes first: tfdpg train --resume RUN [--epochs N]",
    "train --resume": "`--resume` takes a run, or a directory of runs: tfdpg train --resume RUN [--epochs N]",
    "train td3": "--env is missing: id of a registered Gymnasium environment, module:id or module:Class.",
    f"{TD3} --gama 1": "there is no flag --gama. Did you mean --gamma?",
    f"{TD3} --overwrite --gama 1": "there is no flag --gama. Did you mean --gamma?",
    f"{TD3} --no-overwrite --env-kwarg g=2.0": "there is no flag --env-kwarg. Did you mean --env-kwargs?",
    f"{TD3} --zzz=1": "there is no flag --zzz.",
    f"{TD3} --learning_rate 1": "there is no flag --learning-rate. Did you mean --pi-lr and --q-lr?",
    f"{TD3} --lr 1": "there is no flag --lr. Did you mean --pi-lr and --q-lr?",
    "train acer --env X --learning-rate 1": "there is no flag --learning-rate. Did you mean --lr?",
    f"{TD3} --total-timesteps 1": "there is no flag --total-timesteps. Did you mean --epochs and --steps-per-epoch?",
    f"{TD3} --timesteps 1": "there is no flag --timesteps. Did you mean --epochs and --steps-per-epoch?",
    f"{TD3} --lstm 8": "there is no flag --lstm. Did you mean --recurrent?",
    "train acer --env X --recurrent lstm": "there is no flag --recurrent. DDPG, TD3 and D4PG can be recurrent.",
    "train acer --env X --her future": "there is no flag --her. Hindsight experience replay (HER) is the option",
    f"{TD3} --tensorboard-log x": "there is no flag --tensorboard-log. `tfdpg train` writes TensorBoard's files",
    f"{TD3} --policy Mlp": "there is no flag --policy. Did you mean --hidden-units and --networks?",
    f"{TD3} --seed 1": "there is no flag --seed. Did you mean --seeds?",
    f"{TD3} --epochs few": "--epochs must be a positive integer or None. Received: few",
    f"{TD3} --gamma abc": "--gamma must be a finite number in [0, 1]. Received: abc",
    f"{TD3} --seeds a 1": '--seeds must be integers or "random". Received: a 1',
    f"{TD3} --sweep gamma=.98,.99 --gamma .9": "--gamma and --sweep gamma=... exclude each other",
    f"{TD3} --sweep gamma=.99,0.990": "--sweep must have different values of gamma. Received: 0.990 again",
    f"{TD3} --sweep n_step=1,2 n-step=3,4": "--sweep must name each option once. Received: n_step twice",
    f"{TD3} --sweep gamma=.9": "--sweep needs two or more values of gamma. --gamma .9 sets one.",
    f"{TD3} --sweep gama=.9,.99": "--sweep gama: there is no flag --gama. Did you mean --gamma?",
    f"{TD3} --sweep gamma=.9,": "--sweep must be NAME=VALUE,VALUE,... for each option. Received: gamma=.9,",
    f"{TD3} --sweep --jobs 2": "--sweep must be NAME=VALUE,VALUE,... for each option. Received: no value",
    f"{TD3} --sweep n_step=1,x": "--n-step must be a positive integer. Received: x",
    f"{TD3} --sweep stored_state=True,False": "--sweep does not take stored_state, which is on or off",
    f"{TD3} --sweep seed=1,2": "--sweep does not take seed: --seeds trains each setting with several seeds.",
    f"{TD3} --sweep epochs=1,2": "--sweep takes options of TD3 and of `fit` that change what is learned, not epochs.",
    f"{TD3} --target-return high": "--target-return must be a finite number or None. Received: high",
    "evaluate x --episodes few": "--episodes must be an integer. Received: few",
    "check --env X": "`check` takes the environment without a flag: tfdpg check ENV",
    "evaluate x --episode 3": "there is no flag --episode. Did you mean --episodes?",
    "convert x y": "--format is missing: litert (extra [litert]), onnx (extra [onnx]) or c.",
    f"{TD3} --norm bach": '--norm must be "layer" or "batch" or None. Received: bach',
    f"{TD3} --remembers action rewards": '--remembers must be "observation", "action" or "reward". Received: action',
    "export x y --format keras": '--format must be "tf_saved_model", "litert", "onnx" or "c". Received: keras',
    "inspect": "MODEL is missing: a model directory, ",
    "serve": "MODEL is missing: a model directory",
    "export": "RUN is missing: the run directory.",
    "convert x": "DIRECTORY is missing: a new or empty directory",
    "serve x --prot 3": "there is no flag --prot. Did you mean --port?",
}
"""Invalid command lines, and the first line of the message."""
REFUSED = {
    f"{TD3} --gamma 2": "`gamma` must be a finite number in [0, 1]. Received: gamma=2.0",
    f"{TD3} --sweep gamma=.9,2": "`gamma` must be a finite number in [0, 1]. Received: gamma=2.0",
    f"{TD3} --burn-in 3": "`burn_in` does nothing where `recurrent` is None. Received: burn_in=3",
    f"{TD3} --seeds -1": "`seed` must be an integer of at least 0. Received: seed=-1",
    f"{TD3} --jobs 0": "`jobs` must be a positive integer. Received: jobs=0",
    f"{TD3} --run-dir auto --overwrite": "`overwrite` does nothing where `--run-dir auto` takes",
    "train td3 --env NoSuch-v0": "The environment 'NoSuch-v0' cannot be made",
    "train --resume nowhere": "No run in nowhere: there is no such directory",
    "diagnose nowhere": "No run in nowhere: there is no such directory",
    "evaluate nowhere": "No run and no exported model in nowhere: there is no such directory",
    "export nowhere x": "No run in nowhere: there is no such directory",
    "convert nowhere x --format onnx": "No exported model in nowhere: there is no such directory",
    "inspect nowhere": "No exported model in nowhere: there is no such directory",
    "plot nowhere": "No run to plot in nowhere: there is no such directory",
}
"""Valid command lines that fail, and the first line of the message."""
HELPS = [
    "--help",
    "train",
    "train --help",
    "train td3 --help",
    "train --resume --help",
    "evaluate --help",
    "plot --help",
]
RUN_ALL = """
import contextlib, io, json, sys
from tfdpg.cli import main
answers = {}
for line in json.loads(sys.argv[1]):
    errors, status = io.StringIO(), None
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
    answers[line] = status, errors.getvalue().partition("\\n")[0]
print(json.dumps([sorted({"tensorflow", "keras", "ray"} & set(sys.modules)), answers]))
"""


def test_help_and_mistakes_need_no_tensorflow_and_the_first_line_says_what_is_wrong():
    lines = [*MISTAKES, *REFUSED, *HELPS]
    shown = subprocess.check_output([sys.executable, "-c", RUN_ALL, json.dumps(lines)], text=True)
    heavy, answers = json.loads(shown)
    assert not heavy
    assert max(map(len, cli.USAGE.splitlines())) < 100 > max(map(len, cli.TRAIN.splitlines()))
    for status, expected in ((2, MISTAKES), (1, REFUSED)):
        for line, message in expected.items():
            assert answers[line][0] == status, line
            assert answers[line][1].startswith(f"tfdpg: {message}"), answers[line]
    assert [answers[line] for line in HELPS] == [[0, ""]] * len(HELPS)


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_enough_is_no_error(options):
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, *options, "-m", "tfdpg", "--help"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


OTHERS = ("check", "diagnose", "evaluate", "export", "convert", "inspect", "serve", "labels", "plot")
COMMANDS = [[command, name.lower()] for command in ("train", "tune") for name in AGENTS]
COMMANDS += [[command] for command in OTHERS]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_no_help_has_a_fixed_option(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main([*arguments, "--help"])
    shown = capsys.readouterr().out
    assert exit.value.code == 0
    assert "{fixed}" not in shown and "usage: tfdpg" in shown


@pytest.mark.parametrize("name", AGENTS)
def test_every_flag_that_takes_none_takes_it_in_any_case(name):
    flags = training_flags(name.lower())
    kinds = {flag: kind.__origin__ for flag, kind in parsing.flags_of(flags).items()}
    nullable = [flag for flag, kind in kinds.items() if types.NoneType in typing.get_args(kind)]
    assert {"max-ep-len", "minutes", "device", "networks"} <= set(nullable)
    for write in ("--{} None", "--{} none", "--{}=none", "--{}=None"):
        words = [word for flag in nullable for word in write.format(flag).split()]
        parsed = vars(parsing.parse(flags, ["--env", "none", *words], "tfdpg")).values()
        values = {parsing.flag_name(field): value for group in parsed for field, value in vars(group).items()}
        assert values["env"] == "none"  # a flag that does not take None
        assert {values[flag] for flag in nullable} == {None}


@pytest.mark.parametrize("name", AGENTS)
def test_every_option_is_a_flag_with_its_help_and_default(name, capsys):
    cls = agent_class(name)
    objects = {"self", "env", "pi", "q1", "q2", "v", "encoder", "preprocess", "callbacks", "validation_env"}
    objects |= {"optimizer", "pi_optimizer", "q_optimizer", "act_noise_schedule", "reward_shaper", "recorders"}
    with pytest.raises(SystemExit):
        cli.main(["train", name, "--help"])
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    groups = [typing.get_args(group.type)[0] for group in dataclasses.fields(training_flags(name))]
    fields = {field.name: field for group in groups for field in dataclasses.fields(group)}
    assert fields["chunk"].default == 100 and fields["actors"].default is None and "--replay-shards " in shown
    for function in (cls.__init__, cls.fit):
        for option, parameter in inspect.signature(function).parameters.items():
            if option not in objects | {"seed"}:
                assert re.search(rf"--{option.replace('_', '-')}[ ,]", shown), option
                assert fields[option].default == parameter.default
    assert all(next(m.help for m in field.type.__metadata__ if hasattr(m, "help")) for field in fields.values())
