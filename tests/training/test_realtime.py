"""`fit(realtime=True)`: acting in one thread, learning in another one."""

import json
import os
import signal
import sys
import threading
import time

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tensorflow.python.framework.func_graph import FuncGraph

import tfdpg
from tests.agents.roster import SMALL, brief, parametrize_agents
from tests.commands import QUIET, TINY
from tests.environments import Counter, Machine, Reach
from tfdpg import cli
from tfdpg.replay import TransitionLayout
from tfdpg.training.agent_data import ATTEMPTS

pytestmark = brief


class Plant(Counter):
    """A machine with a clock of 1 kHz, which records the actions that it received."""

    def __init__(self, length=20):
        super().__init__(length, "truncated")
        self.actions = []
        self.closed = False
        self.resets = []

    def reset(self, **arguments):
        self.resets.append(self.total)
        return super().reset(**arguments)

    def step(self, action):
        assert threading.current_thread() is threading.main_thread() and not self.closed
        self.actions.append(action)
        time.sleep(1e-3)
        return super().step(action)

    def close(self):
        self.closed = True


RUN = {"epochs": 2, "steps_per_epoch": 60, "verbose": 0, "realtime": True}


@parametrize_agents()
@pytest.mark.parametrize("options", [{}, {"normalize_observations": True}])
def test_all_agents_take_the_steps_and_make_the_updates(make, options):
    agent = make(Plant(), **options)
    history = agent.fit(Plant(), **RUN).history
    assert agent.env_steps == 120 and agent.epoch == 2 and agent.updates > 0
    steps = np.array(history["env_steps"]) - [0, history["env_steps"][0]]
    for log in ("updates_per_step", "updates_per_step_wanted"):  # some are made in a later epoch
        assert sum(history[log] * steps) == pytest.approx(agent.updates)
    assert sys.getswitchinterval() == pytest.approx(0.005)
    assert "tfdpg learner" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    "make, options",
    [
        (tfdpg.TD3, {"replay": "prioritized"}),
        pytest.param(tfdpg.TD3, {"recurrent": "lstm"}, marks=pytest.mark.slow),
        pytest.param(tfdpg.TD7, {"encoder_units": (4,), "embedding_units": 3}, marks=pytest.mark.slow),
        pytest.param(tfdpg.D4PG, {}, marks=pytest.mark.slow),
        pytest.param(tfdpg.TD3, {"her": "future"}, marks=pytest.mark.slow),
        pytest.param(tfdpg.DDPG, {"pi": "custom"}, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_traced_after_the_first_step(make, options, monkeypatch):
    graphs = []
    made = FuncGraph.__init__

    def counted(graph, name, *arguments, **options):
        graphs.append(name)
        made(graph, name, *arguments, **options)

    monkeypatch.setattr(FuncGraph, "__init__", counted)

    class Watched(gym.Wrapper):
        def reset(self, **arguments):
            self.before = len(graphs)
            return super().reset(**arguments)

        def step(self, action):
            assert len(graphs) == self.before > 0, graphs
            time.sleep(1e-3)
            return super().step(action)

    env = Reach() if "her" in options else Counter()
    if "pi" in options:
        x = keras.Input((2,))
        options = {"pi": keras.Model(x, keras.layers.Dense(1, "tanh")(Same()(x)))}
    agent = make(env, **SMALL | options)
    agent.fit(Watched(env), **RUN)
    assert agent.updates > 0


class Numbered(gym.Env):
    """The observation, the reward and the next observation have the number of the step, as a fraction of 1000."""

    observation_space = spaces.Box(0, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, seconds):
        self.seconds = seconds
        self.number = 0

    def reset(self, *, seed=None, options=None):
        return np.full(3, self.number, np.float32) / 1000, {}

    def step(self, action):
        time.sleep(self.seconds)
        self.number += 1
        return np.full(3, self.number, np.float32) / 1000, self.number / 1000, False, False, {}


class Versions(tfdpg.TD3):
    """All weights of the policy are the number of the update, divided by `scale`."""

    def update(self, batch, counter):
        metrics = super().update(batch, counter)
        for weight in self.pi.trainable_variables:
            weight.assign(tf.fill(weight.shape, tf.cast(counter, tf.float32) / self.scale))
        return metrics


@keras.saving.register_keras_serializable("realtime tests")
class Same(keras.layers.Layer):
    """A layer that NumPy cannot compute."""

    def call(self, inputs):
        return inputs


def policy_of_keras():
    """The policy with one hidden unit, which acts by a compiled call."""
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(1, "tanh")(Same()(keras.layers.Dense(1, "relu")(x))))


@pytest.mark.parametrize(
    "steps, jit_compile, in_numpy",
    [
        pytest.param(300, False, True, marks=pytest.mark.slow),
        (300, False, False),
        pytest.param(4000, True, True, marks=pytest.mark.slow),
    ],
)
def test_no_row_is_torn_and_no_policy_is_mixed(steps, jit_compile, in_numpy):
    options = {"hidden_units": (1,), "batch_size": 256, "replay_size": steps // 2, "act_noise": 0.0}
    schedule = {"start_steps": 0, "update_after": 2, "update_every": 1}
    networks = {} if in_numpy else {"pi": policy_of_keras()}
    agent = Versions(Numbered(0), **options, **schedule, jit_compile=jit_compile, **networks)
    assert (agent.data.actor.weights_from is not None) == in_numpy
    agent.scale = 1000 if steps < 1000 else 20_000  # actions are far from 1
    layout = TransitionLayout.of(agent.spec)
    sample = agent.learner._local_replay.sample
    rows = []

    def checked(update, count):
        packed = sample(update, count)
        matrix = packed[0].reshape(-1, layout.width)
        wanted = np.repeat(matrix[:, layout.next_observation], 1, axis=1)
        assert (wanted == wanted[:, :1]).all()
        np.testing.assert_array_equal(matrix[:, layout.reward], wanted[:, 0])
        np.testing.assert_allclose(matrix[:, layout.observation], wanted - 0.001, atol=1e-6)
        rows.append(len(matrix))
        return packed

    agent.learner._local_replay.sample = checked
    agent.fit(Numbered(5e-4), **RUN | {"epochs": 1, "steps_per_epoch": steps}, max_lag=500)  # drops no update
    assert sum(rows) >= 250 * steps
    slots = np.arange(agent.replay.size - 1)
    slots = slots[agent.replay.successor[slots] >= 0]
    inputs = agent.replay.observation(slots)[0].sum(axis=1) + 1
    with np.errstate(divide="ignore", invalid="ignore"):  # of actions that are 1 or −1
        x = np.arctanh(agent.replay.action(slots)[:, 0].astype(np.float64))
        version = agent.scale * (np.sqrt(1 + 4 * inputs * x) - 1) / (2 * inputs)  # x = v² (Σ s + 1) + v
    exact = version > 1  # the first weights are random, and an action near 1 is too coarse
    exact &= np.abs(x) < 2
    assert exact.sum() > 50
    np.testing.assert_allclose(version[exact], np.round(version[exact]), atol=0.05)
    assert (np.diff(np.round(version[exact])) >= 0).mean() > 0.99


@pytest.mark.parametrize("options", [{"n_step": 3}, {"replay": "prioritized"}, {"recurrent": "lstm"}])
@pytest.mark.parametrize("is_full, interruptions", [(True, 1), (False, 1), (True, 99)])
def test_rows_are_packed_again_if_a_step_is_stored_in_the_meantime(options, is_full, interruptions):
    env = Counter(7)
    agent = tfdpg.TD3(env, **SMALL | options | {"replay_size": 30 if is_full else 300})
    observation, _ = env.reset()

    def take_steps(count):
        nonlocal observation
        for _ in range(count):
            next_observation, *result, _ = env.step(agent.act(observation))
            agent.observe(result[0], next_observation, *result[1:])
            observation = env.reset()[0] if any(result[1:]) else next_observation

    take_steps(60)
    builder = agent.data.minibatch_builder
    pack = builder.pack
    calls = []

    def interrupted(*arguments):
        is_locked = agent.data.lock._is_owned()
        calls.append((arguments, is_locked))
        packed = pack(*arguments)
        if len(calls) <= interruptions and not is_locked:
            take_steps(10)
        return packed

    builder.pack = interrupted
    with agent.data.shared():
        packed, rows = agent.data.sample(0, 20)
        attempts = [False] * min(interruptions + 1, ATTEMPTS)
        assert [is_locked for _, is_locked in calls] == (attempts if interruptions < ATTEMPTS else [*attempts, True])
        for part, expected in zip(packed, pack(*calls[-1][0]), strict=True):
            np.testing.assert_array_equal(part, expected)
        assert (agent.replay.successor[rows] >= 0).all()
        assert np.array_equal(rows, calls[0][0][0]) != is_full
        interruptions = 0
        made = len(calls)
        agent.data.sample(20, 20)
    assert len(calls) == made + 1


class Failing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("the disk is full")


class Stop(keras.callbacks.Callback):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def on_epoch_end(self, epoch, logs=None):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    "callback, error",
    [
        (Failing(), RuntimeError),
        pytest.param(Stop(signal.SIGTERM), SystemExit, marks=pytest.mark.slow),
        pytest.param(Stop(signal.SIGINT), KeyboardInterrupt, marks=pytest.mark.slow),
    ],
)
def test_the_machine_is_stopped_first_and_then_a_checkpoint_is_written(tmp_path, callback, error):
    plant = Plant()
    stopped = []

    class Saves(tfdpg.callbacks.Checkpoint):
        def on_train_end(self, logs=None):
            stopped.append((plant.closed, float(plant.actions[-1][0])))
            super().on_train_end(logs)

    agent = tfdpg.TD3(Plant(), **SMALL)
    with pytest.raises(error):
        agent.fit(plant, **RUN | {"epochs": 9}, callbacks=[Saves(tmp_path), callback], safe_action=[0.25])
    assert stopped == [(True, 0.25)] and plant.closed
    saved = max(int(path.name) for path in tmp_path.iterdir())
    assert tfdpg.load_agent(tmp_path / str(saved)).env_steps == agent.env_steps == len(plant.actions) - 1


class Slow(keras.callbacks.Callback):
    """Takes long at the end of an epoch, as writing to a slow disk does."""

    def on_epoch_end(self, epoch, logs=None):
        before = self.model.env_steps
        time.sleep(0.5)
        self.steps = self.model.env_steps - before


def test_callbacks_do_not_hold_the_control_loop():
    slow = Slow()
    agent = tfdpg.TD3(Plant(), **SMALL)
    agent.fit(Plant(), **RUN | {"epochs": 20, "steps_per_epoch": 50}, callbacks=[slow, StopAfter()])
    assert slow.steps > 50


class StopAfter(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


@pytest.mark.slow
def test_updates_that_became_due_during_callbacks_are_made():
    agent = tfdpg.TD3(Plant(), **SMALL)
    history = agent.fit(Plant(), **RUN | {"epochs": 3}, callbacks=[Slow()]).history
    assert agent.updates == sum(history["updates_per_step"] * np.diff([0, *history["env_steps"]])) == 3 * 60 - 10
    assert history["updates_per_step"][1] > 0.5  # its steps are taken before it begins


def test_waiting_for_learning_ends_if_an_evaluation_waits_for_the_end_of_an_episode():
    plant = Plant(length=50)
    agent = tfdpg.TD3(Plant(), **SMALL)
    history = agent.fit(plant, **RUN, max_lag=1, validation_env=plant, validation_episodes=1).history
    assert np.isfinite(history["val_return"]).all() and agent.env_steps == 120


def test_the_safe_action_follows_the_last_step_and_no_reset(tmp_path):
    calls = []

    class Watched(Plant):
        def step(self, action):
            calls.append(float(action[0]))
            return super().step(action)

        def reset(self, **arguments):
            calls.append("reset")
            return super().reset(**arguments)

    plant = Watched(length=20)
    agent = tfdpg.TD3(Plant(), **SMALL)
    agent.fit(plant, **RUN, safe_action=[0.125], validation_env=plant, validation_episodes=1)
    assert calls[-1] == 0.125 and calls[-2] != "reset"  # a last evaluation comes before it
    assert calls.count("reset") == 120 // 20 + 2  # and no reset after the last episode of training


@pytest.mark.slow
def test_a_run_that_is_resumed_within_an_epoch_ends_at_its_last_step(tmp_path):
    class Broken(Plant):
        def step(self, action):
            if self.total == 70:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    agent = tfdpg.TD3(Plant(), **SMALL)
    with pytest.raises(KeyboardInterrupt):
        agent.fit(Broken(), **RUN, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path)])
    assert 70 <= agent.env_steps < 120
    loaded = tfdpg.load_agent(tmp_path / str(agent.env_steps))
    loaded.fit(Plant(), **RUN | {"initial_epoch": loaded.epoch})
    assert loaded.env_steps == 120 and loaded.epoch == 2


