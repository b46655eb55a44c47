"""Random numbers inside compiled calls, a function of a key alone.

TensorFlow's own stateless numbers differ under XLA even with the Philox generator; its bits do not.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def stateless_uniform(shape: Sequence[Any], key: tf.Tensor) -> tf.Tensor:
    """Uniform numbers of 24 bits in (0, 1), the same with and without XLA.

    Args:
        shape: the shape of the result, without unknown sizes.
        key: two integers, int64 `[2]`.
    """
    all_bits: Any = {"minval": None, "maxval": None, "dtype": tf.uint32}
    bits = tf.random.stateless_uniform(shape, key, alg="philox", **all_bits)
    uniform = (tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) + 0.5) * 2.0**-24
    return tf.minimum(uniform, 1 - 2.0**-24)  # float32 rounds the largest to 1, whose Φ⁻¹ is infinite


def stateless_normal(shape: Sequence[Any], key: tf.Tensor) -> tf.Tensor:
    """Standard normal numbers, the same with and without XLA up to rounding: Φ⁻¹ of `stateless_uniform`."""
    return math.sqrt(2) * tf.math.erfinv(2 * stateless_uniform(shape, key) - 1)
