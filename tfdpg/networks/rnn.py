"""Recurrent cells, unrolled over sequences of any length."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpg.arguments import reject
from tfdpg.streams import Purpose, seeds

CELL_TYPES = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell, "rnn": keras.layers.SimpleRNNCell}
"""The cells that have names, with Keras' default settings. NumPy and the function `unroll` support these cells."""


@keras.saving.register_keras_serializable("tfdpg")
class RNNStack(keras.layers.Layer):
    """Stacked Keras RNN cells: each receives the output of the cell before it."""

    def __init__(self, cells: Sequence[keras.layers.Layer], **kwargs: Any):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.cells = list(cells)
        loop = {"return_sequences": True, "return_state": True, "dtype": "float32"}
        self.layers = [None if cell_name(cell) else keras.layers.RNN(cell, **loop) for cell in self.cells]
        self.widths = [state_widths(cell) for cell in self.cells]
        self.state_width = sum(map(sum, self.widths))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights."""
        width = input_shape[-1]
        for cell in self.cells:
            if not cell.built:
                cell.build((None, width))
            width = output_width(cell)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the last cell's outputs."""
        return (*input_shape[:-1], output_width(self.cells[-1]))

    def call(self, inputs: Any, state: Any, valid: Any, training: bool = False) -> tuple[Any, Any]:
        """Run the cells over sequences.

        Args:
            inputs: `[batch, steps, n]`.
            state: state before the first step, `[batch, state_width]`.
            valid: mask of the valid steps, bool `[batch, steps]`; the others do not change the state.
            training: as for any Keras layer; only custom cells use it.

        Returns:
            The outputs of the last cell, `[batch, steps, units]`, and the state after the last step.
        """
        states = tf.split(state, [width for widths in self.widths for width in widths], axis=-1)
        last = []
        for cell, layer, widths in zip(self.cells, self.layers, self.widths, strict=True):
            before = states[: len(widths)]
            states = states[len(widths) :]
            if layer is None:
                inputs, after = unroll(cell, inputs, before, valid)
            else:
                inputs, *after = layer(inputs, initial_state=before, mask=valid, training=training)
            last += after
        return inputs, tf.concat(last, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Return the cells, serialized."""
        return super().get_config() | {"cells": [keras.saving.serialize_keras_object(cell) for cell in self.cells]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RNNStack":
        """Build a layer from the result of `get_config`."""
        cells = [keras.saving.deserialize_keras_object(cell) for cell in config.pop("cells")]
        return cls(cells, **config)


def unroll(cell: Any, inputs: Any, state: list[Any], valid: Any) -> tuple[Any, list[Any]]:
    """Run a named cell over sequences; returns its outputs `[batch, steps, units]` and its state after the last step.

    The steps are a loop, because XLA compiles 30 unrolled steps for minutes. The products of the inputs and the kernel
    are computed before the loop. A single step, as in exported policies, does not use a loop, because LiteRT does not
    support lists of tensors.
    """
    bias, recurrent_bias = tf.unstack(cell.bias) if cell.bias.shape.rank == 2 else (cell.bias, tf.zeros_like(cell.bias))
    given = tf.tensordot(tf.transpose(inputs, [1, 0, 2]), cell.kernel, 1) + bias
    weights = tf.convert_to_tensor(cell.recurrent_kernel), recurrent_bias
    if inputs.shape[1] == 1:
        after = CELL_STEPS[type(cell)](given[0], state[0] @ weights[0] + recurrent_bias, *state)
        after = [tf.where(valid, new, old) for new, old in zip(after, state, strict=True)]
        return after[0][:, None], after
    outputs, *last = _loop(CELL_STEPS[type(cell)], tf.expand_dims(tf.transpose(valid), -1))(given, *weights, *state)
    return tf.transpose(outputs, [1, 0, 2]), last


def _loop(step: Callable[..., list[Any]], valid: Any) -> Callable[..., Any]:
    """Return a function from input products, weights and a state to outputs and the last state.

    Only steps that are `valid` change the state. The gradient is backpropagation through time in a second loop; the
    gradients of the weights are computed in one product after that loop.
    """

    @tf.custom_gradient
    def run(given: Any, kernel: Any, bias: Any, *state: Any) -> Any:
        def forward(t: Any, before: list[Any], states: list[Any], recurrent: Any) -> Any:
            product = before[0] @ kernel + bias
            after = step(given[t], product, *before)
            after = [tf.where(valid[t], new, old) for new, old in zip(after, before, strict=True)]
            written = [array.write(t, part) for array, part in zip(states, after, strict=True)]
            return t + 1, after, written, recurrent.write(t, product)

        steps = tf.shape(given)[0]
        arrays = [_array(given, part) for part in state]
        start = tf.constant(0), list(state), arrays, _array(given, given[0])
        _, last, arrays, products = tf.while_loop(lambda t, *_: t < steps, forward, start, **_loop_options(given))
        states = [array.stack() for array in arrays]
        products = products.stack()

        def gradient(grad_output: Any, *grad_last: Any) -> Any:
            before = [tf.concat([first[None], rows[:-1]], 0) for first, rows in zip(state, states, strict=True)]

            def backward(t: Any, grad_state: list[Any], grad_given: Any, grad_product: Any) -> Any:
                grad_state = [grad_state[0] + grad_output[t], *grad_state[1:]]
                taken = [given[t], products[t], *(rows[t] for rows in before)]
                grad_after = [tf.where(valid[t], part, 0.0) for part in grad_state]
                one, two, *others = _vector_jacobian_products(step, taken, grad_after)
                grad_state = [tf.where(valid[t], 0.0, old) + new for old, new in zip(grad_state, others, strict=True)]
                grad_state[0] += tf.matmul(two, kernel, transpose_b=True)
                return t - 1, grad_state, grad_given.write(t, one), grad_product.write(t, two)

            start = steps - 1, list(grad_last), _array(given, given[0]), _array(given, given[0])
            _, grad_state, *arrays = tf.while_loop(lambda t, *_: t >= 0, backward, start, **_loop_options(given))
            grad_given, grad_product = (array.stack() for array in arrays)
            grad_kernel = tf.tensordot(before[0], grad_product, [[0, 1], [0, 1]])
            return grad_given, grad_kernel, tf.reduce_sum(grad_product, [0, 1]), *grad_state

        return (states[0], *last), gradient

    return run


def _vector_jacobian_products(step: Callable[..., list[Any]], taken: list[Any], grad_after: list[Any]) -> list[Any]:
    """Return the gradients of a step's results, weighted by `grad_after`, with respect to each of its arguments."""
    nothing = tf.UnconnectedGradients.ZERO
    if not tf.executing_eagerly():  # in the graph of a loop, a tape would keep an LSTM's graph alive forever
        return tf.gradients(step(*taken), taken, grad_after, unconnected_gradients=nothing)
    tape: Any
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(taken)
        after = step(*taken)
    return tape.gradient(after, taken, grad_after, unconnected_gradients=nothing)


def _array(rows: Any, like: Any) -> tf.TensorArray:
    """Return an array of tensors of the shape of `like`, one for each of the `rows`."""
    return tf.TensorArray(tf.float32, rows.shape[0] or tf.shape(rows)[0], element_shape=like.shape)


def _loop_options(rows: Any) -> dict[str, Any]:
    return {"maximum_iterations": rows.shape[0], "parallel_iterations": 1}


def _lstm(given: Any, recurrent: Any, h: Any, c: Any) -> list[Any]:
    """Return h and c; the gates are in the order input, forget, cell, output."""
    i, f, new, o = tf.split(given + recurrent, 4, axis=-1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(new)
    return [tf.sigmoid(o) * tf.tanh(c), c]


def _gru(given: Any, recurrent: Any, h: Any) -> list[Any]:
    """Return h; the gates are in the order update, reset, candidate, and reset is applied after the product.

    XLA would fuse all gates into one slow loop; concatenating two of them prevents that.
    """
    (z, r, new), (z_h, r_h, new_h) = (tf.split(part, 3, axis=-1) for part in (given, recurrent))
    z, r = tf.split(tf.sigmoid(tf.concat([z + z_h, r + r_h], axis=-1)), 2, axis=-1)
    return [z * h + (1 - z) * tf.tanh(new + r * new_h)]


def _rnn(given: Any, recurrent: Any, h: Any) -> list[Any]:
    return [tf.tanh(given + recurrent)]


CELL_STEPS: dict[type, Callable[..., list[Any]]] = {
    keras.layers.LSTMCell: _lstm,
    keras.layers.GRUCell: _gru,
    keras.layers.SimpleRNNCell: _rnn,
}


def make_cells(recurrent: Any, units: int | Sequence[int], seed: int) -> list[keras.layers.Layer]:
    """Build recurrent cells, from the first to the last; they compute in float32 under any Keras dtype policy.

    Args:
        recurrent: "lstm", "gru", "rnn", or a Keras RNN cell, which is copied by its configuration. A `StackedRNNCells`
            is replaced by its cells.
        units: units of each layer of named cells, or of the only layer.
        seed: seed of the initial weights, except for initializers that have a seed.

    Raises:
        ValueError: `recurrent` is something else, or a cell whose state is not made of vectors.
    """
    layers = [units] if isinstance(units, int) else units
    cells = [CELL_TYPES[recurrent](n) for n in layers] if isinstance(recurrent, str) else _flatten_cells(recurrent)
    copies = []
    for depth, cell in enumerate(cells):
        config: Any = keras.saving.serialize_keras_object(cell)
        config["config"] |= {"dtype": "float32"}
        own_seeds = iter(seeds(Purpose.RECURRENT, seed, depth, count=32))
        try:
            copies.append(keras.saving.deserialize_keras_object(_seeded(config, own_seeds)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                "`recurrent` cannot be copied by its configuration. Custom cells need "
                f"@keras.saving.register_keras_serializable() and get_config(). Keras says: {error}"
            ) from error
    return copies


def _flatten_cells(cell: Any) -> list[Any]:
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [one for part in cell.cells for one in _flatten_cells(part)]
    state_widths(cell)
    return [cell]


def _seeded(config: Any, own_seeds: Any) -> Any:
    """Return a configuration in which each unset seed is set."""
    if isinstance(config, dict):
        return {
            key: next(own_seeds) if key == "seed" and value is None else _seeded(value, own_seeds)
            for key, value in config.items()
        }
    return [_seeded(part, own_seeds) for part in config] if isinstance(config, list) else config


def cell_name(cell: keras.layers.Layer) -> str | None:
    """Return the name of a cell with Keras' default settings; None for any other cell."""
    for name, kind in CELL_TYPES.items():
        if type(cell) is kind:
            plain = kind(1).get_config()
            own = cell.get_config()
            free = {"name", "units", "dtype", "seed"} | {key for key in plain if key.endswith("initializer")}
            return name if all(own[key] == plain[key] for key in plain if key not in free) else None
    return None


def state_widths(cell: Any) -> list[int]:
    """Return the widths of the parts of a cell's state; the first part of a named cell's state is its output.

    Raises:
        ValueError: `cell` is not an RNN cell, or its state is not made of vectors.
    """
    is_cell = isinstance(cell, keras.layers.Layer) and not isinstance(cell, keras.layers.RNN)
    if not is_cell or not hasattr(cell, "state_size"):
        raise reject("recurrent", '"lstm", "gru", "rnn" or a Keras RNN cell such as keras.layers.LSTMCell(64)', cell)
    sizes = cell.state_size if isinstance(cell.state_size, list | tuple) else [cell.state_size]
    if not all(isinstance(size, int) for size in sizes):
        raise reject("recurrent", "a cell whose state is made of vectors", f"{cell}, with states of {sizes}")
    return list(sizes)


def output_width(cell: Any) -> int:
    """Return the width of a cell's output."""
    return getattr(cell, "output_size", None) or state_widths(cell)[0]


def part_names(cells: Sequence[keras.layers.Layer]) -> tuple[tuple[str, int], ...]:
    """Return the names and widths of the parts of a state: `h`, `c`; with several cells `h_0`, `c_0`, `h_1`, ..."""
    names = []
    for depth, cell in enumerate(cells):
        for part, width in enumerate(state_widths(cell)):
            letter = "hc"[part] if part < 2 else f"s{part}"
            names.append((letter if len(cells) == 1 else f"{letter}_{depth}", width))
    return tuple(names)
