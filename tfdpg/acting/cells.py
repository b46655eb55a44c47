"""Forward passes of Keras' recurrent cells with their default options; weights and gates are in Keras' order.

A cell is a function from its inputs `[num_envs, width]` and its state `[num_envs, state_width]` to the next state. The
first `units` columns of the state are its output.
"""

from collections.abc import Sequence

import numpy as np


class LSTM:
    """`keras.layers.LSTMCell`; the state is [h, c]."""

    def __init__(self, kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray):
        self.units = len(recurrent_kernel)
        self.state_width = 2 * self.units
        self.kernel = np.concatenate([kernel, recurrent_kernel])  # multiplies [x, h]
        self.bias = bias
        self._scale = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), self.units)

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

    def __init__(self, kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray):
        self.units = self.state_width = len(recurrent_kernel)
        self.kernel = kernel
        self.recurrent_kernel = recurrent_kernel
        self.bias, self.recurrent_bias = bias

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

    def __init__(self, kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray):
        self.units = self.state_width = len(recurrent_kernel)
        self.kernel = np.concatenate([kernel, recurrent_kernel])  # multiplies [x, h]
        self.bias = bias

    def __call__(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the next state: h' = tanh([x, h] W + b)."""
        h = np.concatenate([x, state], axis=1) @ self.kernel
        h += self.bias
        return np.tanh(h, out=h)


Cell = LSTM | GRU | SimpleRNN
KINDS = {"lstm": LSTM, "gru": GRU, "rnn": SimpleRNN}
"""The supported cells."""


def rnn_cells(weights: Sequence[np.ndarray], cells: Sequence[tuple[str, int]]) -> list[Cell]:
    """The cells of a stack.

    Args:
        weights: the kernel, the recurrent kernel and the bias of each cell.
        cells: the kind ("lstm", "gru" or "rnn") and the number of units of each cell.
    """
    return [KINDS[kind](*weights[3 * i : 3 * i + 3]) for i, (kind, _) in enumerate(cells)]


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
