"""`tfdpg check --realtime`, and the care that `tfdpg check` takes of real machines."""

import json
import time
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.roster import brief
from tests.broken import OldReset, OldStep
from tests.docs.pages import fences
from tests.environments import Counter, Machine
from tfdpg import checking, cli
from tfdpg.checking import realtime

pytestmark = brief


class Clocked(Counter):
    """A machine that sleeps to a clock of 200 Hz, and counts what happens to it."""

    is_real = True
    instances: list["Clocked"] = []

    def __init__(self):
        super().__init__(15, "truncated")
        self.closed = False
        Clocked.instances.append(self)

    def reset(self, **arguments):
        self.began = time.perf_counter()
        return super().reset(**arguments)

    def step(self, action):
        time.sleep(max(0.0, self.began + (self.t + 1) / 200 - time.perf_counter()))
        return super().step(action)

    def close(self):
        self.closed = True


def facts_of(items):
    return {title: text for title, text in items}


@pytest.mark.slow
@pytest.mark.parametrize("env, agent", [("Clocked", "TD3"), ("Discrete", "ACER")])
def test_the_command_measures_one_instance_and_the_updates_of_an_agent(env, agent, capsys, monkeypatch):
    monkeypatch.setattr(Clocked, "instances", [])
    status = cli.main(["check", f"tests.test_check_realtime:{env}", "--realtime", "200", "--steps", "40", "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert status == bool(report["findings"])
    assert f"tfdpg: tests.test_check_realtime:{env} will move: it is reset and takes random steps." in printed.err
    (machine,) = Clocked.instances
    assert (machine.total, machine.seeds, machine.closed) == (40, [0, 1, 2], True)
    facts = {fact["title"]: fact["text"] for fact in report["facts"]}
    assert "in 40 steps" in facts["step time"] and "between the returns of steps" in facts["period"]
    assert facts["resets"].startswith("3; each takes ")
    assert f"ms each, for {agent} with its default options" in facts["updates"]
    assert facts["ratio"].startswith("at 200 Hz, one update per step takes ")
    _, page = fences("docs/checking.md", "text")
    assert [line[:14].strip() for line in page.code.splitlines()[3:-2] if line[:1].strip()] == list(facts)
    assert page.code.splitlines()[0] == printed.err.strip().replace(f"tests.test_check_realtime:{env}", "plant:Plant")


class Discrete(Clocked):
    action_space = gym.spaces.Discrete(3)


class Clock(Counter):
    """The clock of these tests counts what happens: a step takes the next of `steps` seconds, a reset `reset`."""

    is_real = True

    def __init__(self, monkeypatch, steps, reset=0.5, length=10):
        super().__init__(length, "truncated")
        self.now = 0.0
        self.durations = steps
        self.reset_duration = reset
        monkeypatch.setattr(realtime, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(realtime, "_seconds_per_update", lambda spec: ("TD3", 0.004))

    def reset(self, **arguments):
        self.now += self.reset_duration
        return super().reset(**arguments)

    def step(self, action):
        self.now += self.durations[self.total % len(self.durations)]
        return super().step(action)


def examine(env, hz=100.0, steps=100):
    _, facts, findings = checking.examine(env, steps, realtime=hz)
    return facts_of(facts), findings


def test_a_machine_that_keeps_its_clock_has_no_findings(monkeypatch, capsys):
    env = Clock(monkeypatch, [0.01] * 197 + [0.0115, 0.0105, 0.0105])
    facts, findings = examine(env, steps=200)
    assert not findings and env.total == 200
    assert facts["step time"] == "p50 10, p99 10.5, max 11.5 ms, in 200 steps"
    assert facts["period"] == "10 ms between the returns of steps, which is 100 Hz"
    assert facts["jitter"] == "p99 0.5, max 1.5 ms; 0.556 % of the steps are late by more than 10 % of it"
    assert facts["resets"] == "21; each takes 0.5 to 0.5 s"
    assert facts["priority"].startswith("real-time priority is ")
    assert facts["updates"] == "4 ms each, for TD3 with its default options and nothing else"
    busy = "one update per step takes 40 % of the time of one core"
    assert facts["ratio"] == f"at 100 Hz, {busy}: possible; the largest ratio is about 2 updates per step"
    assert tfdpg.check(env, steps=200, realtime=100) == []
    printed = capsys.readouterr()
    assert printed.out.endswith("no findings\n") and "will move" in printed.err
    assert tfdpg.check(env, steps=200, realtime=100, verbose=0) == [] and capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "steps, hz, what, remedy",
    [
        (
            [0.0001],
            100,
            "`step` returns at once, after 0.1 ms: the environment does not wait for a clock",
            "sleep until",
        ),
        ([0.02], 100, "The period of the environment is 20 ms, not the 10 ms of 100 Hz", "`--realtime 50`"),
        ([0.005], 100, "The period of the environment is 5 ms, not the 10 ms of 100 Hz", "`--realtime 200`"),
        (
            [0.01] * 48 + [0.0201] * 2,
            100,
            "% of the steps return more than a period late, the latest by 10.1",
            "driver",
        ),
        ([0.0025], 400, "Learning is too slow for one update per step at 400 Hz", "`gradient_steps`"),
    ],
)
def test_what_keeps_a_control_loop_from_its_rate_is_a_finding(monkeypatch, steps, hz, what, remedy):
    facts, findings = examine(Clock(monkeypatch, steps), hz)
    assert len(findings) == 1 and what in findings[0].what and remedy in findings[0].remedy
    assert ("not possible; the largest ratio is about 0.5" in facts["ratio"]) == (hz == 400)
    assert ("returns at once" in facts["period"]) == (steps == [0.0001])


@pytest.mark.slow
def test_stepping_and_resetting_end_when_they_take_too_long(monkeypatch):
    env = Clock(monkeypatch, [1.0], length=1000)
    examine(env, steps=100)
    assert env.total == 2 and len(env.seeds) == 2  # two seconds for 100 steps
    env = Clock(monkeypatch, [0.01], reset=90)
    facts, _ = examine(env, steps=100)
    assert env.total == 10 and env.seeds == [0] and facts["resets"] == "1; each takes 90 to 90 s"
    env = Clock(monkeypatch, [0.01])
    examine(env, hz=2.0, steps=None)
    assert env.total == 20
    examine(env := Clock(monkeypatch, [0.01]), hz=0.1, steps=None)
    assert env.total == 10


@pytest.mark.parametrize("broken", [OldReset, OldStep])
def test_what_has_another_form_is_a_finding(monkeypatch, broken):
    monkeypatch.setattr(realtime, "_seconds_per_update", lambda spec: ("TD3", 0.004))
    (found,) = tfdpg.check(broken(), realtime=10, steps=3, verbose=0)
    assert "reset" in found.what or "step" in found.what


def test_what_cannot_be_measured_does_not_move(capsys):
    machine = Machine()
    machine.observation_space = gym.spaces.Text(3)
    assert "not supported" in tfdpg.check(machine, realtime=10, verbose=0)[0].what and not machine.seeds
    with pytest.raises(ValueError, match="`realtime` needs a single environment"):
        tfdpg.check(SyncVectorEnv([Counter] * 2), realtime=10)
    assert cli.main(["check", "tests.environments:tfdpg-test/Machine-v0", "--realtime", "0"]) == 1
    assert capsys.readouterr().err == "tfdpg: `realtime` must be a number above 0. Received: realtime=0.0\n"


def test_a_real_machine_repeats_nothing_in_the_ordinary_check(monkeypatch, capsys):
    class Broken(Machine):
        def reset(self, **arguments):
            super().reset(**arguments)
            return np.zeros(2, np.float32)

    machine = Machine()
    monkeypatch.setattr(Machine, "steps", 0)
    found = tfdpg.check(machine, steps=30, seed=3)
    assert not found and Machine.steps == 31 and machine.seeds == [3, 3, 4, 5, 6]
    printed = capsys.readouterr()
    assert "will move" in printed.err and "seeds  " not in printed.out
    broken = Broken()
    (found,) = tfdpg.check(broken, steps=30, verbose=0)
    assert len(broken.seeds) == 1 and "reset" in found.what
