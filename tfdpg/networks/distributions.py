"""Heads of distributional critics: a categorical distribution on atoms, or a mixture of Gaussians."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.arguments import positive, positive_int, real
from tfdpg.networks.heads import Head
from tfdpg.networks.randomness import stateless_normal, stateless_uniform

LARGEST = 1e30
"""Largest absolute value of an atom, so that sums and differences of atoms are finite in float32."""


@keras.saving.register_keras_serializable("tfdpg")
class Categorical(Head):
    """A categorical distribution of returns on equally spaced atoms; the output has its logits, `[batch, atoms]`.

    The atoms are a weight that is not trained, so that `set_range` can change them after returns have been observed.

    Args:
        v_min: the smallest atom, a finite number, in units of the return.
        v_max: the largest atom, above `v_min`.
        atoms: number of atoms, at least 2.
        kernel_initializer: Keras initializer of the linear layer, or its name.
        l2: the kernel adds l2 · Σ w² to the loss; at least 0.

    Raises:
        ValueError: `atoms` is less than 2, or the atoms are not distinct in float32.

    Source: Bellemare, Dabney, Munos 2017, "A Distributional Perspective on Reinforcement Learning"; Barth-Maron et al.
    2018, appendix A, "Categorical".
    """

    metrics_of_update = ("edge_mass", "v_min", "v_max")

    def __init__(self, v_min: float = -150.0, v_max: float = 150.0, atoms: int = 51, **kwargs: Any):
        super().__init__(**kwargs)
        self.v_min = v_min
        self.v_max = v_max
        self.size = positive_int("atoms", atoms)
        _equally_spaced(v_min, v_max, atoms)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights."""
        self.add_linear(int(input_shape[-1] or 0), self.size)
        self.atoms = self.add_weight(
            name="atoms", shape=(self.size,), initializer="zeros", trainable=False, dtype="float32", autocast=False
        )
        self.set_range(self.v_min, self.v_max)

    def set_range(self, v_min: float, v_max: float) -> None:
        """Space the atoms equally from `v_min` to `v_max`.

        Raises:
            ValueError: The atoms are not distinct in float32.
        """
        self.atoms.assign(_equally_spaced(v_min, v_max, self.size))

    def call(self, features: Any) -> Any:
        """Return the logits, `[batch, atoms]`."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    @property
    def settings(self) -> dict[str, Any]:
        """The initial range and the number of atoms."""
        return {"v_min": float(self.v_min), "v_max": float(self.v_max), "atoms": self.size}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().get_config() | self.settings

    def distribution(self, output: tf.Tensor) -> Any:
        """Return the return distribution, a TF-Probability `FiniteDiscrete` of batch shape `[batch]`."""
        from tensorflow_probability import distributions as tfd

        return tfd.FiniteDiscrete(self.atoms.value, logits=output)

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Return Σ_i p_i z_i."""
        return self.distribution(output).mean()

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of the target on the atoms, `[batch, atoms]`."""
        return losses.categorical_target(r_t, discount_t, output_t, self.atoms.value)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy."""
        return losses.cross_entropy(output_tm1, target)

    def measure(self, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the probability that the target assigns to the first and the last atom, and the range of atoms."""
        edges = target[:, 0] + target[:, -1]
        v_min, v_max = (tf.broadcast_to(self.atoms.value[edge], tf.shape(edges)) for edge in (0, -1))
        return {"edge_mass": edges, "v_min": v_min, "v_max": v_max}

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `atoms` and their probabilities `probs`."""
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
    """A mixture of Gaussians; the output, `[batch, 3 · components]`, has logits, means and raw standard deviations.

    Args:
        components: number of Gaussians, at least 1.
        target_samples: number of samples of the target from which the loss is estimated.
        min_stddev: standard deviations are softplus(raw) + min_stddev; above 0, in units of the return.
        kernel_initializer: Keras initializer of the linear layer, or its name.
        l2: the kernel adds l2 · Σ w² to the loss; at least 0.

    Raises:
        ValueError: an argument is out of its range.

    Source: Barth-Maron et al. 2018, appendix A, "Mixture of Gaussians".
    """

    def __init__(self, components: int = 5, target_samples: int = 32, min_stddev: float = 1e-2, **kwargs: Any):
        super().__init__(**kwargs)
        self.components = positive_int("components", components)
        self.target_samples = positive_int("target_samples", target_samples)
        self.min_stddev = positive("min_stddev", min_stddev)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights."""
        self.add_linear(int(input_shape[-1] or 0), 3 * self.components)

    def call(self, features: Any) -> Any:
        """Return logits, means and raw standard deviations, concatenated."""
        return keras.ops.matmul(features, self.kernel) + self.bias

    @property
    def settings(self) -> dict[str, Any]:
        """The number of components and samples, and the smallest standard deviation."""
        return {name: getattr(self, name) for name in ("components", "target_samples", "min_stddev")}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().get_config() | self.settings

    def distribution(self, output: tf.Tensor) -> Any:
        """Return the return distribution, a TF-Probability `MixtureSameFamily` of batch shape `[batch]`."""
        from tensorflow_probability import distributions as tfd

        logits, means, stddevs = self._parameters(output)
        return tfd.MixtureSameFamily(tfd.Categorical(logits=logits), tfd.Normal(means, stddevs))

    def mean(self, output: tf.Tensor) -> tf.Tensor:
        """Return Σ_k w_k μ_k."""
        logits, means, _ = self._parameters(output)
        return tf.reduce_sum(tf.nn.softmax(logits) * means, axis=-1)

    def target(self, r_t: tf.Tensor, discount_t: tf.Tensor, output_t: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return samples of the target, `[target_samples, batch]`."""
        logits, means, stddevs = self._parameters(output_t)
        shape = self.target_samples, output_t.shape[0]
        uniform = stateless_uniform(shape, key + tf.constant([0, 2**40], tf.int64))
        samples = losses.mixture_sample(tf.nn.softmax(logits), means, stddevs, uniform, stateless_normal(shape, key))
        return losses.td_target(tf.broadcast_to(r_t, shape), tf.broadcast_to(discount_t, shape), samples)

    def td_loss(self, output_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy, estimated from the samples of the target."""
        return losses.mixture_td_loss(self.distribution(output_tm1), target)

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `weights`, `means` and `stddevs` of the components."""
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
