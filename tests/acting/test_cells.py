"""Recurrent cells in NumPy, against formulas gate by gate, and against Keras."""

import keras
import numpy as np
import pytest
from gymnasium import spaces

from tests.acting.test_acting import in_numpy
from tfdpg import Spec
from tfdpg.acting import RecurrentSpec
from tfdpg.acting.cells import rnn_cells, step_cells
from tfdpg.networks import Normalizer, RNNSpec
from tfdpg.networks.recurrent import recurrent_actor

KERAS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell, "rnn": keras.layers.SimpleRNNCell}
STATES = {"lstm": 2, "gru": 1, "rnn": 1}
BOX = spaces.Box(np.float32([-1, 0]), np.float32([3, 1]))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, state, kernel, recurrent, bias):
    h, c = np.split(state, 2)
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return np.concatenate([sigmoid(o) * np.tanh(c), c])


def gru(x, h, kernel, recurrent, bias):
    x_z, x_r, x_h = np.split(x @ kernel + bias[0], 3)
    h_z, h_r, h_h = np.split(h @ recurrent + bias[1], 3)
    z = sigmoid(x_z + h_z)
    r = sigmoid(x_r + h_r)
    return z * h + (1 - z) * np.tanh(x_h + r * h_h)


def rnn(x, h, kernel, recurrent, bias):
    return np.tanh(x @ kernel + h @ recurrent + bias)


@pytest.mark.parametrize(("kind", "gates", "step"), [("lstm", 4, lstm), ("gru", 3, gru), ("rnn", 1, rnn)])
def test_a_step_gate_by_gate(kind, gates, step, rng):
    width, units = 3, 5
    bias = (2, gates * units) if kind == "gru" else (gates * units,)
    weights = [rng.normal(size=shape) for shape in ((width, gates * units), (units, gates * units), bias)]
    x = rng.normal(size=(4, width))
    state = rng.normal(size=(4, STATES[kind] * units))
    (cell,) = rnn_cells([weight.astype(np.float32) for weight in weights], [(kind, units)])
    found = cell(x.astype(np.float32), state.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [step(*row, *weights) for row in zip(x, state, strict=True)], atol=1e-5)


@pytest.mark.parametrize("kinds", [("lstm",), ("gru",), ("rnn",), ("lstm", "gru", "lstm")], ids="-".join)
@pytest.mark.parametrize("num_envs", [1, 6])
def test_sequences_equal_keras(kinds, num_envs, rng):
    layers = [KERAS[kind](units) for kind, units in zip(kinds, (7, 4, 3), strict=False)]
    stack = keras.layers.RNN(layers, return_sequences=True, return_state=True)
    x = rng.normal(size=(num_envs, 9, 5)).astype(np.float32)
    stack(x)
    for weight in stack.weights:
        weight.assign(rng.normal(size=weight.shape))
    y, *states = stack(x)
    cells = rnn_cells(stack.get_weights(), [(kind, layer.units) for kind, layer in zip(kinds, layers, strict=True)])
    state = np.zeros((num_envs, sum(cell.state_width for cell in cells)), np.float32)
    for t in range(9):
        before = state.copy()
        kept = state
        output, state = step_cells(cells, x[:, t], state)
        np.testing.assert_array_equal(kept, before)  # the state before a step is stored with it
        np.testing.assert_allclose(output, y[:, t], atol=1e-5)
    flat = [part for state in states for part in (state if isinstance(state, (list, tuple)) else [state])]
    np.testing.assert_allclose(state, np.concatenate(flat, axis=1), atol=1e-5)


@pytest.mark.parametrize("reward", [False, True])
@pytest.mark.parametrize("action", [False, True])
def test_an_actor_with_a_memory_equals_keras(action, reward, rng):
    spec = Spec(spaces.Box(-5, 5, (3,)), BOX)
    recurrent_spec = RecurrentSpec(spec, action, reward, (("h", 4), ("c", 4)), stored=True)
    cell = keras.layers.LSTMCell(4)
    first = keras.layers.Dense(6, "relu")
    last = keras.layers.Dense(2, "tanh")
    mean = rng.normal(size=3)
    variance = rng.uniform(1, 2, 3)

    def act(observation, before, reward_before, h, c):
        x = [np.clip((observation - mean) / (np.sqrt(variance) + 1e-3), -2, 2)]
        x += [(before - [1, 0.5]) / [2, 0.5]] if action else []
        x = np.concatenate(x + ([reward_before] if reward else []), axis=1).astype(np.float32)
        y, (h, c) = cell(x, [h, c])
        return np.concatenate([last(first(y)) * [2, 0.5] + [1, 0.5], h, c], axis=1)

    observation = rng.normal(size=(5, 3)).astype(np.float32)
    before = rng.uniform([-1, 0], [3, 1], (5, 2))
    reward_before, h, c = (rng.normal(size=(5, n)).astype(np.float32) for n in (1, 4, 4))
    act(observation, before, reward_before, h, c)
    for weight in (*cell.weights, *first.weights, *last.weights):
        weight.assign(rng.normal(size=weight.shape))
    expected = act(observation, before, reward_before, h, c)

    rnn_spec = RNNSpec("lstm", 4, recurrent_spec)
    normalizer = Normalizer(1e-3, 2.0, dtype="float32")
    torso = {"torso": "mlp", "hidden_units": (6,), "activation": "relu", "encoder": None, "l2": 0.0}
    pi = recurrent_actor(rnn_spec, spec, **torso, normalizer=normalizer, seed=0, output=None)
    weights = [mean, variance, *(weight.numpy() for weight in (*cell.weights, *first.weights, *last.weights))]
    pi.set_weights(weights)
    actor = in_numpy(spec, pi, recurrent_spec)
    flat = actor.weights
    parts = [before] * action + [reward_before] * reward + [h, c]
    recurrent_inputs = np.concatenate(parts, axis=1).astype(np.float32)
    given = recurrent_inputs.copy()
    np.testing.assert_allclose(actor((observation, recurrent_inputs)), expected, atol=1e-5)
    np.testing.assert_array_equal(recurrent_inputs, given)

    other = actor.without_weights()
    other.load(flat)
    np.testing.assert_array_equal(other((observation, recurrent_inputs)), actor((observation, recurrent_inputs)))
    with pytest.raises(ValueError, match=f"must have {len(flat)} elements. Received: {len(flat) + 1}"):
        actor.load(np.append(flat, np.float32(0)))
