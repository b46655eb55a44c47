"""The help of the command line: every option, and nothing heavy."""

import dataclasses
import inspect
import re
import subprocess
import sys
import typing

import pytest

from tfdpg import cli
from tfdpg.agents import AGENTS, agent_class


def test_help_imports_nothing_heavy():
    code = "import sys; from tfdpg.cli import main; main(['--help']); assert 'tensorflow' not in sys.modules"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert all(
        command in shown for command in ("train {ddpg,td3,d4pg,acer}", "check", "evaluate", "export", "inspect", "plot")
    )


COMMANDS = [["train", name.lower()] for name in AGENTS] + [["check"], ["evaluate"], ["export"], ["inspect"], ["plot"]]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_no_help_has_a_fixed_option(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main([*arguments, "--help"])
    shown = capsys.readouterr().out
    assert exit.value.code == 0
    assert "{fixed}" not in shown and "usage: tfdpg" in shown


@pytest.mark.parametrize("name", AGENTS)
def test_every_option_is_a_flag_with_its_help_and_default(name, capsys):
    cls = agent_class(name)
    objects = {"self", "env", "pi", "q1", "q2", "v", "encoder", "callbacks", "validation_env"}
    objects |= {"optimizer", "pi_optimizer", "q_optimizer", "act_noise_schedule", "reward_shaper", "recorders"}
    with pytest.raises(SystemExit):
        cli.main(["train", name, "--help"])
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    groups = [typing.get_args(group.type)[0] for group in dataclasses.fields(cli.training_flags(name))]
    fields = {field.name: field for group in groups for field in dataclasses.fields(group)}
    assert fields["chunk"].default == 100 and fields["actors"].default is None and "--replay-shards " in shown
    for function in (cls.__init__, cls.fit):
        for option, parameter in inspect.signature(function).parameters.items():
            if option not in objects | {"seed"}:
                assert re.search(rf"--{option.replace('_', '-')}[ ,]", shown), option
                assert fields[option].default == parameter.default
    assert all(next(m.help for m in field.type.__metadata__ if hasattr(m, "help")) for field in fields.values())
