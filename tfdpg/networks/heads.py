"""The last layers of critics: a number, a distribution on atoms, or a mixture of Gaussians, behind one interface."""

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.networks.randomness import stateless_normal, stateless_uniform


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
        self.kernel_initializer, self.l2 = keras.initializers.get(kernel_initializer), l2

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


@keras.saving.register_keras_serializable("tfdpg")
class Categorical(Head):
    """Probabilities of returns on a fixed support of equally spaced atoms; the output is their logits `[batch, atoms]`.

    The support is a weight that is not trained, so that it can be set once returns have been seen.

    Args:
        v_min: the first atom.
        v_max: the last.
        atoms: how many, at least 2.
        kernel_initializer: see `Head`.
        l2: see `Head`.
    """

    metrics_of_update = ("edge_mass", "v_min", "v_max")

    def __init__(self, v_min: float = -150.0, v_max: float = 150.0, atoms: int = 51, **kwargs: Any):
        super().__init__(**kwargs)
        self.v_min, self.v_max, self.size = v_min, v_max, atoms

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.add_linear(int(input_shape[-1] or 0), self.size)
        self.atoms = self.add_weight(
            name="atoms", shape=(self.size,), initializer="zeros", trainable=False, dtype="float32", autocast=False
        )
        self.set_range(self.v_min, self.v_max)

    def set_range(self, v_min: float, v_max: float) -> None:
        """Spaces the atoms equally from `v_min` to `v_max`."""
        self.atoms.assign(np.linspace(v_min, v_max, self.size, dtype=np.float32))

    def call(self, features: Any) -> Any:
        """The logits."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    def get_config(self) -> dict[str, Any]:
        """The support that it was made with, and what every head has."""
        return super().get_config() | {"v_min": self.v_min, "v_max": self.v_max, "atoms": self.size}

    def distribution(self, output: tf.Tensor) -> Any:
        """The return distribution, a TF-Probability `FiniteDiscrete` of batch shape `[batch]`."""
        from tensorflow_probability import distributions as tfd

        return tfd.FiniteDiscrete(self.atoms.value, logits=output)

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Σ_i p_i z_i."""
        return self.distribution(output).mean()

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Its probabilities on the atoms, `[batch, atoms]`."""
        return losses.categorical_target(r_t, discount_t, output_t, self.atoms.value)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The cross-entropy."""
        return losses.cross_entropy(output_tm1, target)

    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The probability of the target that lies on the edges of the support, and the support."""
        edges = target[:, 0] + target[:, -1]
        v_min, v_max = (tf.broadcast_to(self.atoms.value[edge], tf.shape(edges)) for edge in (0, -1))
        return {"edge_mass": edges, "v_min": v_min, "v_max": v_max}

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """`atoms` and their `probs`."""
        probs = tf.nn.softmax(output)
        return {"atoms": tf.broadcast_to(self.atoms.value, tf.shape(probs)), "probs": probs}

    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Head.quantiles`."""
        return losses.categorical_quantiles(self.atoms.value, tf.nn.softmax(output), levels)

    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Head.cvar`."""
        return losses.categorical_cvar(self.atoms.value, tf.nn.softmax(output), levels)


@keras.saving.register_keras_serializable("tfdpg")
class Mixture(Head):
    """A mixture of Gaussians; the output `[batch, 3 · components]` holds logits, means and raw deviations.

    Args:
        components: how many, at least 1.
        target_samples: samples of the target with which the loss is estimated.
        min_stddev: the deviations are softplus(raw) + min_stddev.
        kernel_initializer: see `Head`.
        l2: see `Head`.
    """

    def __init__(self, components: int = 5, target_samples: int = 32, min_stddev: float = 1e-3, **kwargs: Any):
        super().__init__(**kwargs)
        self.components, self.target_samples, self.min_stddev = components, target_samples, min_stddev

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.add_linear(int(input_shape[-1] or 0), 3 * self.components)

    def call(self, features: Any) -> Any:
        """Logits, means and raw deviations, side by side."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    def get_config(self) -> dict[str, Any]:
        """The number of components and samples, the smallest deviation, and what every head has."""
        own = {name: getattr(self, name) for name in ("components", "target_samples", "min_stddev")}
        return super().get_config() | own

    def distribution(self, output: tf.Tensor) -> Any:
        """The return distribution, a TF-Probability `MixtureSameFamily` of batch shape `[batch]`."""
        from tensorflow_probability import distributions as tfd

        logits, means, stddevs = self._parameters(output)
        return tfd.MixtureSameFamily(tfd.Categorical(logits=logits), tfd.Normal(means, stddevs))

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Σ_k w_k μ_k."""
        return self.distribution(output).mean()

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Samples of it, `[target_samples, batch]`."""
        logits, means, stddevs = self._parameters(output_t)
        shape = self.target_samples, output_t.shape[0]
        uniform = stateless_uniform(shape, key + tf.constant([0, 2**40], tf.int64))
        samples = losses.mixture_sample(tf.nn.softmax(logits), means, stddevs, uniform, stateless_normal(shape, key))
        return losses.td_target(tf.broadcast_to(r_t, shape), tf.broadcast_to(discount_t, shape), samples)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The sampled cross-entropy."""
        return losses.mixture_td_loss(self.distribution(output_tm1), target)

    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Nothing."""
        return {}

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """`weights`, `means` and `stddevs` of the components."""
        logits, means, stddevs = self._parameters(output)
        return {"weights": tf.nn.softmax(logits), "means": means, "stddevs": stddevs}

    def quantiles(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Head.quantiles`."""
        weights, means, stddevs = self.describe(output).values()
        return losses.mixture_quantiles(weights, means, stddevs, levels)

    def cvar(self, output: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Head.cvar`."""
        weights, means, stddevs = self.describe(output).values()
        return losses.mixture_cvar(weights, means, stddevs, levels)

    def _parameters(self, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits, means, raw = tf.split(output, 3, axis=-1)
        return logits, means, tf.nn.softplus(raw) + self.min_stddev


class HeadOptions(NamedTuple):
    """A kind of head and its own options; called with what all heads have, it makes one."""

    kind: type[Head]
    options: Mapping[str, Any] = MappingProxyType({})

    def __call__(self, **common: Any) -> Head:
        """A new layer."""
        return self.kind(**self.options, **common)


def head_of(critic: keras.Model) -> Head | None:
    """The head in which a critic ends; None where it has none."""
    heads = [layer for layer in critic._flatten_layers() if isinstance(layer, Head)]
    return heads[-1] if heads else None
