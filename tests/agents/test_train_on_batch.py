"""`train_on_batch` makes the same update as one on a sampled minibatch."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import ACER, AGENTS, EAGER, fit_briefly, parametrize_agents
from tests.environments import Counter
from tfdpg.replay import TransitionLayout, WindowLayout


def trained(make, ends, steps=40):
    env = Counter(length=3, ends=ends)
    agent = make(env, **EAGER)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=steps)
    return agent


def transitions(agent, packed):
    """Return the arrays of a sampled minibatch by name."""
    layout = TransitionLayout.of(agent.spec)
    rows = packed[0][0]
    columns = {"actions": layout.action, "rewards": layout.reward, "weights": layout.weight}
    columns |= {"observations": layout.observation, "next_observations": layout.next_observation}
    discount = rows[:, layout.discount]
    ends = {"terminations": discount == 0, "discounts": np.where(discount == 0, 0.5, discount)}
    return {name: rows[:, column] for name, column in columns.items()} | ends


def windows(agent, packed):
    layout = WindowLayout.of(agent.spec, agent.replay.step_width)
    rows = packed[0][0]
    inner = rows[:, :-1]
    act_dim = agent.spec.act_dim
    ended = inner[..., layout.acted] == 0
    assert ended.any(), "a cut is among them"
    return {
        "observations": rows[..., layout.observation],
        "actions": inner[..., layout.step][..., :act_dim],
        "behaviours": inner[..., layout.step][..., act_dim:],
        "rewards": np.where(ended, 7.0, inner[..., layout.reward]),
        "terminations": inner[..., layout.discount] == 0,
        "truncations": np.concatenate([ended[:, 1:], np.zeros((len(rows), 1), bool)], axis=1),
    }


def packed_by(agent, batch, monkeypatch):
    """Return the minibatch that `train_on_batch` gives to the learner, without the update."""
    given = []
    with monkeypatch.context() as patch:
        patch.setattr(agent.learner, "update_on_batch", given.append)
        agent.train_on_batch(batch)
    return given[0]


@parametrize_agents("DDPG")
def test_it_equals_an_update_on_a_sampled_minibatch(make, monkeypatch):
    is_acer = make is AGENTS["ACER"]
    drawn, given = (trained(make, "truncated" if is_acer else "terminated") for _ in range(2))
    packed, _ = given.data.minibatch_builder(given.updates, 1)
    batch = windows(given, packed) if is_acer else transitions(given, packed)
    for part, repacked in zip(packed, packed_by(given, batch, monkeypatch), strict=True):
        np.testing.assert_array_equal(part, repacked)
    before = given.updates
    logs = given.train_on_batch(batch)
    expected = drawn.learn(updates=1)
    assert logs.keys() == expected.keys() and "loss" in logs and given.updates == before + 1
    np.testing.assert_allclose(list(logs.values()), list(expected.values()), rtol=1e-6)
    for mine, theirs in zip(given.get_weights(), drawn.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(scope="module")
def td3():
    return AGENTS["TD3"](Counter(as_dict=True))


@pytest.fixture
def batch(td3):
    rng = np.random.default_rng(0)
    observations = {"position": rng.normal(size=(8, 2)), "phase": rng.integers(1, 4, 8)}
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (8, 1)),
        "rewards": rng.normal(size=8),
        "terminations": np.zeros(8, bool),
        "next_observations": observations,
    }


def test_the_default_discount_is_gamma_and_the_default_weight_is_1(td3, batch, monkeypatch):
    layout = TransitionLayout.of(td3.spec)
    (packed,) = packed_by(td3, batch, monkeypatch)
    assert (packed[0, :, layout.discount] == np.float32(0.99)).all() and (packed[0, :, layout.weight] == 1).all()
    flat = {f"observations/{key}": value for key, value in batch.pop("observations").items()}
    (same,) = packed_by(td3, batch | flat | {"truncations": np.ones(8, bool)}, monkeypatch)
    np.testing.assert_array_equal(packed, same)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rewards": np.zeros(7)}, r"'rewards'\]` .*\(8,\). Received: \(7,\)"),
        ({"actions": np.zeros((8, 2))}, r"'actions'\]` .*\(8, 1\). .* \(8, 2\)"),
        ({"weights": np.full(8, np.nan)}, r"`batch\['weights'\]` must be finite"),
        ({"terminations": np.full(8, 2)}, r"`batch\['terminations'\]` must be 0 or 1. Received: 2"),
        ({"weights": np.full(8, -1)}, r"`batch\['weights'\]` must be at least 0. Received: -1"),
        ({"discounts": np.full(8, 99)}, r"`batch\['discounts'\]` must be from 0 to 1. Received: 99"),
        ({"discounts": np.full(8, -0.5)}, r"`batch\['discounts'\]` must be from 0 to 1. Received: -0.5"),
        (
            {"rewards": np.ma.masked_less(np.arange(8), 3)},
            r"no masked values. Received: .* in 'rewards'",
        ),
        ({"dones": np.zeros(8)}, r"unknown arrays: \['dones'\]"),
        ({"observations": {"position": np.zeros((8, 2))}}, "`observation` must be .*a dict with the keys .'position'"),
    ],
)
def test_wrong_arrays_are_rejected_without_an_update(td3, batch, changes, message):
    with pytest.raises(ValueError, match=message):
        td3.train_on_batch(batch | changes)
    with pytest.raises(ValueError, match="`batch` must have 'rewards'"):
        td3.train_on_batch({name: value for name, value in batch.items() if name != "rewards"})
    with pytest.raises(ValueError, match="`batch` must be a dict .*Received: list"):
        td3.train_on_batch([1])
    assert td3.updates == 0


def test_d4pg_needs_a_support_because_it_cannot_be_estimated():
    agent = tfdpg.D4PG(Counter(), batch_size=2, hidden_units=(4,), jit_compile=False)
    zeros = np.zeros((2, 2))
    batch = {"observations": zeros, "next_observations": zeros, "actions": np.zeros(2), "rewards": np.zeros(2)}
    with pytest.raises(ValueError, match="`v_min` and `v_max`"):
        agent.train_on_batch(batch | {"terminations": np.zeros(2)})


def noted(seen, update, batch, counter):
    seen.append(int(counter) if tf.executing_eagerly() else None)
    return update(batch, counter)


@parametrize_agents("DDPG")
def test_eager_updates_run_python_each_time_and_equal_compiled_ones(make):
    env = gym.make("Pendulum-v1")
    numbers = {}
    for run_eagerly in (False, True):
        agent = make(env, run_eagerly=run_eagerly)
        seen = []
        real = agent.update
        agent.update = functools.partial(noted, seen, real)
        fit_briefly(agent, env, epochs=1, steps_per_epoch=30)
        numbers[run_eagerly] = agent.get_weights()
        assert seen == (list(range(1, agent.updates + 1)) if run_eagerly else [None])
    for compiled, eager in zip(numbers[False], numbers[True], strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1e-6)


def test_run_eagerly_excludes_jit_compile():
    with pytest.raises(ValueError, match="`run_eagerly=True` .*: jit_compile=True"):
        tfdpg.ACER(Counter(), **ACER | {"jit_compile": True, "run_eagerly": True})
