"""A training run that is stopped anywhere, saved and loaded is bit-identical to one that never stopped."""

import contextlib
import functools

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import ACER, SMALL, fit_briefly
from tests.environments import Counter, RandomWalk
from tfdpg.replay import segments
from tfdpg.training.checkpoints.checkpoint import state_of
from tfdpg.training.environment.env_runner import TRAINING, reset_seed

ENV_FNS = [lambda length=length: RandomWalk(length) for length in (30, 41, 57)]
SCHEDULE = {"epochs": 3, "steps_per_epoch": 90, "max_ep_len": 50, "verbose": 0}


class StoppedError(Exception):
    """Stands for anything that ends a training run."""


class StopAt(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if self.model.env_steps >= self.steps:
            raise StoppedError


class Logs(keras.callbacks.Callback):
    """What epochs logged, but for times."""

    def __init__(self):
        super().__init__()
        self.logs = {}

    def on_epoch_end(self, epoch, logs=None):
        self.logs[epoch] = {name: value for name, value in logs.items() if "per_second" not in name}


def vector(mode):
    return SyncVectorEnv(ENV_FNS, autoreset_mode=mode)


RECIPE = {name: value for name, value in tfdpg.recipes.RECIPES["normalized"].items() if name not in SMALL}
RECURRENT_OPTIONS = {"recurrent": "lstm", "recurrent_units": (4,), "sequence_length": 4, "burn_in": 2}
KINDS = {
    "eager": (tfdpg.DDPG, SMALL | {"run_eagerly": True, "gradient_steps": 1, "update_every": 30}, RandomWalk),
    "td3": (tfdpg.TD3, SMALL, RandomWalk),
    "prioritised": (tfdpg.TD3, SMALL | {"replay": "prioritized"}, RandomWalk),
    "ou and normaliser": (tfdpg.DDPG, SMALL | {"noise": "ou", "normalize_observations": True}, RandomWalk),
    "passes": (tfdpg.TD3, SMALL | {"epochs_per_round": 1, "max_minibatches_per_round": 3}, RandomWalk),
    "d4pg": (tfdpg.D4PG, SMALL | {"v_min": -5000, "v_max": 0}, RandomWalk),
    "recipe": (tfdpg.TD3, SMALL | RECIPE, RandomWalk),
    "acer": (tfdpg.ACER, ACER, functools.partial(vector, AutoresetMode.NEXT_STEP)),
    "lstm": (tfdpg.TD3, SMALL | RECURRENT_OPTIONS, functools.partial(vector, AutoresetMode.SAME_STEP)),
    "sub-environments": (tfdpg.TD3, SMALL, functools.partial(vector, AutoresetMode.DISABLED)),
    "processes": (tfdpg.TD3, SMALL, lambda: gym.vector.AsyncVectorEnv(ENV_FNS)),
    "mujoco": (tfdpg.TD3, SMALL, lambda: gym.make("HalfCheetah-v5")),
}


def trained(agent, make_env, *callbacks, **options):
    with contextlib.closing(make_env()) as env, contextlib.suppress(StoppedError):
        fit_briefly(agent, env, **SCHEDULE | {"callbacks": list(callbacks)} | options)
    return agent


def arrays_of(agent, directory):
    """What a checkpoint has of the weights, the optimizers, the replay and its sampler, and all rows."""
    agent.save(directory)
    with np.load(directory / "variables.npz") as variables, np.load(directory / "replay.npz") as replay:
        return {**variables, **replay, **segments.as_one_segment(agent.replay)}


def assert_equal(agent, other, directory):
    """Weights, optimizers, counters, random states, the replay and what samplers know of it."""
    assert state_of(agent) == state_of(other)
    arrays = arrays_of(agent, directory / "one")
    others = arrays_of(other, directory / "another")
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], name, strict=True)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "eager" else pytest.mark.slow) for kind in KINDS]
)
def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path, kind):
    new, options, make_env = KINDS[kind]
    with contextlib.closing(make_env()) as env:
        whole, agent = (new(env, **options) for _ in range(2))
    validated = {"validation_env": RandomWalk(), "validation_episodes": 1} if kind == "eager" else {}
    uncut = Logs()
    logs = [Logs() for _ in range(3)]
    trained(whole, make_env, uncut, **validated)
    for steps, log in zip((47, 133, 10_000), logs, strict=True):  # within an epoch, later in another, and never
        trained(agent, make_env, log, StopAt(steps), initial_epoch=agent.epoch, **validated)
        agent.save(tmp_path / "agent")
        agent = tfdpg.load_agent(tmp_path / "agent")
    assert_equal(whole, agent, tmp_path)
    assert agent.env_steps >= 3 * SCHEDULE["steps_per_epoch"] and agent.updates >= 8
    assert str(uncut.logs) == str(logs[0].logs | logs[1].logs | logs[2].logs) and len(uncut.logs) == 3


