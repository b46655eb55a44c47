"""The memory of a network: recurrent cells, unrolled over sequences of any length."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpg.arguments import reject
from tfdpg.streams import Purpose, seeds

KINDS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell, "rnn": keras.layers.SimpleRNNCell}
"""The cells that have names, with Keras' default settings: those that NumPy and the loop below know."""


@keras.saving.register_keras_serializable("tfdpg")
class Memory(keras.layers.Layer):
    """Cells one above the other, from what there was at each step to what is remembered of it.

    Args:
        cells: Keras RNN cells.
    """

    def __init__(self, cells: Sequence[keras.layers.Layer], **kwargs: Any):
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.cells = list(cells)
        self.layers = [None if kind_of(cell) else _keras_loop(cell) for cell in self.cells]
        self.widths = [state_widths(cell) for cell in self.cells]
        self.state_width = sum(map(sum, self.widths))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        width = input_shape[-1]
        for cell in self.cells:
            if not cell.built:
                cell.build((None, width))
            width = output_width(cell)

    def call(self, inputs: Any, state: Any, valid: Any, training: bool = False) -> tuple[Any, Any]:
        """What is remembered after each step.

        Args:
            inputs: `[batch, steps, n]`.
            state: before the first step, `[batch, state_width]`.
            valid: which steps there were, bool `[batch, steps]`; the others leave the state as it is.
            training: as for any Keras layer; for cells of one's own.

        Returns:
            `[batch, steps, units]`, and the state after the last step.
        """
        states, last = tf.split(state, [width for widths in self.widths for width in widths], axis=-1), []
        for cell, layer, widths in zip(self.cells, self.layers, self.widths, strict=True):
            before, states = states[: len(widths)], states[len(widths) :]
            if layer is None:
                inputs, after = unroll(cell, inputs, before, valid)
            else:
                inputs, *after = layer(inputs, initial_state=before, mask=valid, training=training)
            last += after
        return inputs, tf.concat(last, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """The cells."""
        return super().get_config() | {"cells": [keras.saving.serialize_keras_object(cell) for cell in self.cells]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Memory":
        """The inverse of `get_config`."""
        cells = [keras.saving.deserialize_keras_object(cell) for cell in config.pop("cells")]
        return cls(cells, **config)


def unroll(cell: Any, inputs: Any, state: list[Any], valid: Any) -> tuple[Any, list[Any]]:
    """A stock cell's outputs `[batch, steps, units]`, and its state after the last step.

    A loop, since XLA takes minutes for 30 steps that are written out; what inputs alone decide is multiplied before it.
    """
    steps, step = inputs.shape[1], STEPS[type(cell)]
    bias, recurrent_bias = (cell.bias, 0.0) if cell.bias.shape.rank == 1 else tf.unstack(cell.bias)
    given = tf.transpose(tf.tensordot(inputs, cell.kernel, 1) + bias, [1, 0, 2])
    kernel, there = tf.convert_to_tensor(cell.recurrent_kernel), tf.transpose(valid)[..., None]
    outputs = tf.TensorArray(tf.float32, size=steps, element_shape=state[0].shape)

    def body(t: Any, before: list[Any], outputs: tf.TensorArray) -> Any:
        after = step(given[t], before[0] @ kernel + recurrent_bias, *before)
        after = [tf.where(there[t], new, old) for new, old in zip(after, before, strict=True)]
        return t + 1, after, outputs.write(t, after[0])

    start = tf.constant(0), state, outputs
    limits: Any = {"maximum_iterations": steps, "parallel_iterations": 1}
    _, last, outputs = tf.while_loop(lambda t, *_: t < tf.shape(given)[0], body, start, **limits)
    return tf.transpose(outputs.stack(), [1, 0, 2]), last


def _lstm(given: Any, recurrent: Any, h: Any, c: Any) -> list[Any]:
    """Gates in the order input, forget, cell, output."""
    i, f, new, o = tf.split(given + recurrent, 4, axis=-1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(new)
    return [tf.sigmoid(o) * tf.tanh(c), c]


def _gru(given: Any, recurrent: Any, h: Any) -> list[Any]:
    """Gates in the order update, reset, candidate; the reset gate comes after the product."""
    (z, r, new), (z_h, r_h, new_h) = (tf.split(part, 3, axis=-1) for part in (given, recurrent))
    z = tf.sigmoid(z + z_h)
    return [z * h + (1 - z) * tf.tanh(new + tf.sigmoid(r + r_h) * new_h)]


def _rnn(given: Any, recurrent: Any, h: Any) -> list[Any]:
    return [tf.tanh(given + recurrent)]


STEPS: dict[type, Callable[..., list[Any]]] = {
    keras.layers.LSTMCell: _lstm,
    keras.layers.GRUCell: _gru,
    keras.layers.SimpleRNNCell: _rnn,
}


def make_cells(recurrent: Any, units: int | Sequence[int], seed: int) -> list[keras.layers.Layer]:
    """New cells, from the lowest to the highest; they compute in float32 whatever Keras' dtype policy.

    Args:
        recurrent: "lstm", "gru", "rnn", or a Keras RNN cell, which is copied by its configuration; what a
            `StackedRNNCells` holds are cells of their own.
        units: of each layer of named cells, or of the only one.
        seed: fixes their initial weights, but for initializers with seeds of their own.

    Raises:
        ValueError: something else, or a cell whose state is not made of vectors.
    """
    layers = [units] if isinstance(units, int) else units
    cells = [KINDS[recurrent](n) for n in layers] if isinstance(recurrent, str) else _several(recurrent)
    copies = []
    for depth, cell in enumerate(cells):
        config = keras.saving.serialize_keras_object(cell)
        config["config"] |= {"dtype": "float32"}
        own_seeds = iter(seeds(Purpose.MEMORY, seed, depth, count=32))
        copies.append(keras.saving.deserialize_keras_object(_seeded(config, own_seeds)))
    return copies


def _several(cell: Any) -> list[Any]:
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [one for part in cell.cells for one in _several(part)]
    state_widths(cell)
    return [cell]


def _seeded(config: Any, own_seeds: Any) -> Any:
    """A configuration in which every seed that was left open is fixed."""
    if isinstance(config, dict):
        return {
            key: next(own_seeds) if key == "seed" and value is None else _seeded(value, own_seeds)
            for key, value in config.items()
        }
    return [_seeded(part, own_seeds) for part in config] if isinstance(config, list) else config


def kind_of(cell: keras.layers.Layer) -> str | None:
    """The name of a cell with Keras' default settings; None of any other."""
    for name, kind in KINDS.items():
        if type(cell) is kind:
            plain, own = kind(1).get_config(), cell.get_config()
            free = {"name", "units", "dtype", "seed"} | {key for key in plain if key.endswith("initializer")}
            return name if all(own[key] == plain[key] for key in plain if key not in free) else None
    return None


def state_widths(cell: Any) -> list[int]:
    """The widths of the parts of a cell's state, of which the first, for stock cells, is its output.

    Raises:
        ValueError: it is no cell, or its state is not made of vectors.
    """
    is_cell = isinstance(cell, keras.layers.Layer) and not isinstance(cell, keras.layers.RNN)
    if not is_cell or not hasattr(cell, "state_size"):
        raise reject("recurrent", '"lstm", "gru", "rnn" or a Keras RNN cell such as keras.layers.LSTMCell(64)', cell)
    sizes = cell.state_size if isinstance(cell.state_size, list | tuple) else [cell.state_size]
    if not all(isinstance(size, int) for size in sizes):
        raise reject("recurrent", "a cell whose state is made of vectors", f"{cell}, with states of {sizes}")
    return list(sizes)


def output_width(cell: Any) -> int:
    """The width of a cell's output."""
    return getattr(cell, "output_size", None) or state_widths(cell)[0]


def part_names(cells: Sequence[keras.layers.Layer]) -> tuple[tuple[str, int], ...]:
    """The parts of a state with their widths: `h`, `c`; with several cells `h_0`, `c_0`, `h_1`, ..."""
    names = []
    for depth, cell in enumerate(cells):
        for part, width in enumerate(state_widths(cell)):
            letter = "hc"[part] if part < 2 else f"s{part}"
            names.append((letter if len(cells) == 1 else f"{letter}_{depth}", width))
    return tuple(names)


def _keras_loop(cell: keras.layers.Layer) -> keras.layers.Layer:
    return keras.layers.RNN(cell, return_sequences=True, return_state=True, dtype="float32")
