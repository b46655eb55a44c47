"""A time budget: training ends on time, learns what it would have learned without, and resumes exactly.

The clock of these tests counts what happens: a second for each step of an environment, and what callbacks add.
"""

import contextlib
import csv

import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import RandomWalk
from tests.training.test_resume import ENV_FNS, KINDS, SCHEDULE, assert_equal, vector
from tfdpg.training.callbacks import Checkpoint, ProgressLogger
from tfdpg.training.time_budget import TimeBudget


class Clock:
    seconds = 0.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(TimeBudget, "now", lambda budget: clock.seconds)
    return clock


class Timed(RandomWalk):
    """Each step takes a second."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def step(self, action):
        self.clock.seconds += 1
        return super().step(action)


class Takes(keras.callbacks.Callback):
    """Takes seconds after each phase, after each epoch and at the end, and notes the steps at the end of each epoch."""

    def __init__(self, clock, phase=0, epoch=0, end=0):
        super().__init__()
        self.clock = clock
        self.phase = phase
        self.epoch = epoch
        self.end = end
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.clock.seconds += self.phase

    def on_epoch_end(self, epoch, logs=None):
        self.clock.seconds += self.epoch
        self.steps.append(self.model.env_steps)

    def on_train_end(self, logs=None):
        self.clock.seconds += self.end


def small_agent(**changes):
    """An agent without updates, which take no time on this clock."""
    return tfdpg.DDPG(RandomWalk(), **SMALL | EAGER | {"update_after": 1000} | changes)


def timed(agent, clock, *callbacks, **options):
    """Train with a budget; an evaluation takes 60 seconds."""
    validation = {"validation_env": Timed(clock), "validation_episodes": 2}
    return fit_briefly(agent, Timed(clock), callbacks=list(callbacks), **validation | options).history


def test_training_ends_in_time_for_the_last_evaluation_and_the_callbacks(clock):
    agent = small_agent()
    takes = Takes(clock, epoch=4, end=4)
    history = timed(agent, clock, takes, minutes=9, steps_per_epoch=50)
    assert takes.steps == [50, 100, 150, 200, 216] and agent.env_steps == 216
    assert agent.epoch == 4 and len(history["val_return"]) == 5
    assert clock.seconds == 4 * (50 + 60 + 4) + 16 + 60 + 4 + 4 == 540


def test_an_epoch_that_would_take_too_long_is_evaluated_once(clock):
    agent = small_agent()
    history = timed(agent, clock, Takes(clock, epoch=4, end=4), minutes=3)
    assert len(history["val_return"]) == 1 and np.isfinite(history["return"]).all() and agent.epoch == 0
    assert 180 - 15 < clock.seconds <= 180


@pytest.mark.parametrize("episodes, least", [(1, 100), (30, 85)])
def test_at_least_half_of_the_time_is_for_training(clock, episodes, least):
    agent = small_agent()
    timed(agent, clock, minutes=3, validation_episodes=episodes)
    assert agent.env_steps >= least and clock.seconds == agent.env_steps + 30 * episodes


def test_a_phase_that_would_take_too_long_is_not_begun(clock):
    agent = small_agent()
    takes = Takes(clock, phase=20)
    timed(agent, clock, takes, minutes=4, steps_per_epoch=10, validation_env=None)
    assert agent.env_steps == 45 and clock.seconds == 9 * 25


def test_at_least_one_step_is_taken(clock):
    agent = small_agent()
    timed(agent, clock, minutes=1e-6, validation_env=None)
    assert agent.env_steps == 1


@pytest.mark.slow
def test_training_ends_with_the_epochs_or_with_the_time_whichever_is_first(clock):
    agent = small_agent()
    timed(agent, clock, epochs=2, minutes=100, steps_per_epoch=50, validation_env=None)
    assert (agent.env_steps, agent.epoch) == (100, 2)
    timed(agent, clock, epochs=150, initial_epoch=2, minutes=5, steps_per_epoch=50, validation_env=None)
    assert (agent.env_steps, agent.epoch) == (400, 8)


def test_minutes_alone_set_no_limit_to_the_epochs(clock):
    agent = small_agent(update_after=1000)
    timed(agent, clock, minutes=6, steps_per_epoch=2, validation_env=None)
    assert agent.epoch == 180


@pytest.mark.parametrize("minutes", [0, -1, np.nan, np.inf, "30", True])
def test_minutes_are_a_number_above_0(minutes):
    agent = small_agent()
    with pytest.raises(ValueError, match=r"`minutes` must be a number above 0 or None\. Received: minutes="):
        agent.fit(RandomWalk(), minutes=minutes)
    with pytest.raises(ValueError, match="`minutes` must be"):
        agent.fit_offline(None, minutes=minutes)
    with pytest.raises(ValueError, match="`initial_epoch` must be less than epochs=100"):
        agent.fit(RandomWalk(), initial_epoch=100)


@pytest.mark.slow
def test_the_plan_is_printed_once_the_speed_is_known(clock, capsys):
    for verbose in (1, 2):
        clock.seconds = 0
        agent = small_agent(update_after=10)
        timed(agent, clock, Takes(clock, epoch=4, end=4), minutes=9, steps_per_epoch=50, verbose=verbose)
        shown = [line for line in capsys.readouterr().out.split("\n") if not line.startswith("\r")]
        told = [line.split(" · ")[0] for line in shown if line.startswith(("Epoch", "Plan"))]
        plan = "Plan: about 240 environment steps in 9 minutes"  # from the first steps, so 240 and not 216
        assert told.pop(2 - verbose) == plan and told == [f"Epoch {number}" for number in range(1, 6)]
    timed(small_agent(update_after=10), clock, epochs=2, minutes=9, steps_per_epoch=50, verbose=2)
    shown = capsys.readouterr().out
    assert "Plan: 100 environment steps in less than 9 minutes\n" in shown and "Epoch 2/2" in shown
    timed(small_agent(), clock, epochs=1, steps_per_epoch=50, verbose=2)
    assert "Plan" not in capsys.readouterr().out


def test_the_clock_does_not_change_what_is_learned(clock, tmp_path):
    agent, other = (small_agent(update_after=10, run_eagerly=False) for _ in range(2))
    timed(agent, clock, Takes(clock, epoch=4), minutes=9, steps_per_epoch=50)
    fit_briefly(other, RandomWalk(), epochs=1, steps_per_epoch=agent.env_steps)
    assert agent.env_steps == 216 and agent.updates == other.updates
    for weight, expected in zip(agent.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def timed_vector(clock):
    env = vector("NextStep")
    for each in env.envs:
        each.unwrapped.step = lambda action, step=each.unwrapped.step: step_in(clock, step, action)
    return env


def step_in(clock, step, action):
    clock.seconds += 1 / len(ENV_FNS)
    return step(action)


RESUMED = {"eager": Timed, "td3": Timed, "prioritised": Timed, "lstm": timed_vector, "acer": timed_vector}
MARKS = {"eager": (), "lstm": pytest.mark.hours}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, pytest.mark.slow)) for kind in RESUMED])
def test_a_training_that_ended_on_time_resumes_exactly(clock, tmp_path, kind):
    new, options, _ = KINDS[kind]
    make_env = RESUMED[kind]
    schedule = SCHEDULE | {"epochs": None}

    def train(agent, run, **changes):
        callbacks = [ProgressLogger(run / "progress.csv", append=True), Checkpoint(run / "checkpoints", keep=None)]
        validation = {"validation_env": RandomWalk(), "validation_episodes": 1}
        with contextlib.closing(make_env(clock)) as env:
            fit_briefly(agent, env, **schedule | validation | changes, callbacks=callbacks)
        with open(run / "progress.csv") as file:
            return [{name: row[name] for name in row if "per_second" not in name} for row in csv.DictReader(file)]

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, agent = (new(make_env(clock), **options) for _ in range(2))
    expected = train(whole, tmp_path / "whole", epochs=4)
    for minutes in (0.8, 1.4 if make_env is timed_vector else 2.4):
        rows = train(agent, tmp_path / "parts", minutes=minutes, initial_epoch=agent.epoch)
        assert agent.epoch < len(rows) and int(float(rows[-1]["env_steps"])) == agent.env_steps
        agent = tfdpg.load_agent(tmp_path / "parts/checkpoints" / str(agent.env_steps))
    assert 1 <= agent.epoch <= 3
    rows = train(agent, tmp_path / "parts", minutes=100, epochs=4, initial_epoch=agent.epoch)
    assert_equal(whole, agent, tmp_path)
    assert rows == expected and len(rows) == 4


def test_updates_on_stored_data_end_on_time_too(clock, capsys):
    agent = small_agent()
    fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=50)
    before = agent.updates
    takes = Takes(clock, phase=20)
    agent.fit_offline(None, minutes=5, steps_per_epoch=2, callbacks=[takes], verbose=2)
    assert clock.seconds == 280 and agent.updates - before == 14 * 2
    assert "Plan: about 30 updates in 5 minutes" in capsys.readouterr().out


@pytest.mark.slow
def test_updates_on_stored_data_end_in_time_for_the_first_evaluation(clock, capsys):
    agent = small_agent()
    fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=50)
    validation = {"validation_env": Timed(clock), "validation_episodes": 1}  # 30 seconds
    agent.fit_offline(None, minutes=5, steps_per_epoch=160, callbacks=[Takes(clock, phase=70)], verbose=2, **validation)
    assert clock.seconds == 3 * 70 + 30  # after another phase, the evaluation would have ended late
    assert "Plan: about 180 updates in 5 minutes" in capsys.readouterr().out  # 100 + (260 - 140) / (70 / 50 + 5 / 160)