@pytest.mark.slow
def test_late_updates_are_saved_and_made_after_loading(tmp_path):
    agent = tfdpg.TD3(Plant(), **SMALL)
    agent.fit(Plant(), **RUN | {"epochs": 1})
    agent.data.schedule.late = 7
    agent.save(tmp_path / "saved")
    for realtime in (False, True):
        loaded = tfdpg.load_agent(tmp_path / "saved")
        loaded.fit(Plant(), epochs=2, steps_per_epoch=60, initial_epoch=1, verbose=1, realtime=realtime)
        assert loaded.updates == agent.updates + 7 + 60


@pytest.mark.slow
def test_all_updates_that_are_due_together_are_made():
    agent = tfdpg.TD3(Plant(), **SMALL | {"update_every": "episode", "gradient_steps": 1200, "update_after": 0})
    agent.fit(Plant(20), **RUN | {"epochs": 1, "steps_per_epoch": 30})
    assert agent.updates == 1200


@pytest.mark.slow
def test_a_policy_that_has_diverged_is_not_saved(tmp_path):
    class Diverging(tfdpg.TD3):
        def update(self, batch, counter):
            metrics = super().update(batch, counter)
            for weight in self.pi.trainable_variables:
                weight.assign(tf.where(counter > 60, weight.value * np.nan, weight.value))
            return metrics

    plant = Plant()
    agent = Diverging(Plant(), **SMALL)
    with pytest.raises(FloatingPointError):
        agent.fit(plant, **RUN | {"epochs": 20}, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path)], safe_action=[0.0])
    assert plant.closed and plant.actions[-1] == [0.0] and np.isfinite(plant.actions).all()
    saved = tfdpg.load_agent(max(tmp_path.iterdir(), key=lambda path: int(path.name)), agent_class=Diverging)
    assert saved.updates <= 60


