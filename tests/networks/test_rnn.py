"""Memories against Keras' own layers and against a loop in NumPy."""

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
    """A custom cell: its output is not its state."""

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


def hard(units):
    return keras.layers.LSTMCell(units, recurrent_activation="hard_sigmoid")


CELLS = {
    "lstm": lambda: make_cells("lstm", 4, 1),
    "gru": lambda: make_cells("gru", 4, 1),
    "rnn": lambda: make_cells("rnn", 4, 1),
    "two lstms": lambda: make_cells("lstm", (4, 2), 1),
    "hard lstm": lambda: make_cells(hard(4), 64, 1),
    "custom": lambda: make_cells(Decay(3), 64, 1),
    "a stack": lambda: make_cells(keras.layers.StackedRNNCells([keras.layers.GRUCell(4), hard(2), Decay(3)]), 64, 1),
}
everyone = pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=[pytest.mark.slow] * (name != "a stack"), id=name) for name, make in CELLS.items()],
)


def rnn_of(cells, rng):
    rnn = RNNStack(cells)
    rnn.build((None, None, WIDTH))
    for weight in rnn.weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return rnn


def inputs(rnn, rng):
    numbers = rng.normal(size=(BATCH, STEPS, WIDTH)), rng.normal(size=(BATCH, rnn.state_width))
    return tuple(tf.constant(part, tf.float32) for part in numbers)


def by_hand(rnn, x, state, valid):
    """Cell by cell, and each sequence alone, over its valid steps."""
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


@everyone
def test_it_goes_through_its_cells_one_step_at_a_time_and_past_what_is_masked(make, rng):
    rnn = rnn_of(make(), rng)
    x, state = inputs(rnn, rng)
    expected, expected_last = by_hand(rnn, x, state, MASKS)
    for jit in (False, True):
        run = tf.function(lambda x, state: rnn(x, state, tf.constant(MASKS)), jit_compile=jit)
        outputs, last = run(x, state)
        np.testing.assert_allclose(outputs.numpy()[MASKS], expected[MASKS], atol=1e-5)
        np.testing.assert_allclose(last, expected_last, atol=1e-5)
        np.testing.assert_array_equal(run(x + tf.where(MASKS[..., None], 0.0, 9.0), state)[1], last)


