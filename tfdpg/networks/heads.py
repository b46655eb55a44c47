"""Heads, the last layers of critics: their interface, and the head that returns a value."""

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg import losses


class Head(keras.layers.Layer, abc.ABC):
    """The last layer of a critic: maps features `[batch, features]` to a value or to a distribution of returns.

    `Value`, `Categorical` and `Mixture` implement this interface. The *output* of a head is the tensor that its `call`
    returns, `[batch]` or `[batch, n]`.

    Args:
        kernel_initializer: Keras initializer of the linear layer, or its name.
        l2: the kernel adds l2 · Σ w² to the loss; at least 0.

    Attributes:
        metrics_of_update: the names of the metrics that `measure` returns.
    """

    metrics_of_update: tuple[str, ...] = ()
    """The names of the metrics that `measure` returns."""

    def __init__(self, kernel_initializer: Any = "glorot_uniform", l2: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.l2 = l2

    def add_linear(self, features: int, units: int) -> None:
        """Create the weights of the linear layer."""
        self.kernel = self.add_weight(
            name="kernel",
            shape=(features, units),
            initializer=self.kernel_initializer,
            regularizer=keras.regularizers.L2(self.l2) if self.l2 else None,
        )
        self.bias = self.add_weight(name="bias", shape=(units,), initializer="zeros")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return super().get_config() | {"kernel_initializer": initializer, "l2": self.l2}

    @property
    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that the heads of all critics of an agent must have in common."""

    @abc.abstractmethod
    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Return the expected return, which is the action value, `[batch]`.

        Args:
            output: the output of this layer.
        """

    @abc.abstractmethod
    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return the Bellman target r + discount · Z in the form that `td_loss` expects, without gradient.

        Args:
            r_t: rewards, `[batch]`; for n steps, their discounted sum.
            discount_t: discounts gamma^m (1 - terminated), `[batch]`.
            output_t: output of the target critic for the next observation.
            key: key of the random numbers, int64 `[2]`.

        Returns:
            Targets `[batch]` for `Value`, probabilities of the atoms `[batch, atoms]` for `Categorical`, and samples
            `[target_samples, batch]` for `Mixture`.
        """

    @abc.abstractmethod
    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Return the loss of a critic, `[batch]`.

        Args:
            output_tm1: output of the critic for the actions taken.
            target: the result of `target`.
        """

    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return additional metrics of an update, `[batch]` each, by the names in `metrics_of_update`; none by default.

        Args:
            target: the result of `target`.
        """
        return {}

    @abc.abstractmethod
    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the parameters of the return distribution by name, `[batch, n]` each.

        Args:
            output: the output of this layer.
        """

    @abc.abstractmethod
    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return quantiles of the return, `[batch, L]`.

        Args:
            output: the output of this layer.
            levels: the levels in [0, 1], `[batch, L]` or `[L]`.
        """

    @abc.abstractmethod
    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the conditional value at risk, `[batch, L]`: the mean of the worst returns up to each level.

        Args:
            output: the output of this layer.
            levels: the levels in [0, 1], `[batch, L]` or `[L]`.
        """


@keras.saving.register_keras_serializable("tfdpg")
class Value(Head):
    """A linear layer with one output: `[batch, features]` → `[batch]`, with the weights of `Dense(1)`.

    It sums products instead of multiplying by a matrix with one column as `Dense` does. XLA fuses the gradient of that
    multiplication with the preceding activation into a loop over columns, which is ten times slower.

    Args:
        kernel_initializer: Keras initializer of the kernel, or its name.
        l2: the kernel adds l2 · Σ w² to the loss; at least 0.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights."""
        self.add_linear(int(input_shape[-1] or 0), 1)

    def call(self, features: Any) -> Any:
        """Return values `[batch]`."""
        return _product(features, self.kernel[:, 0]) + self.bias[0]

    @property
    def settings(self) -> dict[str, Any]:
        """No settings."""
        return {}

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Return the output, which is the value."""
        return output

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return the target values, `[batch]`."""
        return losses.td_target(r_t, discount_t, output_t)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Return the squared error."""
        return losses.td_loss(output_tm1, target)

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return one atom with probability 1."""
        return {"atoms": output[:, None], "probs": tf.ones_like(output)[:, None]}

    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the value for each level."""
        return output[:, None] + tf.zeros_like(levels)

    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the value for each level."""
        return output[:, None] + tf.zeros_like(levels)


@tf.custom_gradient
def _product(features: tf.Tensor, kernel: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        upstream = upstream[:, None]
        return upstream * kernel, tf.reduce_sum(upstream * features, axis=0)

    return tf.linalg.matvec(features, kernel), gradient


class HeadOptions(NamedTuple):
    """A class of heads and its own options; call it with the common arguments to build a head.

    Attributes:
        kind: the class, such as `Categorical`.
        options: arguments of its constructor in addition to `kernel_initializer`, `l2` and `dtype`, for example
            `{"v_min": -10.0, "v_max": 110.0}`.
    """

    kind: type[Head]
    options: Mapping[str, Any] = MappingProxyType({})

    def __call__(self, **common: Any) -> Head:
        """Return a new layer."""
        return self.kind(**self.options, **common)


def head_of(critic: keras.Model) -> Head | None:
    """Return the head in which a critic ends; None if it ends in another layer."""
    last = critic.layers[-1] if critic.layers else None
    if isinstance(last, keras.Model):
        return head_of(last)
    return last if isinstance(last, Head) else None