def test_an_error_of_the_machine_ends_training_with_a_checkpoint(tmp_path):
    class Broken(Plant):
        def step(self, action):
            if self.total == 70:
                raise OSError("the cable is loose")
            return super().step(action)

    agent = tfdpg.TD3(Plant(), **SMALL)
    with pytest.raises(OSError, match="the cable is loose") as raised:
        agent.fit(Broken(), **RUN, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path)], safe_action=[0.0])
    assert tfdpg.load_agent(tmp_path / "70").env_steps == 70
    place, stop = raised.value.__notes__
    assert place.startswith("The environment raised OSError (") and place.endswith(").") and __file__ in place
    assert stop == "The safe action could not be sent: OSError: the cable is loose"


@pytest.mark.slow
def test_what_takes_longer_the_first_time_is_done_before_the_first_step(tmp_path, monkeypatch):
    taken = []
    export = tfdpg.TD3.export
    monkeypatch.setattr(tfdpg.TD3, "export", lambda agent, *a, **k: taken.append(plant.total) or export(agent, *a, **k))
    plant = Plant()
    best = tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="return")
    tfdpg.TD3(Plant(), **SMALL).fit(plant, **RUN | {"epochs": 1}, callbacks=[best])
    assert taken[0] == 0 < taken[1] and len(taken) == 2
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["1"]


