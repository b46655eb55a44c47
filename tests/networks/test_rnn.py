"""Recurrent networks, compared with Keras' RNN layers and with a loop over single steps."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from tests.acting.test_acting import in_numpy
from tfdpg import Spec
from tfdpg.networks import Normalizer, RNNSpec, RNNStack
from tfdpg.networks.heads import Value
from tfdpg.networks.recurrent import recurrent_actor, recurrent_critic
from tfdpg.networks.rnn import make_cells, part_names

BATCH = 4
STEPS = 6
WIDTH = 3
MASKS = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]], bool)


@keras.saving.register_keras_serializable("tfdpg-test")
class Decay(keras.layers.Layer):
    """A custom cell whose output differs from its state."""

    def __init__(self, units, keeps=0.5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.keeps = keeps
        self.state_size = units
        self.output_size = 2 * units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="ones")
        self.built = True

    def call(self, x, states, training=False):
        h = self.keeps * states[0] + keras.ops.tanh(keras.ops.matmul(x, self.kernel))
        return keras.ops.concatenate([h, -h], axis=-1), [h]

    def get_config(self):
        return super().get_config() | {"units": self.units, "keeps": self.keeps}


def hard_lstm(units):
    """An LSTM cell with an option that is not Keras' default, so that tfdpg does not unroll it itself."""
    return keras.layers.LSTMCell(units, recurrent_activation="hard_sigmoid")


def stack():
    """Cells of every kind that `RNNStack` treats differently: each built-in cell, and two that Keras' layer unrolls."""
    built_in = [keras.layers.LSTMCell(2), keras.layers.GRUCell(4), keras.layers.SimpleRNNCell(3)]
    return keras.layers.StackedRNNCells([*built_in, hard_lstm(2), Decay(3)])


@pytest.fixture
def rnn(rng):
    """A stack of cells with random weights."""
    rnn = RNNStack(make_cells(stack(), 64, 1))
    rnn.build((None, None, WIDTH))
    for weight in rnn.weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return rnn


def random_inputs(rnn, rng):
    numbers = rng.normal(size=(BATCH, STEPS, WIDTH)), rng.normal(size=(BATCH, rnn.state_width))
    return tuple(tf.constant(part, tf.float32) for part in numbers)


def by_hand(rnn, x, state, valid):
    """Apply the cells to each sequence separately, one valid step at a time."""
    outputs = np.zeros((BATCH, STEPS, rnn(x, state, valid)[0].shape[-1]))
    last = np.array(state)
    for i in range(BATCH):
        for t in np.flatnonzero(valid[i]):
            features = x[i : i + 1, t]
            start = 0
            for cell, widths in zip(rnn.cells, rnn.widths, strict=True):
                stop = start + sum(widths)
                parts = tf.split(tf.constant(last[i : i + 1, start:stop]), widths, axis=-1)
                features, after = cell(features, list(parts))
                after = after if isinstance(after, list | tuple) else [after]
                last[i, start:stop] = np.concatenate([np.array(part)[0] for part in after])
                start = stop
            outputs[i, t] = features[0]
    return outputs, last


