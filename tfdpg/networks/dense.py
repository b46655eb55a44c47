"""Fully connected layers that take less time in updates which XLA compiles for a CPU.

In such updates, these layers leave out products of matrices that XLA would compute without need, and use a faster form
of ELU. The results are the same, except for rounding:

- If inputs were concatenated, their gradient is computed for each part. XLA then leaves out the parts that nothing
  uses, such as those of the embeddings that a critic receives.
- If the input is x · a + b, where a and b have one number for each column, as in batch normalisation, its product with
  the kernel W is computed as x (diag(a) W) + b W. The gradients of a and b then do not need the gradient of the input.
- ELU is computed as exp(x) − 1, not as expm1(x). For x near 0, the absolute error is the rounding error of 1.

Elsewhere, the layers compute like those of Keras.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

WIDE = 64
"""Concatenated inputs are taken apart if one has at least this number of columns."""


class _Current(threading.local):
    is_lean = False


_current = _Current()


@contextlib.contextmanager
def lean_products(is_lean: bool = True) -> Iterator[None]:
    """Let the layers of this module use their forms for XLA on a CPU, in what is traced inside this context."""
    before = _current.is_lean
    _current.is_lean = is_lean
    try:
        yield
    finally:
        _current.is_lean = before


@keras.saving.register_keras_serializable("tfdpg")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, which takes less time within `lean_products`."""

    computes_as = keras.layers.Dense  # for NumPy and C

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the activation of `inputs` · kernel + bias, `[..., units]`."""
        if not _current.is_lean or not tf.is_symbolic_tensor(inputs) or inputs.shape.rank != 2:
            return super().call(inputs, training=training)
        x = _product(inputs, tf.convert_to_tensor(self.kernel))
        if self.bias is not None:
            x = x + self.bias
        return x if self.activation is None else activate(self.activation, x)


@keras.saving.register_keras_serializable("tfdpg")
class Activation(keras.layers.Activation):
    """`keras.layers.Activation`, which takes less time within `lean_products`."""

    computes_as = keras.layers.Activation  # for NumPy and C

    def call(self, inputs: Any) -> Any:
        """Return the activation of `inputs`."""
        return activate(self.activation, inputs)


def activate(activation: Any, x: Any) -> Any:
    """Return activation(x), within `lean_products` with the faster form of ELU."""
    if _current.is_lean and activation is keras.activations.elu:
        return tf.where(x > 0, x, tf.exp(tf.minimum(x, 0)) - 1)
    return activation(x)


def _product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return x · kernel, `[batch, units]`, for x `[batch, n]`."""
    match _operation(x):
        case "ConcatV2", [*parts, _]:
            widths = [part.shape[-1] or 0 for part in parts]
            if max(widths) >= WIDE and sum(widths) == kernel.shape[0]:  # columns, not rows
                return _product_of_parts(x, kernel, widths)
        case "AddV2", [scaled, shift] if shift.shape == kernel.shape[:1]:
            match _operation(scaled):
                case "Mul", [centred, scale] if scale.shape == shift.shape and centred.shape[1:] == shift.shape:
                    shifted = tf.linalg.matvec(kernel, shift, transpose_a=True)
                    return _product(centred, scale[:, None] * kernel) + shifted
    return tf.matmul(x, kernel)


def _operation(x: tf.Tensor) -> tuple[str, list[tf.Tensor]]:
    return x.op.type, list(x.op.inputs)


def _product_of_parts(x: tf.Tensor, kernel: tf.Tensor, widths: list[int]) -> tf.Tensor:
    """Return x · kernel; the gradient of x is computed for each part of its columns."""

    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            kernels = tf.split(kernel, widths, axis=0)
            parts = [tf.matmul(upstream, part, transpose_b=True) for part in kernels]
            return tf.concat(parts, axis=-1), tf.matmul(x, upstream, transpose_a=True)

        return tf.matmul(x, kernel), gradients

    return product(x, kernel)