def test_a_training_that_never_began_leaves_no_checkpoint(tmp_path):
    class Dead(Plant):
        def reset(self, **arguments):
            raise OSError("no answer")

    agent = tfdpg.TD3(Plant(), **SMALL)
    with pytest.raises(OSError, match="no answer"):
        agent.fit(Dead(), **RUN, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path / "checkpoints")])
    assert not (tmp_path / "checkpoints").exists()
    agent.fit(Plant(), **RUN, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path / "checkpoints")])


def test_a_checkpoint_is_consistent_and_a_resumed_run_repeats_no_action(tmp_path):
    agent = tfdpg.TD3(Plant(), **SMALL)
    agent.fit(Plant(length=10_000), **RUN, callbacks=[tfdpg.callbacks.Checkpoint(tmp_path, keep=None)])
    for directory in sorted(tmp_path.iterdir(), key=lambda path: int(path.name)):
        loaded = tfdpg.load_agent(directory)
        assert loaded.replay.added == loaded.env_steps + 1 == int(directory.name) + 1
        np.testing.assert_array_equal(loaded.replay.rows[: loaded.env_steps], agent.replay.rows[: loaded.env_steps])
    plant = Plant(length=10_000)
    loaded.fit(plant, **RUN | {"epochs": 3, "initial_epoch": 2})
    assert len(plant.actions) == 60 and plant.resets == [0] and loaded.env_steps == loaded.replay.added - 2 == 180