def test_a_stack_applies_its_cells_step_by_step_and_skips_masked_steps(rnn, rng):
    x, state = random_inputs(rnn, rng)
    expected, expected_last = by_hand(rnn, x, state, MASKS)
    for jit in (False, True):
        run = tf.function(lambda x, state: rnn(x, state, tf.constant(MASKS)), jit_compile=jit)
        outputs, last = run(x, state)
        np.testing.assert_allclose(outputs.numpy()[MASKS], expected[MASKS], atol=1e-5)
        np.testing.assert_allclose(last, expected_last, atol=1e-5)
        np.testing.assert_array_equal(run(x + tf.where(MASKS[..., None], 0.0, 9.0), state)[1], last)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_equal_those_of_keras_layers(rnn, jit, rng):
    x, state = random_inputs(rnn, rng)
    loss_weight = tf.constant(rng.normal(size=(BATCH, STEPS, 1)) * MASKS[..., None], tf.float32)
    layers = [keras.layers.RNN(cell, return_sequences=True, return_state=True) for cell in rnn.cells]
    variables = [weight.value for weight in rnn.trainable_variables]

    def in_keras(x, state):
        states = tf.split(state, [width for widths in rnn.widths for width in widths], axis=-1)
        last = []
        for layer, widths in zip(layers, rnn.widths, strict=True):
            own = states[: len(widths)]
            states = states[len(widths) :]
            x, *after = layer(x, initial_state=own, mask=tf.constant(MASKS))
            last += after
        return x, tf.concat(last, axis=-1)

    def gradients(run):
        with tf.GradientTape() as tape:
            tape.watch([x, state])
            outputs, last = run(x, state)
            loss = tf.reduce_sum(loss_weight * outputs**2) + tf.reduce_sum(tf.sin(last))
        return tape.gradient(loss, [*variables, x, state])

    ours = tf.function(lambda: gradients(lambda *inputs: rnn(*inputs, tf.constant(MASKS))), jit_compile=jit)()
    theirs = gradients(in_keras)
    assert len(ours) == len(variables) + 2 > 2
    for mine, expected in zip(ours, theirs, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(mine, expected, atol=2e-5)
    assert not ours[-2].numpy()[~MASKS].any()


def test_a_stack_is_copied_and_restored_from_its_configuration(rnn, rng):
    x, state = random_inputs(rnn, rng)
    copied = copy.deepcopy(rnn)
    again = RNNStack.from_config(rnn.get_config())
    again.build((None, None, WIDTH))
    assert len(again.get_weights()) == len(rnn.get_weights()) == len({id(w) for w in rnn.weights})
    again.set_weights(rnn.get_weights())
    expected = [part.numpy() for part in rnn(x, state, MASKS)]
    for weight in rnn.weights:
        weight.assign(0 * weight)
    for other in (copied, again):
        for mine, theirs in zip(other(x, state, MASKS), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


def weights_of(recurrent, seed, units=8):
    rnn = RNNStack(make_cells(recurrent, units, seed))
    rnn.build((None, None, WIDTH))
    return rnn.get_weights()


def test_a_seed_determines_the_initial_weights():
    cells = [keras.layers.LSTMCell(8), keras.layers.GRUCell(8), keras.layers.SimpleRNNCell(8), hard_lstm(8)]
    first, again, other = (weights_of(keras.layers.StackedRNNCells(cells), seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.array_equal(a, c) == (a.ndim == 1 or not a.any())  # biases
    kernels = [weight for weight in weights_of("gru", 1, (3, 3)) if weight.shape == (3, 9)]
    assert len(kernels) == 4
    assert not any(np.array_equal(a, b) for i, a in enumerate(kernels) for b in kernels[:i])


def test_initializers_keep_their_own_seeds():
    cell = keras.layers.GRUCell(4, kernel_initializer=keras.initializers.RandomNormal(seed=5))
    first, other = (weights_of(cell, seed) for seed in (1, 2))
    np.testing.assert_array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[0], keras.initializers.RandomNormal(seed=5)((WIDTH, 12)))
    assert not np.array_equal(first[1], other[1])
    assert not cell.built


def test_an_argument_that_is_not_a_cell_is_rejected():
    for wrong in (64, keras.layers.Dense(4), keras.layers.LSTM(4)):
        with pytest.raises(ValueError, match="`recurrent` must be .* a Keras RNN cell"):
            make_cells(wrong, 4, 0)


def test_recurrent_layers_compute_in_float32_under_a_half_precision_policy():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        pi, critic, _, recurrent_spec = networks_of(stack(), ("observation", "action"))
        x = np.full((2, 3), 0.3, np.float32), np.full((2, recurrent_spec.width), 0.7, np.float32)
        output = pi(x)
        rnn_output, state = critic.unroll(
            x[0][:, None], x[1][:, None, :2], np.ones((2, 1), bool), critic.initial_state(x[0])
        )
        assert {pi.torso.layers[1].compute_dtype} == {"bfloat16"}
    finally:
        keras.config.set_dtype_policy(policy)
    assert output.dtype == rnn_output.dtype == state.dtype == tf.float32
    assert {weight.dtype for weight in pi.weights} == {"float32"}
    rnn = RNNStack(pi.rnn.cells)
    seen = tf.concat([tf.cast(pi.encoder(x[0]), tf.float32), pi.previous_scaling(x[1][:, :2])], -1)[:, None]
    _, expected = rnn(seen, tf.constant(x[1][:, 2:]), np.ones((2, 1), bool))
    np.testing.assert_allclose(output[:, 2:], expected, atol=1e-6)


BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32))
SPEC = Spec(spaces.Box(-5, 5, (3,)), BOX)
TORSO = {"torso": "mlp", "hidden_units": (5,), "activation": "relu", "encoder": None, "l2": 0.0}
REMEMBERS = [("observation", "action"), ("reward", "observation"), ("observation", "action", "reward")]


def networks_of(recurrent, remembers, units=4):
    """Return a policy, a critic, the policy in NumPy, and the recurrent spec.

    Weights and observation statistics are random. NumPy has no policy with custom cells: it is None for those.
    """
    rnn_spec = RNNSpec.of(SPEC, recurrent, units, remembers, True)
    normalizer = Normalizer(1e-3, 2.0, dtype="float32")
    pi = recurrent_actor(rnn_spec, SPEC, **TORSO, normalizer=normalizer, seed=1, output=None)
    critic = recurrent_critic(rnn_spec, SPEC, **TORSO, normalizer=normalizer, seed=2, name="q1", head=Value)
    rng = np.random.default_rng(5)
    for weight in pi.trainable_variables + critic.trainable_variables:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    normalizer.mean.assign(rng.normal(size=3))
    normalizer.variance.assign(rng.uniform(1, 2, 3))
    actor = None
    if all(kind for kind, _ in rnn_spec.cell_kinds):
        actor = in_numpy(SPEC, pi, rnn_spec.recurrent_spec)
    return pi, critic, actor, rnn_spec.recurrent_spec


def history(recurrent_spec, rng):
    """Return random observations, the packed previous actions and rewards, and actions for the critic."""
    observation = rng.normal(size=(BATCH, STEPS, 3)).astype(np.float32)
    before = np.concatenate([rng.uniform(BOX.low, BOX.high, (BATCH, STEPS, 2)), rng.normal(size=(BATCH, STEPS, 1))], -1)
    columns = [0, 1] * recurrent_spec.uses_action + [2] * recurrent_spec.uses_reward
    before = before[..., columns].astype(np.float32)
    before[:, 0] = recurrent_spec.initial_state(BATCH)[:, : recurrent_spec.previous_width]
    return observation, before, rng.uniform(BOX.low, BOX.high, (BATCH, STEPS, 2)).astype(np.float32)


@pytest.mark.parametrize(
    "recurrent, remembers",
    [
        pytest.param(
            keras.layers.StackedRNNCells(
                [keras.layers.LSTMCell(4), keras.layers.GRUCell(3), keras.layers.SimpleRNNCell(4)]
            ),
            ("observation", "action", "reward"),
            id="built-in",
        ),
        pytest.param(
            keras.layers.StackedRNNCells([hard_lstm(4), Decay(3)]), ("reward", "observation"), id="unrolled by Keras"
        ),
        pytest.param("gru", ("observation",), id="observations only"),
    ],
)
def test_unrolling_equals_single_steps(recurrent, remembers, rng):
    pi, critic, actor, recurrent_spec = networks_of(recurrent, remembers)
    observation, before, action = history(recurrent_spec, rng)
    valid = np.ones((BATCH, STEPS), bool)
    unrolled, last = pi.unroll(observation, before, valid, pi.initial_state(observation))
    flat = tf.reshape(unrolled, [-1, unrolled.shape[-1]])
    outputs = pi.apply_torso(flat).numpy().reshape(BATCH, STEPS, 2)
    assert np.ptp(outputs[..., 0]) > 0.05
    for act in [lambda x: pi(x).numpy(), *([actor] if actor else [])]:
        recurrent_inputs = recurrent_spec.initial_state(BATCH)
        for t in range(STEPS):
            recurrent_inputs[:, : recurrent_spec.previous_width] = before[:, t]
            answer = act((observation[:, t], recurrent_inputs.copy()))
            np.testing.assert_allclose(answer[:, :2], outputs[:, t], atol=1e-5)
            recurrent_inputs[:, recurrent_spec.previous_width :] = answer[:, 2:]
        np.testing.assert_allclose(recurrent_inputs[:, recurrent_spec.previous_width :], last, atol=1e-5)
    unrolled, _ = critic.unroll(observation, before, valid, critic.initial_state(observation))
    values = critic.apply_torso(tf.reshape(unrolled, [BATCH * STEPS, -1]), tf.reshape(action, [-1, 2])).numpy()
    state = critic.initial_state(observation)
    for t in range(STEPS):
        one = slice(t, t + 1)
        rnn_output, state = critic.unroll(observation[:, one], before[:, one], valid[:, one], state)
        value = critic.apply_torso(rnn_output[:, 0], tf.constant(action[:, t]))
        np.testing.assert_allclose(value, values.reshape(BATCH, STEPS)[:, t], atol=1e-5)


def test_the_previous_action_and_reward_are_zero_at_the_start_of_an_episode():
    for remembers in REMEMBERS:
        pi, _, _, recurrent_spec = networks_of("gru", remembers)
        start = recurrent_spec.initial_state(1)[:, : recurrent_spec.previous_width]
        np.testing.assert_allclose(pi.previous_scaling(start), np.zeros_like(start), atol=1e-6)
        if recurrent_spec.uses_action:
            bounds = np.stack([BOX.low, BOX.high])
            seen = pi.previous_scaling(
                np.concatenate([bounds, np.ones((2, int(recurrent_spec.uses_reward)), np.float32)], 1)
            )
            np.testing.assert_allclose(seen[:, :2], [[-1, -1], [1, 1]], atol=1e-6)


def test_recurrent_networks_are_saved_and_copied(tmp_path, rng):
    pi, critic, _, recurrent_spec = networks_of(stack(), ("observation", "action"))
    x = (rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(2, recurrent_spec.width)).astype(np.float32))
    pi.save(tmp_path / "pi.keras")
    loaded = keras.saving.load_model(tmp_path / "pi.keras")
    copied = copy.deepcopy(pi)
    expected = pi(x).numpy()
    for mine, theirs in zip(loaded.get_weights(), pi.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for weight in pi.weights:
        weight.assign(0 * weight)
    np.testing.assert_allclose(loaded(x), expected, atol=1e-6)
    np.testing.assert_allclose(copied(x), expected, atol=1e-6)
    again = type(critic).from_config(critic.get_config())
    again.set_weights(critic.get_weights())
    args = (
        x[0][:, None],
        x[1][:, None, : recurrent_spec.previous_width],
        np.ones((2, 1), bool),
        critic.initial_state(x[0]),
    )
    np.testing.assert_allclose(again.unroll(*args)[0], critic.unroll(*args)[0], atol=1e-6)


def test_the_parts_of_the_state_are_named():
    assert part_names(make_cells("lstm", 4, 0)) == (("h", 4), ("c", 4))
    assert part_names(make_cells("gru", (4, 2), 0)) == (("h_0", 4), ("h_1", 2))
    assert part_names([hard_lstm(3), Decay(2)]) == (("h_0", 3), ("c_0", 3), ("h_1", 2))
