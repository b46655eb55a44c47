"""Exports have statistics of their training data."""

import time

import gymnasium as gym
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL, fit_briefly, parametrize_agents
from tfdpg.export import training_statistics
from tfdpg.exported import metadata
from tfdpg.exported.statistics import read
from tfdpg.replay import ReplayBuffer
from tfdpg.spec import Spec


def test_they_are_those_of_the_steps_in_the_replay_buffer(tmp_path):
    agent = tfdpg.TD3("Pendulum-v1", **SMALL, normalize_observations=True)
    assert not (agent.export(tmp_path / "model") / "statistics.json").exists()  # nothing is in the buffer
    fit_briefly(agent, "Pendulum-v1", epochs=1, steps_per_epoch=60, max_ep_len=20)
    version = agent.export(tmp_path / "model")
    assert "statistics.json" in metadata(version)["files"]
    found = read(version)
    data = agent.replay.transitions()
    assert found[:3] == (60, 60, 60) and list(found.observations) == ["x[0]", "x[1]", "x[2]"]
    for i, each in enumerate(found.observations.values()):
        values = data["observations"][:, i]
        assert (each.mean, each.deviation) == pytest.approx((values.mean(), values.std()), rel=1e-5)
        np.testing.assert_allclose(each.quantiles[[0, 5, 10]], np.quantile(values, [0.01, 0.5, 0.99]), rtol=1e-5)
        assert each.missing == 0 and each.counts.sum() == 60 and each.steps >= 1
    assert found.actions["a[0]"].mean == pytest.approx(data["actions"].mean(), rel=1e-5)
    tfdpg.export.copy(version, tmp_path / "copy")
    assert read(tmp_path / "copy/1")[:3] == (60, 60, 60)


def buffer_of(spec, observations, actions=None):
    buffer = ReplayBuffer(spec, 100_000)
    start = np.zeros(1, int)
    buffer.begin(start, spec.pack(observations[0]))
    for i, following in enumerate(observations[1:]):
        action = np.zeros((1, spec.act_dim)) if actions is None else actions[i : i + 1]
        buffer.add(start, action, np.zeros(1), np.zeros(1, bool), spec.pack(following))
    return buffer


def test_the_newest_fifth_of_what_the_agent_collected_is_taken():
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.Box(-1, 1, (1,)))
    buffer = buffer_of(spec, np.arange(15_001.0)[:, None])
    found = training_statistics(spec, buffer, env_steps=15_000)
    assert found[:3] == (3000, 3000, 15_000)
    assert found.observations["x[0]"].mean == pytest.approx(np.arange(12_000, 15_000).mean())
    found = training_statistics(spec, buffer, env_steps=0)  # fit_offline read them
    assert found[:3] == (5000, 15_000, 15_000) and found.observations["x[0]"].mean == pytest.approx(7499.5, abs=1)
    short = training_statistics(spec, buffer_of(spec, np.zeros((2, 1))), 1)
    assert short[:3] == (1, 1, 1) and short.observations["x[0]"].counts.tolist() == [1, 0, 0]


def test_missing_numbers_are_counted():
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.Box(-1, 1, (1,)))
    buffer = buffer_of(spec, np.where(np.arange(101) % 4 == 0, np.nan, 1.0)[:, None])
    assert training_statistics(spec, buffer, 100).observations["x[0]"].missing == 0.25


def test_dict_observations_and_discrete_actions():
    spec = Spec(
        gym.spaces.Dict({"a_b": gym.spaces.Box(-1, 1, (2,)), "c": gym.spaces.Discrete(3)}), gym.spaces.Discrete(2)
    )
    observations = [{"a_b": np.array([i / 10, -i / 10]), "c": i % 3} for i in range(7)]
    found = training_statistics(spec, buffer_of(spec, observations, np.array([[0], [1], [1], [1], [0], [1]])), 6)
    assert (
        set(found.observations) == {"a_b[0]", "a_b[1]", "c"}
        and found.observations["c"].counts.tolist() == [2] * 3 + [0] * 2
    )
    assert list(found.actions) == ["a"] and found.actions["a"].counts.tolist() == [2, 4, 0, 0]


@pytest.mark.slow
@parametrize_agents()
def test_every_agent_has_the_executed_actions(make):
    agent = make("Pendulum-v1")
    fit_briefly(agent, "Pendulum-v1", epochs=1, steps_per_epoch=40)
    found = training_statistics(agent.spec, agent.replay, agent.env_steps).actions["a[0]"]
    taken = np.clip(agent.replay.transitions()["actions"], -2, 2)
    assert found.mean == pytest.approx(taken.mean(), rel=1e-4, abs=1e-6) and abs(found.quantiles).max() <= 2


@pytest.mark.slow
def test_many_components_take_less_than_two_seconds():
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (376,)), gym.spaces.Box(-1, 1, (17,)))
    buffer = buffer_of(spec, np.random.default_rng(0).normal(size=(6000, 376)).astype(np.float32))
    start = time.perf_counter()
    training_statistics(spec, buffer, 0)
    assert time.perf_counter() - start < 2
