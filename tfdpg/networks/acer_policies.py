"""Stochastic policies: the distribution that a network's output describes, and gradients with respect to it.

The *statistics* `[..., n]` of a distribution are the values that the policy gradient and the trust region act on: the
probabilities, or the means and, if they are learned, the standard deviations. Means are relative to the middle of the
action box, and both are in units of the action scale.
The *parameters* `[..., m]` determine the distribution completely, and so does the *record* stored with a step.
"""

from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.acting import CategoricalSampling, GaussianSampling
from tfdpg.arguments import reject
from tfdpg.networks.mlp import box_action, gaussian_output, probabilities
from tfdpg.networks.randomness import stateless_normal
from tfdpg.networks.tensors import CriticEstimate, WindowActions
from tfdpg.spec import Spec

LARGEST_LOG_RATIO = 30.0
"""Upper limit of the logarithm of an importance weight, which keeps the weight finite."""


class CategoricalPolicy:
    """A categorical distribution over the actions of a Discrete space; the statistics are the probabilities."""

    dimensions = 1

    def __init__(self, spec: Spec):
        self._first = int(spec.low[0])
        self.record_width = spec.actions or 0
        self.output = probabilities(spec)
        self.exploration = CategoricalSampling(spec)

    def check(self, output: np.ndarray) -> None:
        """Check that the outputs are probabilities."""
        if (output < 0).any() or not np.allclose(output.sum(axis=-1), 1, atol=1e-3):
            raise reject("pi", "a model that returns probabilities (end it in a softmax)", output[0].tolist())

    def statistics(self, output: tf.Tensor) -> tf.Tensor:
        """Return the probabilities `[..., actions]`."""
        return output

    def parameters(self, statistics: tf.Tensor) -> tf.Tensor:
        """Return the probabilities."""
        return statistics

    def recorded(self, record: tf.Tensor) -> tf.Tensor:
        """Return the probabilities."""
        return record

    def distribution(self, parameters: tf.Tensor) -> Any:
        """Return the distribution over indices, which start at 0."""
        from tensorflow_probability import distributions as tfd

        return tfd.Categorical(probs=tf.maximum(parameters, losses.MIN_PROBABILITY))

    def events(self, action: tf.Tensor) -> tf.Tensor:
        """Convert actions to indices, which start at 0, `[...]`; clips the padding of windows to a valid index."""
        return tf.clip_by_value(self._index(action), 0, self.record_width - 1)

    def is_action(self, action: tf.Tensor) -> tf.Tensor:
        """Return which of the values `[..., 1]` are in the action space, bool `[...]`."""
        index = self._index(action)
        return (index >= 0) & (index < self.record_width)

    def _index(self, action: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.squeeze(action, axis=-1), tf.int32) - self._first

    def trace(self, c: tf.Tensor) -> tf.Tensor:
        """Return Retrace's traces unchanged."""
        return c

    def gradient(
        self, statistics: tf.Tensor, window_actions: WindowActions, estimate: CriticEstimate, c: float
    ) -> tf.Tensor:
        """Return the gradient with respect to the probabilities; the bias correction sums over all actions."""
        values = estimate.q_other, window_actions.target, window_actions.v
        return losses.acer_gradient_categorical(
            statistics, window_actions.behaviour, self.events(window_actions.action), *values, c
        )

    def kl_gradient(self, average: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        """Return the gradient with respect to the probabilities."""
        return losses.kl_gradient_categorical(average, statistics)

    def entropy_gradient(self, statistics: tf.Tensor) -> tf.Tensor:
        """Return the gradient with respect to the probabilities."""
        return losses.entropy_gradient_categorical(statistics)

    def scores(self, output: Any) -> Any:
        """The probabilities, `[batch, actions]`."""
        return output

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `probs`, `[batch, actions]`."""
        return {"probs": output}


class GaussianPolicy:
    """A Gaussian with independent dimensions and its mean in the action box.

    Args:
        spec: the spaces of the environment.
        sigma: standard deviation, as a fraction of the action scale; the initial one if it is learned.
        learns_scale: whether the policy network also returns standard deviations.
    """

    def __init__(self, spec: Spec, sigma: float, learns_scale: bool):
        self._spec = spec
        self._sigma = sigma
        self._learns_scale = learns_scale
        self.dimensions = spec.act_dim
        self.record_width = 2 * spec.act_dim
        self.output = gaussian_output(spec, sigma) if learns_scale else box_action(spec)
        self.exploration = GaussianSampling(spec, sigma)

    def check(self, output: np.ndarray) -> None:
        """Check that standard deviations are positive."""
        if self._learns_scale and not (output[:, self.dimensions :] > 0).all():
            raise reject("pi", "a model that returns means, then positive deviations", output[0].tolist())

    def statistics(self, output: tf.Tensor) -> tf.Tensor:
        """Return means `[..., act_dim]`, or means and standard deviations `[..., 2 act_dim]`."""
        if not self._learns_scale:
            return self.events(output)
        return self.recorded(output)

    def parameters(self, statistics: tf.Tensor) -> tf.Tensor:
        """Return means and standard deviations, `[..., 2 act_dim]`."""
        if self._learns_scale:
            return statistics
        return tf.concat([statistics, tf.fill(tf.shape(statistics), self._sigma)], axis=-1)

    def recorded(self, record: tf.Tensor) -> tf.Tensor:
        """Convert a record, which is in the environment's units, to means and standard deviations."""
        loc, scale = tf.split(record, 2, axis=-1)
        return tf.concat([self.events(loc), scale / self._spec.action_scale], axis=-1)

    def distribution(self, parameters: tf.Tensor) -> Any:
        """Return the distribution over actions relative to the middle of the box, in units of the action scale."""
        from tensorflow_probability import distributions as tfd

        return tfd.Independent(tfd.Normal(*tf.split(parameters, 2, axis=-1)), 1)

    def events(self, action: tf.Tensor) -> tf.Tensor:
        """Convert actions to offsets from the middle of the box, in units of the action scale, `[..., act_dim]`."""
        return (action - self._spec.center) / self._spec.action_scale

    def sample(self, statistics: tf.Tensor, count: int, key: tf.Tensor) -> tf.Tensor:
        """Sample actions in the environment's units, `[count, ..., act_dim]`, without gradient.

        The same `key` gives the same actions.
        """
        return self.transformed(statistics, stateless_normal((count, *statistics.shape[:-1], self.dimensions), key))

    def transformed(self, statistics: tf.Tensor, noise: Any) -> tf.Tensor:
        """Convert standard normal noise, `[..., act_dim]`, to actions in the environment's units."""
        loc, scale = tf.split(tf.stop_gradient(self.parameters(statistics)), 2, axis=-1)
        return self._spec.center + self._spec.action_scale * (loc + scale * noise)

    def trace(self, c: tf.Tensor) -> tf.Tensor:
        """Return 1, because Q^opc does not use importance weights."""
        return tf.ones_like(c)

    def gradient(
        self, statistics: tf.Tensor, window_actions: WindowActions, estimate: CriticEstimate, c: float
    ) -> tf.Tensor:
        """Return the gradient with respect to the statistics; the bias correction uses one sampled action."""
        parameters = self.parameters(statistics)
        other = cast(tf.Tensor, estimate.other)
        loc, scale = tf.split(parameters, 2, axis=-1)
        here = window_actions.rho, self.events(window_actions.action), window_actions.target, window_actions.v
        rho_other = importance_weights(self, parameters, window_actions.behaviour, other)
        there = rho_other, self.events(other), estimate.q_other
        return self._on_statistics(*losses.acer_gradient_gaussian(loc, scale, *here, *there, c))

    def kl_gradient(self, average: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        """Return the gradient with respect to the means, and to the standard deviations if they are learned."""
        ends = [tf.split(self.parameters(each), 2, axis=-1) for each in (average, statistics)]
        return self._on_statistics(*losses.kl_gradient_gaussian(*ends[0], *ends[1]))

    def entropy_gradient(self, statistics: tf.Tensor) -> tf.Tensor:
        """Return the gradient, which is 0 for the means."""
        loc, scale = tf.split(self.parameters(statistics), 2, axis=-1)
        return self._on_statistics(tf.zeros_like(loc), losses.entropy_gradient_gaussian(scale))

    def scores(self, output: Any) -> Any:
        """The means, `[batch, act_dim]`."""
        return output[:, : self.dimensions] if self._learns_scale else output

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `loc` and `scale`, `[batch, act_dim]` each, in the environment's units."""
        _, scale = tf.split(self.parameters(self.statistics(output)), 2, axis=-1)
        return {"loc": self.scores(output), "scale": scale * self._spec.action_scale}

    def _on_statistics(self, on_loc: tf.Tensor, on_scale: tf.Tensor) -> tf.Tensor:
        return tf.concat([on_loc, on_scale], axis=-1) if self._learns_scale else on_loc


PolicyDistribution = CategoricalPolicy | GaussianPolicy
"""The distribution that a policy samples actions from. Both have the same attributes and methods:

- `output` is the output transform of the built-in network, and `exploration` samples actions, in NumPy;
- `dimensions` is the number d of action dimensions; Retrace's trace is the d-th root of the importance weight;
- `record_width` is the number of columns of a record;
- `check` checks the outputs of a custom `pi`, `[batch, units]`, and raises `ValueError` if they do not describe a
  distribution;
- `statistics` converts a network's output `[..., units]` to statistics, `parameters` these to the parameters of the
  distribution, and `recorded` a record to these;
- `distribution` returns a TF-Probability distribution of batch shape `[...]`, over the values to which `events`
  converts actions `[..., act_dim]`;
- `trace` converts the traces of Retrace, `[...]`, to those of the returns in the policy gradient;
- `gradient` returns ACER's truncated policy gradient with bias correction with respect to `statistics`, for the actions
  taken, the critic's values (also for other actions), and c, at which importance weights are truncated;
- `kl_gradient` returns the gradient of KL[average ‖ policy], and `entropy_gradient` that of the entropy, with respect
  to the statistics of the policy;
- `scores` and `describe` convert a network's output to that of the evaluation policy (see
  `tfdpg.acting.greedy_actions`), and to the parameters of the distribution in the environment's units.
"""


def importance_weights(
    policy: PolicyDistribution, parameters: tf.Tensor, behaviour: tf.Tensor, action: tf.Tensor
) -> tf.Tensor:
    """Return importance weights ρ = f(a) / μ(a), `[...]`, of actions `[..., act_dim]`, without gradient.

    Args:
        policy: the kind of both distributions.
        parameters: parameters of f.
        behaviour: parameters of μ.
        action: a.
    """
    event = policy.events(action)
    log_ratio = policy.distribution(parameters).log_prob(event) - policy.distribution(behaviour).log_prob(event)
    return tf.stop_gradient(tf.exp(tf.minimum(log_ratio, LARGEST_LOG_RATIO)))
