"""Between `fit` and the arithmetic of an update lie few calls."""

import sys
import threading

import gymnasium as gym
import pytest

from tests.agents.roster import AGENTS, brief
from tfdpg.agents import acer, d4pg, ddpg, td3

pytestmark = brief

ARITHMETIC = {
    "ACER": (acer, "retrace"),
    "DDPG": (ddpg, "td_loss"),
    "D4PG": (d4pg, "td_target"),
    "TD3": (td3, "td_loss"),
}


def calls(frame):
    """The files and names of the functions of tfdpg that a frame was called by, the first first."""
    found = []
    while frame:
        if "/tfdpg/" in frame.f_code.co_filename:
            found.append((frame.f_code.co_filename.split("/tfdpg/")[-1], frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


class Seen(Exception):
    pass


@pytest.mark.parametrize("name", AGENTS)
def test_few_calls_lie_between_fit_and_the_loss(name, monkeypatch):
    module, function = ARITHMETIC[name]
    stacks, main = [], threading.main_thread().ident

    def noted(*args):
        stacks.append(calls(sys._current_frames()[main]) + calls(sys._getframe(1)))
        raise Seen  # what comes after it in the update, and compiling, is no matter here

    monkeypatch.setattr(module, function, noted)
    env = gym.make("Pendulum-v1")
    with pytest.raises(Seen):
        AGENTS[name](env).fit(env, epochs=1, steps_per_epoch=30, verbose=0)
    (stack, *_) = stacks
    between = stack[stack.index(("agents/agent.py", "fit")) + 1 :]
    arithmetic = [place for place, name in between[[name for _, name in between].index("step") + 1 :]]
    assert len(between) <= 12 and 1 <= len(arithmetic) <= 3
    assert arithmetic[0] == f"agents/{name.lower()}.py"


@pytest.mark.parametrize("module, most", [(ddpg, 90), (td3, 140), (d4pg, 220), (acer, 190)])
def test_a_file_is_its_docstring_its_networks_its_draw_and_its_update(module, most):
    with open(module.__file__) as file:
        assert len(file.readlines()) <= most