def test_a_reset_may_take_long_while_learning_goes_on():
    class Slow(Plant):
        def reset(self, **arguments):
            before, until = agent.updates, time.monotonic() + 60 * bool(self.resets)
            while agent.updates == before and time.monotonic() < until:
                time.sleep(0.01)
            during.append(agent.updates - before)
            return super().reset(**arguments)

    during = []
    agent = tfdpg.TD3(Plant(), **SMALL | {"gradient_steps": 100})
    agent.fit(Slow(60), **RUN | {"epochs": 1, "steps_per_epoch": 70})
    assert max(during) > 0


@pytest.mark.parametrize(
    "options, error",
    [
        ({"safe_action": [0.0]}, "`safe_action` does nothing where `realtime` is False"),
        ({"realtime": True, "safe_action": [0.0, 0.0]}, "`safe_action` must be a sequence of length 1, from"),
        ({"realtime": True, "safe_action": [9.0]}, "`safe_action` must be a sequence of length 1, from"),
        ({"realtime": True, "max_lag": 0}, "`max_lag` must be"),
    ],
)
def test_options_that_are_wrong_are_refused_before_the_first_step(options, error):
    plant = Plant()
    agent = tfdpg.TD3(Counter(), **SMALL)
    with pytest.raises(ValueError, match=error):
        agent.fit(plant, **options)
    assert not plant.resets


def test_the_machine_itself_is_evaluated_between_two_episodes(capsys):
    class Watched(Plant):
        def reset(self, **arguments):
            ends.append(self.total)
            return super().reset(**arguments)

    ends = []
    plant = Watched(length=20)
    agent = tfdpg.TD3(Plant(), **SMALL)
    history = agent.fit(plant, **RUN | {"verbose": 2}, validation_env=plant, validation_episodes=2).history
    assert len(history["val_return"]) == 2 and np.isfinite(history["val_return"]).all()
    assert agent.env_steps == 120 and plant.total == 120 + 2 * 2 * 20
    assert set(np.diff(ends)) <= {0, 20}
    assert "updates/step wanted" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Only with realtime=True"):
        agent.fit(plant, validation_env=plant)


def test_a_real_machine_has_no_second_instance_and_is_not_trained_in_ordinary_mode_without_a_word():
    agent = tfdpg.DDPG(Machine(), **SMALL)
    with pytest.raises(ValueError, match="`validation_env` must not be a second instance of a real machine"):
        agent.fit(Machine(), **RUN, validation_env=Machine())
    with pytest.warns(UserWarning, match="real machine .* stands still during each update. Pass realtime=True"):
        agent.fit(Machine(), epochs=1, steps_per_epoch=30, verbose=0)


def test_invented_transitions_do_not_reach_the_functions_of_goals():
    class Far(Reach):
        def compute_reward(self, achieved_goal, desired_goal, info):
            assert np.any(desired_goal), "no goal of the environment is 0"
            return super().compute_reward(achieved_goal, desired_goal, info)

    class Waiting(gym.Wrapper):
        def step(self, action):
            time.sleep(1e-3)
            return super().step(action)

    agent = tfdpg.TD3(Far(), her="final", **SMALL | {"batch_size": 100})
    agent.fit(Waiting(Far()), epochs=1, steps_per_epoch=40, verbose=0, realtime=True)
    assert agent.updates > 2


@pytest.mark.slow
def test_a_machine_without_a_clock_is_reported():
    with pytest.warns(UserWarning, match="does not seem to wait for a clock: `step` takes .* ms on average"):
        tfdpg.TD3(Counter(), **SMALL | {"update_every": 1}).fit(
            Counter(), **RUN | {"epochs": 3, "steps_per_epoch": 3000}
        )


