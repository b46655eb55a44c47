"""The last layers of distributional critics: probabilities on atoms, or a mixture of Gaussians."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.arguments import positive, positive_int, real
from tfdpg.networks.heads import Head
from tfdpg.networks.randomness import stateless_normal, stateless_uniform

LARGEST = 1e30
"""Of a support: sums and differences of its atoms are float32 too."""


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
        self.v_min = v_min
        self.v_max = v_max
        self.size = positive_int("atoms", atoms)
        _equally_spaced(v_min, v_max, atoms)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.add_linear(int(input_shape[-1] or 0), self.size)
        self.atoms = self.add_weight(
            name="atoms", shape=(self.size,), initializer="zeros", trainable=False, dtype="float32", autocast=False
        )
        self.set_range(self.v_min, self.v_max)

    def set_range(self, v_min: float, v_max: float) -> None:
        """Spaces the atoms equally from `v_min` to `v_max`; `ValueError` where float32 cannot tell them apart."""
        self.atoms.assign(_equally_spaced(v_min, v_max, self.size))

    def call(self, features: Any) -> Any:
        """The logits."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    @property
    def settings(self) -> dict[str, Any]:
        """The support that it was made with."""
        return {"v_min": float(self.v_min), "v_max": float(self.v_max), "atoms": self.size}

    def get_config(self) -> dict[str, Any]:
        """The settings, and what every head has."""
        return super().get_config() | self.settings

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


def _equally_spaced(v_min: float, v_max: float, atoms: int) -> np.ndarray:
    low = real("v_min", v_min, -LARGEST, LARGEST)
    high = real("v_max", v_max, -LARGEST, LARGEST)
    spaced = np.linspace(low, high, atoms, dtype=np.float32)
    if len(spaced) < 2 or not (np.diff(spaced) > 0).all():
        raise ValueError(
            "`v_min` must be less than `v_max`, with two atoms or more that differ in float32. "
            f"Received: v_min={v_min}, v_max={v_max}, atoms={atoms}"
        )
    return spaced


@keras.saving.register_keras_serializable("tfdpg")
class Mixture(Head):
    """A mixture of Gaussians; the output `[batch, 3 · components]` holds logits, means and raw deviations.

    Args:
        components: how many, at least 1.
        target_samples: samples of the target with which the loss is estimated.
        min_stddev: the deviations are softplus(raw) + min_stddev, which is above 0.
        kernel_initializer: see `Head`.
        l2: see `Head`.
    """

    def __init__(self, components: int = 5, target_samples: int = 32, min_stddev: float = 1e-2, **kwargs: Any):
        super().__init__(**kwargs)
        self.components = positive_int("components", components)
        self.target_samples = positive_int("target_samples", target_samples)
        self.min_stddev = positive("min_stddev", min_stddev)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.add_linear(int(input_shape[-1] or 0), 3 * self.components)

    def call(self, features: Any) -> Any:
        """Logits, means and raw deviations, side by side."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    @property
    def settings(self) -> dict[str, Any]:
        """The number of components and samples, and the smallest deviation."""
        return {name: getattr(self, name) for name in ("components", "target_samples", "min_stddev")}

    def get_config(self) -> dict[str, Any]:
        """The settings, and what every head has."""
        return super().get_config() | self.settings

    def distribution(self, output: tf.Tensor) -> Any:
        """The return distribution, a TF-Probability `MixtureSameFamily` of batch shape `[batch]`."""
        from tensorflow_probability import distributions as tfd

        logits, means, stddevs = self._parameters(output)
        return tfd.MixtureSameFamily(tfd.Categorical(logits=logits), tfd.Normal(means, stddevs))

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Σ_k w_k μ_k."""
        logits, means, _ = self._parameters(output)
        return tf.reduce_sum(tf.nn.softmax(logits) * means, axis=-1)

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
