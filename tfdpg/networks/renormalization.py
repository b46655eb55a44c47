"""Batch renormalisation, as a Keras layer."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tfdpg")
class BatchRenormalization(keras.layers.Layer):
    """Normalise each feature over the minibatch, then scale and shift it: γ x̂ + β.

    In training, x̂ = (x − μ) / σ · r + d, with μ and σ of the minibatch, r = clip(σ / σ_run, 1 / r_max, r_max) and
    d = clip((μ − μ_run) / σ_run, −d_max, d_max). No gradient flows through r and d. Unless they are clipped, x̂ equals
    the normalisation with the running statistics. In the first `warm_up` updates, r = 1 and d = 0.
    Otherwise, and if the layer is frozen (`trainable = False`), the running statistics are used.

    Args:
        momentum: fraction of the running statistics that is kept at each update, in [0, 1].
        epsilon: added to variances, above 0.
        r_max: limit of r, at least 1.
        d_max: limit of d, at least 0.
        warm_up: number of updates with r = 1 and d = 0.

    Raises:
        ValueError: the input does not have the shape `[batch, n]`.

    Source: Ioffe 2017, "Batch Renormalization", algorithm 1; the defaults are CrossQ's (Bhatt et al. 2019).
    """

    def __init__(
        self,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warm_up: int = 100_000,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.momentum = momentum
        self.epsilon = epsilon
        self.r_max = r_max
        self.d_max = d_max
        self.warm_up = warm_up

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights: γ and β, which are trained; the running mean and variance; the number of updates."""
        if len(input_shape) != 2:
            raise ValueError(f"The input of BatchRenormalization must be `[batch, n]`. Received: {input_shape}")
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        self.mean = self.add_weight(name="mean", shape=shape, initializer="zeros", trainable=False)
        self.variance = self.add_weight(name="variance", shape=shape, initializer="ones", trainable=False)
        self.updates = self.add_weight(name="updates", shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        """Return the normalised features, `[batch, n]`."""
        if not (training and self.trainable):
            scale = self.gamma.value * tf.math.rsqrt(self.variance.value + self.epsilon)
            return (x - self.mean.value) * scale + self.beta.value
        mean, variance = tf.nn.moments(x, axes=[0])
        running = tf.sqrt(self.variance.value + self.epsilon)
        r = tf.sqrt(variance + self.epsilon) / running
        d = (mean - self.mean.value) / running
        is_warm = tf.cast(self.updates.value >= self.warm_up, tf.float32)
        r = 1 + is_warm * (tf.clip_by_value(r, 1 / self.r_max, self.r_max) - 1)
        d = is_warm * tf.clip_by_value(d, -self.d_max, self.d_max)
        r = tf.stop_gradient(r)
        d = tf.stop_gradient(d)
        for statistic, new in ((self.mean, mean), (self.variance, variance)):
            statistic.assign(self.momentum * statistic + (1 - self.momentum) * tf.stop_gradient(new))
        self.updates.assign(self.updates + 1)
        scale = self.gamma.value * r * tf.math.rsqrt(variance + self.epsilon)
        return (x - mean) * scale + (self.gamma.value * d + self.beta.value)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = "momentum", "epsilon", "r_max", "d_max", "warm_up"
        return super().get_config() | {name: getattr(self, name) for name in names}
