"""Fully connected layers that cost less in updates which XLA compiles for a CPU.

XLA does not see that some products of matrices are not needed. In such updates, these layers compute the same numbers,
except for rounding, with fewer or cheaper operations:

- The gradient with respect to inputs that were concatenated is computed for each part. XLA leaves out the parts that
  nothing uses, such as the embeddings that a critic receives.
- An input x · a + b, with a and b for each column as in batch normalisation, is multiplied with kernel W as
  x (diag(a) W) + b W. The gradients of a and b then do not need the gradient of the input.
- ELU is computed by exp(x) − 1 in place of expm1(x). The absolute error for a small x is the rounding error of 1.
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
    """Let the layers of this module compute as XLA on a CPU does faster, in a graph that is traced in this context."""
    before = _current.is_lean
    _current.is_lean = is_lean
    try:
        yield
    finally:
        _current.is_lean = before


@keras.saving.register_keras_serializable("tfdpg")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, which costs less within `lean_products`."""

    computes_as = keras.layers.Dense

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
    """`keras.layers.Activation`, which costs less within `lean_products`."""

    computes_as = keras.layers.Activation

    def call(self, inputs: Any) -> Any:
        """Return the activation of `inputs`."""
        return activate(self.activation, inputs)


def activate(activation: Any, x: Any) -> Any:
    """Return activation(x)."""
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
    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            kernels = tf.split(kernel, widths, axis=0)
            parts = [tf.matmul(upstream, part, transpose_b=True) for part in kernels]
            return tf.concat(parts, axis=-1), tf.matmul(x, upstream, transpose_a=True)

        return tf.matmul(x, kernel), gradients

    return product(x, kernel)