def test_the_command_line_closes_a_machine_once(tmp_path, monkeypatch, capsys):
    closed = []
    monkeypatch.setattr(Machine, "close", lambda machine: closed.append(machine), raising=False)
    step = Machine.step
    monkeypatch.setattr(Machine, "step", lambda machine, action: step(machine, action if machine.total < 40 else 1 / 0))
    words = [
        "--env",
        "tests.environments:tfdpg-test/Machine-v0",
        *TINY,
        *QUIET,
        "--steps-per-epoch",
        "25",
        "--realtime",
    ]
    assert cli.main(["train", "ddpg", *words, "--epochs", "2", "--run-dir", str(tmp_path)]) == 1
    assert "Resume with: tfdpg train --resume" in capsys.readouterr().err
    assert len(closed) == 1
    assert cli.main(["train", "ddpg", *words, "--safe-action", "9", "--run-dir", str(tmp_path / "other")]) == 1
    assert len(closed) == 2


class Gaps(Plant):
    """Sensors that fail in some steps."""

    gaps = ()

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if not hasattr(self, "sensors"):
            self.sensors = observation.copy()
        self.sensors[:] = np.nan if self.total in self.gaps else observation  # the same array in each step
        return self.sensors, np.nan if self.total in self.gaps else reward, *rest


def test_missing_values_are_held_and_then_the_episode_is_truncated():
    plant = Gaps(length=10_000)
    plant.gaps = {10, 30, 31, 32}
    agent = tfdpg.TD3(Plant(), **SMALL)
    history = agent.fit(plant, **RUN | {"epochs": 1}, hold_steps=2).history
    observation = agent.replay.observation(np.arange(agent.replay.size))[0]
    assert np.isfinite(observation).all() and history["held_steps"] == [4]
    np.testing.assert_array_equal(observation[10], observation[9])
    assert (observation[9] != observation[8]).any()
    assert plant.resets == [0, 32] and history["episode_length"] == [32]
    plant.gaps = {plant.total + 10}
    with pytest.warns(UserWarning, match="was not finite, so the episode was truncated. With `hold_steps`"):
        agent.fit(plant, **RUN | {"epochs": 1})


SLOW_MODES = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("NextStep", "Disabled")]


@pytest.mark.parametrize("mode", ["SameStep", *SLOW_MODES])
def test_missing_values_end_episodes_of_vector_environments_as_of_single_ones(mode):
    results = []
    for count in (1, 2):
        plants = [Gaps(length=15) for _ in range(count)]
        for plant in plants:
            plant.gaps = {8, 9, 24}  # step 9 is truncated, and step 24 ends the next episode anyway
        makers = [lambda plant=plant: plant for plant in plants]
        env = plants[0] if count == 1 else gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        agent = tfdpg.TD3(Plant(), **SMALL)
        agent.fit(env, **RUN | {"epochs": 1, "steps_per_epoch": 30 * count}, hold_steps=1)
        stored = agent.replay.transitions()
        is_held = (stored["observations"] == stored["next_observations"]).all(axis=1)
        results.append([np.count_nonzero(is_held) / count, stored["truncations"][is_held].sum() / count])
        assert np.isfinite(stored["next_observations"]).all()
    assert results[0] == results[1] == [3, 2]


@pytest.mark.slow
def test_a_reset_of_one_machine_leaves_the_missing_values_of_the_others():
    plants = [Gaps(length=15), Gaps(length=40)]
    plants[1].gaps = {14, 15, 16}
    envs = gym.vector.SyncVectorEnv([lambda: plants[0], lambda: plants[1]], autoreset_mode="Disabled")
    agent = tfdpg.TD3(Plant(), **SMALL)
    history = agent.fit(envs, **RUN | {"epochs": 1}, hold_steps=3).history
    assert history["held_steps"] == [3] and agent.env_steps == 60
    assert np.isfinite(agent.replay.observation(np.arange(agent.replay.size))[0]).all()
    assert plants[0].resets == [0, 15] and plants[1].resets == [0]


def test_no_action_follows_a_reset_without_a_finite_observation():
    class Blind(Plant):
        def reset(self, **arguments):
            observation, info = super().reset(**arguments)
            return observation if len(self.resets) % 2 == 0 else observation + np.nan, info

    plant = Blind()
    agent = tfdpg.TD3(Plant(), **SMALL)
    agent.fit(plant, **RUN | {"epochs": 1})
    assert plant.resets == [0, 0, 20, 20, 40, 40]
    Blind.reset = lambda self, **arguments: (np.full(self.observation_space.shape, np.nan, np.float32), {})
    with pytest.raises(ValueError, match="not finite after 3 calls"):
        agent.fit(Blind(), **RUN | {"epochs": 2, "initial_epoch": 1})


