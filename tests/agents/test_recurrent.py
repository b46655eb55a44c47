"""Recurrent agents: what their updates depend on, and the ways to make updates."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.step_by_step import BURN_IN, LENGTH, collect, make
from tfdpg.replay import SequenceLayout
from tfdpg.replay.segments import as_one_segment

SMALL = {"recurrent": "lstm", "recurrent_units": 3, "n_step": 2}
CLONING = SMALL | {"bc_weight": 0.3}


def filled(kind=tfdpg.TD3, **options):
    """Return an agent with a filled replay buffer."""
    agent = make(kind, **SMALL | ({"policy_delay": 1} if kind is tfdpg.TD3 else {}) | options)
    collect(agent)
    return agent


def layout_of(agent):
    return SequenceLayout.of(agent.spec, agent.data.behaviour.policy_state.recurrent_spec.previous_width)


def learnt(agent, packed):
    """Make an update on packed sequences; return the weights and the logs."""
    logs = agent.learner.update_on_batch(packed)
    return agent.get_weights(), logs


def changed(packed, where, columns, number):
    """Return packed sequences with `number` in some columns of the rows `where`, bool `[batch, rows]`."""
    real = packed[0].copy()
    part = real[0][:, :, columns]
    part[where] = number
    real[0][:, :, columns] = part
    return (real, *packed[1:])


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def one():
    """An agent, packed sequences, and a function that returns the weights after an update from the initial weights."""
    agent = filled(tfdpg.DDPG, bc_weight=0.3, remembers=("observation", "action", "reward"))
    packed, _ = agent.data.minibatch_builder(0, 1)
    weights = agent.get_weights()

    def learn(packed):
        agent.set_weights(weights)
        agent.learner.counter.assign(0)
        return learnt(agent, packed)[0]

    return agent, packed, learn


def test_masked_steps_and_steps_without_a_loss_change_no_weight(one):
    agent, packed, learn = one
    layout = layout_of(agent)
    real = packed[0][0]
    before = learn(packed)
    valid = real[..., layout.valid] > 0
    rows = np.arange(real.shape[1])
    in_front = ~valid & (rows < BURN_IN)
    behind = ~valid & (rows > BURN_IN)
    burnt_in = np.broadcast_to(rows < BURN_IN, valid.shape)
    ahead = np.broadcast_to(rows >= BURN_IN + LENGTH, valid.shape)
    not_taken = (rows >= BURN_IN) & (rows < BURN_IN + LENGTH) & (real[..., layout.bootstrap_index] == rows)
    assert in_front.any() and behind.any() and (burnt_in & valid).any() and not_taken.any()
    for where in (in_front, behind):
        for columns in (layout.observation, layout.previous):
            assert_same(learn(changed(packed, where, columns, 2.5)), before)
    for where in (burnt_in, ahead):
        assert_same(learn(changed(packed, where, slice(layout.action.start, layout.width), 2.0)), before)
    for columns in (layout.action, slice(layout.reward, layout.weight)):
        assert_same(learn(changed(packed, not_taken, columns, 0.7)), before)


@pytest.mark.parametrize(
    "columns, where",
    [("observation", "burn-in"), ("previous", "burn-in"), ("observation", "learnt"), ("previous", "learnt")]
    + [(name, "learnt") for name in ("action", "reward", "discount", "weight")]
    + [("observation", "last")],
)
def test_valid_inputs_change_the_weights(one, columns, where):
    agent, packed, learn = one
    layout = layout_of(agent)
    real = packed[0][0]
    rows = np.arange(real.shape[1])
    here = {"burn-in": rows == BURN_IN - 1, "learnt": rows == BURN_IN, "last": rows == BURN_IN + LENGTH + 1}[where]
    columns = getattr(layout, columns)
    columns = columns if isinstance(columns, slice) else slice(columns, columns + 1)
    other = changed(packed, here & (real[..., layout.valid] > 0), columns, 0.7)
    assert not all(map(np.array_equal, learn(other), learn(packed)))


def test_the_stored_state_changes_the_weights(one):
    agent, packed, learn = one
    states = packed[1] + np.float32(0.5)
    moved = [not np.array_equal(a, b) for a, b in zip(learn((packed[0], states)), learn(packed), strict=True)]
    assert moved[0] and sum(moved) > 1


def test_burn_in_updates_the_state_and_has_no_gradient(one):
    agent, packed, _ = one
    batch = agent.data.unpack(tuple(tf.constant(part[0]) for part in packed))
    for name, action in (("pi", None), ("q1", batch.action)):
        network = agent.networks[name]
        with tf.GradientTape() as tape:
            tape.watch([batch.observation, batch.previous, batch.state])
            output = tf.reduce_sum(batch.ask(network, action) ** 2)
        gradients = tape.gradient(output, [batch.observation, batch.previous, batch.state])
        assert gradients[2] is None
        for gradient in gradients[:2]:
            assert not gradient[:, :BURN_IN].numpy().any() and gradient[:, BURN_IN:].numpy().any()
        start = batch.state if action is None else tf.zeros_like(batch.state)
        early = [part[:, :BURN_IN] for part in (batch.observation, batch.previous, batch.valid)]
        _, state = network.unroll(*early, start)
        from_stored_state = batch._replace(
            observation=batch.observation[:, BURN_IN:],
            previous=batch.previous[:, BURN_IN:],
            valid=batch.valid[:, BURN_IN:],
            state=state,
            burn_in=0,
        )
        if action is None:
            np.testing.assert_array_equal(from_stored_state.ask(network), batch.ask(network))
        else:
            assert not np.array_equal(from_stored_state.ask(network, action), batch.ask(network, action))


@pytest.mark.slow
@pytest.mark.parametrize("n_step, stored", [(2, True), (1, False)])
def test_train_on_batch_equals_an_update_on_the_sampled_batch(n_step, stored):
    options = SMALL | {"policy_delay": 1, "n_step": n_step, "stored_state": stored, "remembers": ("observation",)}
    drawn, given = (make(tfdpg.TD3, **options) for _ in range(2))
    collect(drawn)
    episodes, rows = collect(given)
    given.learn(updates=1)
    drawn.learn(updates=1)
    slots = given.data.minibatch_builder(given.updates, 1)[1][0]
    steps = BURN_IN + LENGTH + n_step - 1
    batch = {name: np.zeros((len(slots), steps)) for name in ("masks", "terminations", "rewards")}
    batch |= {"observations": np.zeros((len(slots), steps + 1, 2)), "actions": np.zeros((len(slots), steps, 2))}
    for i, (number, t) in enumerate(map(rows.__getitem__, slots)):
        episode = episodes[number]
        taken = len(episodes[number].actions)
        for k, s in enumerate(range(t - BURN_IN, t - BURN_IN + steps)):
            if 0 <= s < taken:
                batch["masks"][i, k] = 1
                batch["actions"][i, k] = episode.actions[s]
                batch["rewards"][i, k] = episode.rewards[s]
                batch["terminations"][i, k] = bool(episode.terminated) and s == taken - 1
                batch["observations"][i, k : k + 2] = episode.observations[s : s + 2]
    if stored:
        first = [slot - min(BURN_IN, rows[slot][1]) for slot in slots]
        batch["states"] = as_one_segment(given.replay)["rows"][first, given.replay.obs_width + 2 : -1]
    assert not batch["masks"].all() and batch["terminations"].any()
    assert given.train_on_batch(batch) == pytest.approx(drawn.learn(updates=1), rel=1e-5)
    assert_same(given.get_weights(), drawn.get_weights())


def noted(seen, update, batch, counter):
    seen.append(int(counter) if tf.executing_eagerly() else None)
    return update(batch, counter)


@pytest.mark.slow
def test_eager_updates_equal_compiled_ones():
    weights = {}
    for run_eagerly in (False, True):
        agent = filled(run_eagerly=run_eagerly, **CLONING)
        seen = []
        real = agent.update
        agent.update = functools.partial(noted, seen, real)
        agent.learn(updates=3)
        weights[run_eagerly] = agent.get_weights()
        assert seen == ([1, 2, 3] if run_eagerly else [None])
    for compiled, eager in zip(weights[False], weights[True], strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["lstm", "gru", "rnn"])
def test_xla_computes_the_same_updates(recurrent):
    plain, compiled = (filled(recurrent=recurrent, bc_weight=0.1, jit_compile=jit) for jit in (False, True))
    for agent in (plain, compiled):
        agent.learn(updates=20)
    for x, y in zip(plain.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_many_updates_at_once_equal_one_by_one():
    one = filled()
    many = filled()
    for _ in range(7):
        one.learn(updates=1)
    many.learn(updates=7)
    assert_same(one.get_weights(), many.get_weights())
