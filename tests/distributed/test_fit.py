"""Training on a Ray cluster on this machine."""

import functools
import os
import re
import signal
import sys
import time

import gymnasium as gym
import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import AGENTS, EAGER, SMALL, brief
from tests.distributed.callbacks import StopAfterReports
from tests.distributed.environments import ReportingCounter, counter, read_reports
from tests.environments import Counter, Identity
from tfdpg import distributed
from tfdpg.distributed.options import Distribution
from tfdpg.distributed.plan import environment_maker, worker_policies
from tfdpg.exploration import OrnsteinUhlenbeck
from tfdpg.training.callbacks import Checkpoint
from tfdpg.training.time_budget import TimeBudget

pytestmark = brief

SHORT = {"epochs": 2, "steps_per_epoch": 60, "actors": 2, "chunk": 10, "verbose": 0}


def transitions(agent):
    return len(agent.replay)


def test_an_agent_without_noise_is_refused():
    with pytest.raises(ValueError, match="`agent` must .*explores with noise"):
        distributed.fit(AGENTS["ACER"](Counter()), counter, **SHORT)


@pytest.mark.parametrize("name", ["TD3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("DDPG", "D4PG"))])
def test_every_agent_trains(local_ray, name, tmp_path):
    agent = AGENTS[name](Counter())
    history = distributed.fit(
        agent,
        counter,
        **SHORT,
        validation_env=Counter(),
        validation_episodes=2,
        callbacks=[Checkpoint(tmp_path), keras.callbacks.CSVLogger(str(tmp_path / "progress.csv"))],
    )
    logs = history.history
    assert logs["return"] == [15.0, 15.0] and logs["val_return"] == [15.0, 15.0] and np.isfinite(logs["loss"]).all()
    assert {"steps_per_second", "updates_per_second", "episode_length"} <= set(logs) and logs["worker_restarts"] == [
        0,
        0,
    ]
    assert agent.env_steps == logs["env_steps"][-1] == transitions(agent) and 120 <= agent.env_steps <= 200
    assert agent.updates == 5 * ((agent.env_steps - 10) // 5) and agent.epoch == 2
    loaded = tfdpg.load_agent(tmp_path / str(agent.env_steps))
    assert loaded.data.collector.episodes.tolist() == agent.data.collector.episodes.tolist()
    again = distributed.fit(loaded, counter, **SHORT | {"epochs": 3, "initial_epoch": 2})
    assert again.epoch == [2] and loaded.env_steps == transitions(loaded) > agent.env_steps
    (observations,) = loaded.replay.observation(np.arange(loaded.replay.size))
    assert set(observations[:, 1]) == {0, 1, 2, 3, 4, 5}
    loaded.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)


class TakesSeconds(keras.callbacks.Callback):
    """Each phase takes two seconds on the clock of the time budget."""

    seconds = 0.0

    def on_train_batch_end(self, batch, logs=None):
        self.seconds += 2


@pytest.mark.slow
def test_training_ends_on_time(local_ray, monkeypatch, capsys):
    agent = AGENTS["DDPG"](Counter(), **EAGER)
    clock = TakesSeconds()
    monkeypatch.setattr(TimeBudget, "now", lambda budget: clock.seconds)
    options = SHORT | {"epochs": None, "steps_per_epoch": 10**6, "minutes": 1, "verbose": 2, "callbacks": [clock]}
    history = distributed.fit(agent, counter, **options, validation_env=Counter(), validation_episodes=1)
    assert len(history.history["val_return"]) == 1 and agent.epoch == 0
    assert clock.seconds == 60 - 2 * 3 - 2 - 6 and agent.env_steps >= 10  # a tenth is kept for the evaluation
    assert re.search(r"Plan: about [\d,]+ environment steps in 1 minutes\n", capsys.readouterr().out)


@pytest.mark.slow
def test_it_learns(local_ray):
    options = {"hidden_units": (32, 32), "batch_size": 64, "start_steps": 300, "update_after": 300, "gamma": 0.0}
    agent = tfdpg.TD3(Identity(), pi_lr=3e-3, q_lr=3e-3, **options)
    options = {"actors": 2, "chunk": 25, "noise_levels": (0.1, 0.2), "variable_update_period": 25, "verbose": 0}
    history = distributed.fit(agent, Identity, epochs=2, steps_per_epoch=700, validation_env=Identity(), **options)
    assert history.history["val_return"][-1] > -0.02


@pytest.mark.slow
def test_workers_import_no_tensorflow_and_are_small(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter())
    options = SHORT | {"epochs": 10**6, "callbacks": [StopAfterReports(tmp_path, 2)]}
    distributed.fit(agent, functools.partial(ReportingCounter, tmp_path), **options)
    found = read_reports(tmp_path)
    assert len(found) == 2
    for facts in found:
        assert not {"tensorflow", "keras", "torch", "jax"} & set(facts["modules"])
        assert facts["VmRSS"] - facts["RssShmem"] < 200, facts
        assert facts["variables"] == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        with pytest.raises(ProcessLookupError):  # they ended with the training run
            wait_for_the_end_of(facts["pid"])
    seeds = [line.split()[1] for line in (tmp_path / "seeds.txt").read_text().splitlines()]
    assert len(seeds) == len(set(seeds)) >= 12  # 30 steps of each worker are 6 episodes


def wait_for_the_end_of(pid):
    for _ in range(600):
        os.kill(pid, 0)
        time.sleep(0.1)


@brief
@pytest.mark.slow
def test_a_keras_policy_acts_in_workers_too(local_ray):
    def agent():
        first, second = (keras.initializers.GlorotUniform(seed) for seed in (1, 2))
        hidden = keras.layers.Dense(4, "mish", kernel_initializer=first)
        last = keras.layers.Dense(1, "tanh", kernel_initializer=second)
        pi = keras.Sequential([keras.layers.Input((2,)), keras.layers.Rescaling(0.1), hidden, last])
        return tfdpg.TD3(Counter(), pi=pi, **{k: v for k, v in SMALL.items() if k != "start_steps"}, start_steps=0)

    with pytest.raises(ValueError, match="`worker_backend` must be 'tensorflow'"):
        distributed.fit(agent(), counter, **SHORT)
    one = agent()
    quiet = {"noise_levels": (0.0,), "actors": 1, "epochs": 1, "samples_per_insert": 0}
    distributed.fit(one, counter, **SHORT | quiet, worker_backend="tensorflow")
    stored = one.replay.transitions()
    expected = one.predict(stored["observations"])
    np.testing.assert_allclose(stored["actions"], expected, atol=1e-5)
    assert len(np.unique(expected)) > 3 and one.updates == 0


@pytest.mark.slow
def test_new_weights_reach_the_workers(local_ray):
    agent = tfdpg.TD3(Counter(), **SMALL | {"start_steps": 0, "normalize_observations": True, "pi_lr": 0.01})
    options = SHORT | {"actors": 1, "noise_levels": (0.0,), "variable_update_period": 1, "epochs": 1}
    distributed.fit(agent, counter, **options)
    stored = agent.replay.transitions()
    assert len(np.unique(stored["actions"][stored["observations"][:, 1] == 0][:20])) > 3


def shaped(reward, step, steps):
    return reward + 100 * (steps == 60)


@pytest.mark.slow
def test_the_learner_shapes_rewards_and_feeds_recorders(local_ray, tmp_path):
    agent = tfdpg.TD3(Counter(), **SMALL, reward_shaper=shaped, recorders=[tmp_path / "recorded"])
    history = distributed.fit(agent, counter, **SHORT | {"epochs": 1})
    rewards = agent.replay.transitions()["rewards"]
    assert rewards.min() == 101 and history.history["return"] == [15.0]
    with np.load(tmp_path / "recorded/000000.npz") as file:
        assert sorted(file["rewards"]) == sorted(rewards) and file["truncations"].sum() >= 10


@pytest.mark.slow
def test_samples_per_insert(local_ray):
    agent = AGENTS["DDPG"](Counter())
    distributed.fit(agent, counter, **SHORT | {"epochs": 1}, samples_per_insert=2, tolerance=0)
    earned = 2 / agent.options.batch_size * (agent.env_steps - 10)
    assert earned - 1 < agent.updates <= earned


@pytest.mark.parametrize("bad", ["reward", pytest.param("observation", marks=pytest.mark.slow)])
def test_numbers_that_are_not_finite_are_refused_and_not_stored(local_ray, bad):
    agent = AGENTS["DDPG"](Counter())
    with pytest.raises(ValueError, match=f"{bad} is not finite .*21 to 30"):
        distributed.fit(agent, lambda: Counter(bad=bad, bad_at=23), **SHORT | {"actors": 1})
    assert agent.env_steps == 20 == transitions(agent)


@pytest.mark.slow
def test_a_broken_environment_ends_training_with_its_traceback(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter())
    with pytest.raises(ZeroDivisionError, match="in step\n(.|\n)*this environment is broken"):
        distributed.fit(agent, functools.partial(ReportingCounter, tmp_path, raises_at=25), **SHORT)
    with pytest.raises(ValueError, match="The observation_space of `make_env`"):
        distributed.fit(agent, Identity, **SHORT)


@brief
@pytest.mark.slow
def test_a_killed_worker_comes_back_and_every_step_counts_once(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter(), replay_size=200_000)
    killer = Killer(tmp_path)
    make_env = functools.partial(ReportingCounter, tmp_path, sleep=0.0)
    options = SHORT | {"epochs": 10**6, "steps_per_epoch": 100}
    history = distributed.fit(agent, make_env, **options, callbacks=[killer]).history
    assert killer.killed and history["worker_restarts"][-1] == 1
    assert agent.env_steps == transitions(agent) == history["env_steps"][-1]
    (observations,) = agent.replay.observation(np.arange(agent.replay.size))
    firsts = (observations[:, 1] == 0).sum()
    assert firsts + agent.env_steps == agent.replay.added
    seeds = [line.split() for line in (tmp_path / "seeds.txt").read_text().splitlines()]
    assert len({pid for pid, _ in seeds}) == 3


class Killer(keras.callbacks.Callback):
    """Kills a worker after all have written their reports, and stops training when the restarted one has too."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory
        self.killed = None

    def on_epoch_end(self, epoch, logs=None):
        found = read_reports(self.directory)
        if self.killed is None and len(found) == 2:
            self.killed = found[0]["pid"]
            os.kill(self.killed, signal.SIGKILL)
        self.model.stop_training = len(found) == 3
        time.sleep(0.1)


def test_arguments_are_checked():
    agent = AGENTS["DDPG"](Counter())

    def refused(match, **changes):
        with pytest.raises(ValueError, match=match):
            distributed.fit(agent, changes.pop("make_env", counter), **SHORT | changes)

    refused("`actors` must be a positive integer", actors=0)
    refused("`noise_levels` must be 2 numbers", noise_levels=(0.1,))
    refused("`noise_levels` must .*of at least 0", noise_levels=(0.1, -1))
    refused("`chunk` must be", chunk=0)
    refused("`variable_update_period` must be", variable_update_period=0)
    refused("`samples_per_insert` must be", samples_per_insert=-1)
    refused("`tolerance` must be", tolerance=-1)
    refused("`worker_backend` must be", worker_backend="jax")
    refused("`replay_shards` must be at most actors=2", replay_shards=3)
    refused("`ray_address` must be", ray_address=6379)
    refused("`make_env` must be a callable", make_env=3)
    refused("'NoSuch-v0' cannot be made: ", make_env="NoSuch-v0")
    refused("`epochs` must be", epochs=0)
    agent = AGENTS["DDPG"](Counter(), epochs_per_round=1)
    refused("`samples_per_insert`.*`epochs_per_round`", samples_per_insert=1)
    refused("observation_space of `validation_env`", validation_env=gym.make("Pendulum-v1"))


@pytest.mark.parametrize("env_id", ["tests.environments:tfdpg-test/Counter-v0", "tests.environments:Counter"])
def test_an_id_may_name_the_module_that_registers_it_or_its_class(env_id):
    assert isinstance(environment_maker(env_id)().unwrapped, Counter)


@pytest.mark.parametrize("env_id", ["no_such_module:Counter", "tests.environments:tfdpg-test/Nothing-v0"])
def test_an_unknown_id_is_refused_before_workers_start(env_id):
    with pytest.raises(ValueError, match=f"'{env_id}' cannot be made: "):
        environment_maker(env_id)


def test_the_default_noise_levels_are_evenly_spaced():
    agent = AGENTS["DDPG"](Counter(), noise="ou", act_noise=0.1, ou_theta=0.2, act_noise_schedule=lambda step: 0.0)
    noises = [each.exploration.noise for each in worker_policies(agent, Distribution(actors=32), agent.data.actor)]
    normal = np.random.default_rng(0).standard_normal((2, 1, 1), np.float32)[:, 0, 0]
    for level, noise in enumerate(noises, start=1):
        rng = np.random.default_rng(0)
        first, second = (float(noise.sample(1, rng)[0, 0]) for _ in range(2))
        assert isinstance(noise, OrnsteinUhlenbeck)
        assert first == pytest.approx(level / 32 * normal[0], rel=1e-5)
        assert second == pytest.approx(0.8 * first + level / 32 * normal[1], rel=1e-4)
    (alone,) = worker_policies(agent, Distribution(actors=1), agent.data.actor)
    sampled = alone.exploration.noise.sample(1, np.random.default_rng(0))[0, 0]
    assert sampled == pytest.approx(0.1 * normal[0], rel=1e-5) and alone.exploration.factor(5) == 1
    with pytest.raises(ValueError, match="`agent` must .*explores with noise"):
        worker_policies(AGENTS["ACER"](Counter()), Distribution(), agent.data.actor)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "tfdpg\[ray\]"'):
        distributed.fit(None, "Pendulum-v1")