@everyone
@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_its_gradients_are_those_of_keras_layers(make, jit, rng):
    rnn = rnn_of(make(), rng)
    x, state = inputs(rnn, rng)
    share = tf.constant(rng.normal(size=(BATCH, STEPS, 1)) * MASKS[..., None], tf.float32)
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
            loss = tf.reduce_sum(share * outputs**2) + tf.reduce_sum(tf.sin(last))
        return tape.gradient(loss, [*variables, x, state])

    ours = tf.function(lambda: gradients(lambda *given: rnn(*given, tf.constant(MASKS))), jit_compile=jit)()
    theirs = tf.function(lambda: gradients(in_keras))()
    assert len(ours) == len(variables) + 2 > 2
    for mine, expected in zip(ours, theirs, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(mine, expected, atol=2e-5)
    assert not ours[-2].numpy()[~MASKS].any()


@everyone
def test_it_is_copied_and_made_again_from_its_configuration(make, rng):
    rnn = rnn_of(make(), rng)
    x, state = inputs(rnn, rng)
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


@pytest.mark.parametrize("recurrent", ["lstm", "gru", "rnn", hard(8), keras.layers.StackedRNNCells([hard(8), hard(8)])])
def test_a_seed_fixes_its_weights(recurrent):
    first, again, other = (weights_of(recurrent, seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.array_equal(a, c) == (a.ndim == 1 or not a.any())  # biases
    kernels = [weight for weight in weights_of("gru", 1, (3, 3)) if weight.shape == (3, 9)]
    assert len(kernels) == 4
    assert not any(np.array_equal(a, b) for i, a in enumerate(kernels) for b in kernels[:i])


def test_initializers_keep_seeds_of_their_own():
    cell = keras.layers.GRUCell(4, kernel_initializer=keras.initializers.RandomNormal(seed=5))
    first, other = (weights_of(cell, seed) for seed in (1, 2))
    np.testing.assert_array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[0], keras.initializers.RandomNormal(seed=5)((WIDTH, 12)))
    assert not np.array_equal(first[1], other[1])
    assert not cell.built


def test_a_cell_that_is_none_is_refused_with_its_name():
    for wrong in (64, keras.layers.Dense(4), keras.layers.LSTM(4)):
        with pytest.raises(ValueError, match="`recurrent` must be .* or a Keras RNN cell .*Received: recurrent="):
            make_cells(wrong, 4, 0)


@pytest.mark.parametrize("recurrent", ["gru", Decay(3)], ids=["gru", "own"])
def test_half_precision_is_not_for_memories(recurrent):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        pi, critic, _, recurrent_spec = networks_of(recurrent, ("observation", "action"))
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
REMEMBERS = [
    ("observation",),
    ("observation", "action"),
    ("reward", "observation"),
    ("observation", "action", "reward"),
]
QUICK = [("lstm", REMEMBERS[3]), ("gru", REMEMBERS[1]), ("rnn", REMEMBERS[2]), ("own", REMEMBERS[0])]


def networks_of(recurrent, remembers, units=4):
    """A policy, a critic, and the policy in NumPy, all with weights of their own and statistics of observations."""
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
    """Observations, what came before each step as it is packed, and actions to ask about."""
    observation = rng.normal(size=(BATCH, STEPS, 3)).astype(np.float32)
    before = np.concatenate([rng.uniform(BOX.low, BOX.high, (BATCH, STEPS, 2)), rng.normal(size=(BATCH, STEPS, 1))], -1)
    columns = [0, 1] * recurrent_spec.uses_action + [2] * recurrent_spec.uses_reward
    before = before[..., columns].astype(np.float32)
    before[:, 0] = recurrent_spec.initial_state(BATCH)[:, : recurrent_spec.previous_width]
    return observation, before, rng.uniform(BOX.low, BOX.high, (BATCH, STEPS, 2)).astype(np.float32)


@pytest.mark.parametrize(
    "recurrent, remembers",
    [
        pytest.param(cell, remembers, marks=[pytest.mark.slow] * ((name, remembers) not in QUICK), id=f"{name}-{i}")
        for name, cell in {"lstm": "lstm", "gru": "gru", "rnn": "rnn", "hard": hard(4), "own": Decay(3)}.items()
        for i, remembers in enumerate(REMEMBERS)
    ],
)
def test_unrolled_is_stepped_one_at_a_time(recurrent, remembers, rng):
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


def test_at_the_start_a_memory_sees_zeros():
    for remembers in REMEMBERS[1:]:
        pi, _, _, recurrent_spec = networks_of("gru", remembers)
        start = recurrent_spec.initial_state(1)[:, : recurrent_spec.previous_width]
        np.testing.assert_allclose(pi.previous_scaling(start), np.zeros_like(start), atol=1e-6)
        if recurrent_spec.uses_action:
            bounds = np.stack([BOX.low, BOX.high])
            seen = pi.previous_scaling(
                np.concatenate([bounds, np.ones((2, int(recurrent_spec.uses_reward)), np.float32)], 1)
            )
            np.testing.assert_allclose(seen[:, :2], [[-1, -1], [1, 1]], atol=1e-6)


@pytest.mark.parametrize("recurrent", ["lstm", keras.layers.StackedRNNCells([keras.layers.GRUCell(4), Decay(3)])])
def test_networks_with_a_memory_are_saved_and_copied(recurrent, tmp_path, rng):
    pi, critic, _, recurrent_spec = networks_of(recurrent, ("observation", "action"))
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


def test_the_parts_of_a_state_have_names():
    assert part_names(make_cells("lstm", 4, 0)) == (("h", 4), ("c", 4))
    assert part_names(make_cells("gru", (4, 2), 0)) == (("h_0", 4), ("h_1", 2))
    assert part_names([hard(3), Decay(2)]) == (("h_0", 3), ("c_0", 3), ("h_1", 2))