@pytest.mark.slow
def test_the_machine_waits_for_learning_with_max_lag():
    class Slow(tfdpg.TD3):
        def update(self, batch, counter):
            tf.py_function(lambda: time.sleep(0.01), [], [])
            return super().update(batch, counter)

    lags = []

    class Watched(Plant):
        def step(self, action):
            lags.append(agent.env_steps - agent.data.schedule.update_after - agent.updates)
            return super().step(action)

    agent = Slow(Plant(), **SMALL)
    agent.fit(Watched(), **RUN, max_lag=5)
    assert max(lags) <= 10 and agent.updates > 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The environment is a real machine")
@pytest.mark.parametrize("flags", [[], ["--realtime"]])
def test_tfdpg_train_makes_one_machine_and_repeats_no_action_of_it(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.setattr(Machine, "instances", 0)
    monkeypatch.setattr(Machine, "steps", 0)
    words = ["--env", "tests.environments:tfdpg-test/Machine-v0", *TINY, *QUIET, "--steps-per-epoch", "25"]
    assert cli.main(["train", "ddpg", *words, *flags, "--epochs", "2", "--run-dir", str(tmp_path)]) == 0
    assert (Machine.instances, Machine.steps) == (1, 50)
    run = tmp_path / "seed-0"
    assert tfdpg.load(run / "best").metadata["scores"] == {"return": 55}
    assert cli.main(["train", "--resume", str(run), "--epochs", "3"]) == 0
    assert (Machine.instances, Machine.steps) == (2, 75)  # another process would make its first
    assert tfdpg.load_agent(run / "checkpoints/75").env_steps == 75
    assert "75" in capsys.readouterr().out


@pytest.mark.slow
def test_tfdpg_train_evaluates_on_the_machine_with_a_flag(tmp_path, monkeypatch):
    monkeypatch.setattr(Machine, "instances", 0)
    monkeypatch.setattr(Machine, "steps", 0)
    words = ["--env", "tests.environments:tfdpg-test/Machine-v0", *TINY, *QUIET, "--steps-per-epoch", "25"]
    words += ["--realtime", "--evaluate", "--validation-episodes", "2", "--epochs", "1", "--run-dir", str(tmp_path)]
    assert cli.main(["train", "ddpg", *words]) == 0
    assert (Machine.instances, Machine.steps) == (1, 25 + 20)
    run = tmp_path / "seed-0"
    assert json.loads((run / "run.json").read_text())["reproducible"] is False
    assert tfdpg.load(run / "best").metadata["scores"]["val_return"] == 55
    assert "val_return" in (run / "progress.csv").read_text().splitlines()[0]


@pytest.mark.parametrize(
    "words, error",
    [
        (["train", "ddpg", "--seeds", "0", "1"], "`--seeds` makes several instances"),
        (["train", "ddpg", "--sweep", "gamma=.9,.99"], "`--sweep` makes several instances"),
        (["train", "ddpg", "--num-envs", "2"], "`--num-envs` makes several instances"),
        (["tune", "ddpg"], "`--trials` makes several instances"),
        (["train", "ddpg", "--evaluate"], "`--evaluate` needs --realtime"),
        (["train", "ddpg", "--realtime", "--safe-action", "9"], "`safe_action` must be a sequence of length 1, from"),
    ],
)
def test_a_machine_has_one_instance(words, error, tmp_path, capsys):
    machine = ["--env", "tests.environments:tfdpg-test/Machine-v0", "--run-dir", str(tmp_path / "run")]
    assert cli.main([*words, *machine]) == 1
    assert error in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_machine_has_no_rollout_workers(tmp_path, capsys):
    words = ["--env", "tests.environments:tfdpg-test/Machine-v0", "--actors", "1", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", "ddpg", *words]) == 1
    assert "tfdpg: `--actors` makes several instances of tests.environments" in capsys.readouterr().err
    words[1] = "tests.environments:tfdpg-test/Counter-v0"
    assert cli.main(["train", "ddpg", *words, "--realtime"]) == 1
    assert "`realtime` does nothing where rollout workers act in processes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