def opened(env, steps, tmp_path, **options):
    """An agent that was saved after that many steps in the first epoch, and loaded."""
    agent = trained(
        tfdpg.DDPG(env, **SMALL | {"update_after": 1000, "update_every": 1} | options), lambda: env, StopAt(steps)
    )
    agent.save(tmp_path / "agent")
    return tfdpg.load_agent(tmp_path / "agent")


def test_an_environment_that_does_not_repeat_itself_is_named(tmp_path):
    def make_env():
        return SyncVectorEnv([RandomWalk, lambda: Counter(length=17)])  # which counts its episodes

    agent = opened(make_env(), 72, tmp_path)
    begun = agent.replay.state()["opened"]
    added = agent.replay.added
    with pytest.warns(UserWarning, match="environment 1 is.*another obs.* 0 steps"):
        trained(agent, make_env, StopAt(78))
    assert agent.replay.state()["opened"].tolist() == [
        begun[0],
        added,
    ] and agent.data.collector.episodes.tolist() == [2, 4]
    assert len(agent.replay.open_episode(0)) == 10 and len(agent.replay.open_episode(1)) == 4


def test_an_episode_that_ends_before_it_did_is_named(tmp_path):
    agent = opened(RandomWalk(), 20, tmp_path)
    with pytest.warns(UserWarning, match="Sub-environment 0 is .* led to an end"):
        trained(agent, lambda: RandomWalk(length=12), StopAt(25))
    assert len(agent.replay.open_episode(0)) == 6


@pytest.mark.parametrize("replay_size, is_held", [(26, True), (25, False)])
def test_an_episode_goes_on_as_long_as_the_replay_holds_it_whole(tmp_path, replay_size, is_held):
    agent = opened(RandomWalk(), 25, tmp_path, replay_size=replay_size)
    expected = (
        contextlib.nullcontext() if is_held else pytest.warns(UserWarning, match=r"open in sub-environments \[0\]")
    )
    with expected:
        trained(agent, RandomWalk, StopAt(29))
    assert agent.data.collector.episodes.tolist() == [1 if is_held else 2]
    assert agent.replay.added == (30 if is_held else 31)


def test_an_episode_that_nobody_acted_in_yet_begins_as_it_would_have(tmp_path):
    agent = opened(RandomWalk(), 30, tmp_path)
    assert agent.replay.state()["heads"].tolist() == [-1] and agent.data.collector.episodes.tolist() == [2]
    trained(agent, RandomWalk, StopAt(31))
    assert agent.data.collector.episodes.tolist() == [2]
    first = RandomWalk().reset(seed=reset_seed(agent.seed, TRAINING, 0, 1))[0]
    np.testing.assert_array_equal(agent.replay.observation(agent.replay.open_episode(0)[:1])[0][0], first)


@pytest.mark.parametrize("meanwhile", ["fit", "fit_offline", "act", "sub-environments"])
def test_otherwise_open_episodes_are_closed(tmp_path, meanwhile):
    agent = opened(RandomWalk(), 20, tmp_path)
    make_env = RandomWalk
    if meanwhile == "fit":
        trained(agent, RandomWalk, StopAt(25))
    elif meanwhile == "fit_offline":
        fit_offline = {"epochs": 1, "steps_per_epoch": 1, "verbose": 0}
        agent.fit_offline(None, **fit_offline)
    elif meanwhile == "act":
        agent.act(np.zeros(2, np.float32))
    else:
        make_env = functools.partial(SyncVectorEnv, ENV_FNS[:2])
    steps = agent.env_steps
    trained(agent, make_env, StopAt(steps + 2))
    assert (agent.replay.state()["opened"] >= steps + 1).all()
    assert len(agent.replay.open_episode(0)) == (2 if meanwhile == "sub-environments" else 3)


def test_recorders_take_up_an_open_episode_where_it_is(tmp_path):
    opened(RandomWalk(), 20, tmp_path)
    agent = tfdpg.load_agent(tmp_path / "agent", recorders=tmp_path / "rows")
    trained(agent, RandomWalk, StopAt(35))
    with np.load(tmp_path / "rows/000000.npz") as rows:
        assert len(rows["rewards"]) == 15 and np.flatnonzero(rows["truncations"]).tolist() == [9]
