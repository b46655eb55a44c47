"""Random numbers inside compiled functions that depend only on a key.

TensorFlow's stateless random floats differ with and without XLA, even with the Philox generator; its random bits do
not.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def stateless_uniform(shape: Sequence[Any], key: tf.Tensor) -> tf.Tensor:
    """Return uniform random numbers in (0, 1) with 24 random bits, equal with and without XLA.

    Args:
        shape: shape of the result, fully defined.
        key: key of the random numbers, int64 `[2]`. Equal keys give equal numbers. In an update, use
            `tf.stack([tf.constant(self.seed, tf.int64), counter])`.

    Returns:
        The numbers, float32, of the given shape.
    """
    all_bits: Any = {"minval": None, "maxval": None, "dtype": tf.uint32}
    bits = tf.random.stateless_uniform(shape, key, alg="philox", **all_bits)
    uniform = (tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) + 0.5) * 2.0**-24
    return tf.minimum(uniform, 1 - 2.0**-24)  # float32 rounds the largest to 1; Φ⁻¹(1) is infinite


def stateless_normal(shape: Sequence[Any], key: tf.Tensor) -> tf.Tensor:
    """Return standard normal numbers, Φ⁻¹ of `stateless_uniform`; equal with and without XLA up to rounding.

    Args:
        shape: shape of the result, fully defined.
        key: key of the random numbers, int64 `[2]`; see `stateless_uniform`.

    Returns:
        The numbers, float32, of the given shape.
    """
    return math.sqrt(2) * tf.math.erfinv(2 * stateless_uniform(shape, key) - 1)
