"""Forward passes of Keras' recurrent cells, as their defaults have them; weights and gates are in Keras' order."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

CellKinds = tuple[tuple[str, int], ...]
"""The cells of a policy, each fed by the one before: "lstm", "gru" or "rnn", and its units."""

ReadWeights = Callable[..., np.ndarray]
"""From a shape to the next weights, of that shape."""


class Cell(Protocol):
    """A cell with its weights.

    Attributes:
        units: the width of its output, with which its state begins.
        state_width: the width of its state.
    """

    units: int
    state_width: int

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The next state `[num_envs, state_width]`, from inputs `[num_envs, width]` and the state before."""
        ...


class LSTM:
    """`keras.layers.LSTMCell`; the state is [h, c]."""

    def __init__(self, width: int, units: int, read: ReadWeights):
        self.units = units
        self.state_width = 2 * units
        self.kernel = read(width + units, 4 * units)  # of [x, h]: kernels lie in a row
        self.bias = read(4 * units)
        self._scale = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The next state: c' = f c + i g, h' = o tanh c'."""
        units = self.units
        new = np.empty_like(state)
        gates = np.concatenate([x, state[:, :units]], axis=1) @ self.kernel
        gates += self.bias
        gates *= self._scale  # one tanh for all gates: sigmoid z = 1/2 tanh(z/2) + 1/2
        np.tanh(gates, out=gates)
        gates *= self._scale
        gates += 1 - self._scale
        i, f, g, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
        h = new[:, :units]
        c = new[:, units:]
        np.multiply(f, state[:, units:], out=c)
        c += np.multiply(i, g, out=i)
        np.multiply(np.tanh(c, out=h), o, out=h)
        return new


class GRU:
    """`keras.layers.GRUCell`, which resets after the product; the state is h."""

    def __init__(self, width: int, units: int, read: ReadWeights):
        self.units = self.state_width = units
        self.kernel = read(width, 3 * units)
        self.recurrent_kernel = read(units, 3 * units)
        self.bias, self.recurrent_bias = read(2, 3 * units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The next state: h' = z h + (1 - z) tanh(x_h + r h_h)."""
        units = self.units
        past = state @ self.recurrent_kernel
        past += self.recurrent_bias
        new = x @ self.kernel
        new += self.bias
        gates = new[:, : 2 * units] + past[:, : 2 * units]
        gates *= np.float32(0.5)
        np.tanh(gates, out=gates)
        gates *= np.float32(0.5)
        gates += np.float32(0.5)
        z = gates[:, :units]
        r = gates[:, units:]
        candidate = np.tanh(new[:, 2 * units :] + r * past[:, 2 * units :])
        return candidate + z * (state - candidate)


class SimpleRNN:
    """`keras.layers.SimpleRNNCell`; the state is h."""

    def __init__(self, width: int, units: int, read: ReadWeights):
        self.units = self.state_width = units
        self.kernel = read(width + units, units)  # of [x, h]
        self.bias = read(units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The next state: h' = tanh([x, h] W + b)."""
        h = np.concatenate([x, state], axis=1) @ self.kernel
        h += self.bias
        return np.tanh(h, out=h)


KINDS: dict[str, Callable[[int, int, ReadWeights], Cell]] = {"lstm": LSTM, "gru": GRU, "rnn": SimpleRNN}
"""The cells that can be computed here."""


def make_cells(cells: CellKinds, width: int, read: ReadWeights) -> list[Cell]:
    """Cells with their weights.

    Args:
        cells: their kinds and units.
        width: of the first one's inputs.
        read: gives the weights in Keras' order.
    """
    widths = (width, *(units for _, units in cells))
    return [KINDS[kind](width, units, read) for width, (kind, units) in zip(widths[:-1], cells, strict=True)]


def step_cells(cells: Sequence[Cell], x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The output `[num_envs, units]` of the last cell, and the next state of all, `[num_envs, n]`."""
    states = []
    start = 0
    for cell in cells:
        states.append(cell(x, state[:, start : start + cell.state_width]))
        x = states[-1][:, : cell.units]
        start = start + cell.state_width
    return x, np.concatenate(states, axis=1)
