"""Forward passes of Keras' recurrent cells with their default options; weights and gates are in Keras' order."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

CellKinds = tuple[tuple[str, int], ...]
"""The stacked recurrent cells of a policy: the kind ("lstm", "gru" or "rnn") and the number of units of each."""

ReadWeights = Callable[..., np.ndarray]
"""Reads the next weights of the given shape, as `WeightReader.read`."""


class Cell(Protocol):
    """A recurrent cell with its weights.

    Attributes:
        units: width of the output, which is stored in the first columns of the state.
        state_width: width of the state.
    """

    units: int
    state_width: int

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the next state, `[num_envs, state_width]`.

        Args:
            x: inputs, `[num_envs, width]`.
            state: the current state, `[num_envs, state_width]`.
        """
        ...


class LSTM:
    """`keras.layers.LSTMCell`; the state is [h, c]."""

    def __init__(self, width: int, units: int, read: ReadWeights):
        self.units = units
        self.state_width = 2 * units
        self.kernel = read(width + units, 4 * units)  # multiplies [x, h]
        self.bias = read(4 * units)
        self._scale = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the next state: c' = f c + i g, h' = o tanh c'."""
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
    """`keras.layers.GRUCell` with `reset_after=True`; the state is h."""

    def __init__(self, width: int, units: int, read: ReadWeights):
        self.units = self.state_width = units
        self.kernel = read(width, 3 * units)
        self.recurrent_kernel = read(units, 3 * units)
        self.bias, self.recurrent_bias = read(2, 3 * units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the next state: h' = z h + (1 - z) tanh(x_h + r h_h)."""
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
        self.kernel = read(width + units, units)  # multiplies [x, h]
        self.bias = read(units)

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the next state: h' = tanh([x, h] W + b)."""
        h = np.concatenate([x, state], axis=1) @ self.kernel
        h += self.bias
        return np.tanh(h, out=h)


KINDS: dict[str, Callable[[int, int, ReadWeights], Cell]] = {"lstm": LSTM, "gru": GRU, "rnn": SimpleRNN}
"""The supported cells."""


def make_cells(cells: CellKinds, width: int, read: ReadWeights) -> list[Cell]:
    """Build recurrent cells and read their weights.

    Args:
        cells: kinds and units.
        width: width of the first cell's inputs.
        read: returns the next weights, in Keras' order.
    """
    widths = (width, *(units for _, units in cells))
    return [KINDS[kind](width, units, read) for width, (kind, units) in zip(widths[:-1], cells, strict=True)]


def step_cells(cells: Sequence[Cell], x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run stacked cells for one step.

    Args:
        cells: the cells; each receives the output of the cell before it.
        x: inputs of the first cell, `[num_envs, width]`.
        state: concatenated states of all cells, `[num_envs, n]`.

    Returns:
        The output of the last cell, `[num_envs, units]`, and the next state, `[num_envs, n]`.
    """
    states = []
    start = 0
    for cell in cells:
        states.append(cell(x, state[:, start : start + cell.state_width]))
        x = states[-1][:, : cell.units]
        start = start + cell.state_width
    return x, np.concatenate(states, axis=1)
