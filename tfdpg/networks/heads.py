"""The last layers of critics behind one interface, and the one that gives a number; see `distributions` for others."""

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg import losses


class Head(keras.layers.Layer, abc.ABC):
    """The last layer of a critic, from features `[batch, features]` to an output that says what the return is like.

    Args:
        kernel_initializer: of the linear layer.
        l2: the kernel adds l2 · Σ w² to the loss.
    """

    metrics_of_update: tuple[str, ...] = ()
    """The names of what `measure` gives."""

    def __init__(self, kernel_initializer: Any = "glorot_uniform", l2: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.l2 = l2

    def add_linear(self, features: int, units: int) -> None:
        """Makes the weights of the linear layer."""
        self.kernel = self.add_weight(
            name="kernel",
            shape=(features, units),
            initializer=self.kernel_initializer,
            regularizer=keras.regularizers.L2(self.l2) if self.l2 else None,
        )
        self.bias = self.add_weight(name="bias", shape=(units,), initializer="zeros")

    def get_config(self) -> dict[str, Any]:
        """The initializer and the regularization."""
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return super().get_config() | {"kernel_initializer": initializer, "l2": self.l2}

    @property
    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """What critics of one agent have in common, beside the kind of their heads."""

    @abc.abstractmethod
    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """The expected return `[batch]`: the action value."""

    @abc.abstractmethod
    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The Bellman target r + discount · Z as `td_loss` takes it, without gradient.

        Args:
            r_t: `[batch]`.
            discount_t: `[batch]`.
            output_t: the target critic's output for the next observation.
            key: what random samples are a function of, int64 `[2]`.
        """

    @abc.abstractmethod
    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """How far the output for the actions taken is from the target, `[batch]`."""

    @abc.abstractmethod
    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The metrics of an update beyond those of all heads, `[batch]` each."""

    @abc.abstractmethod
    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """The return distribution by its parameters, `[batch, n]` each."""

    @abc.abstractmethod
    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """The quantiles of the return, `[batch, L]`, at levels `[batch, L]` or `[L]`; see `losses.quantiles`."""

    @abc.abstractmethod
    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """The mean of the worst part of returns, `[batch, L]`, for each of the levels."""


@keras.saving.register_keras_serializable("tfdpg")
class Value(Head):
    """`Dense(1)` without its last axis: `[batch, features]` → `[batch]`, with the same weights.

    A sum of products, where `Dense` has a product with a one-column matrix: XLA fuses that product's gradient
    with the activation before it into a loop over columns, which takes ten times as long.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.add_linear(int(input_shape[-1] or 0), 1)

    def call(self, features: Any) -> Any:
        """The values."""
        return _product(features, self.kernel[:, 0]) + self.bias[0]

    @property
    def settings(self) -> dict[str, Any]:
        """None."""
        return {}

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """The value itself."""
        return output

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Its value `[batch]`."""
        return losses.td_target(r_t, discount_t, output_t)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The squared error."""
        return losses.td_loss(output_tm1, target)

    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Nothing."""
        return {}

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """All probability on one atom."""
        return {"atoms": output[:, None], "probs": tf.ones_like(output)[:, None]}

    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """The value, at each level."""
        return output[:, None] + tf.zeros_like(levels)

    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """The value, at each level."""
        return output[:, None] + tf.zeros_like(levels)


@tf.custom_gradient
def _product(features: tf.Tensor, kernel: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        upstream = upstream[:, None]
        return upstream * kernel, tf.reduce_sum(upstream * features, axis=0)

    return tf.linalg.matvec(features, kernel), gradient


class HeadOptions(NamedTuple):
    """A kind of head and its own options; called with what all heads have, it makes one."""

    kind: type[Head]
    options: Mapping[str, Any] = MappingProxyType({})

    def __call__(self, **common: Any) -> Head:
        """A new layer."""
        return self.kind(**self.options, **common)


def head_of(critic: keras.Model) -> Head | None:
    """The head in which a critic ends; None where it ends in another layer."""
    last = critic.layers[-1] if critic.layers else None
    if isinstance(last, keras.Model):
        return head_of(last)
    return last if isinstance(last, Head) else None
