"""Stochastic policies behind one interface: what a network's output means as a distribution, and gradients on it.

The *statistics* `[..., n]` of a distribution are what a policy's gradient and trust region are taken on: the
probabilities; or the means, and scales where they are learnt, in half-ranges from the middle of the action box.
Its *parameters* `[..., m]` say all of it, and so does its *record*, which is stored with a step.
"""

import abc
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.acting import CategoricalSampling, Exploration, GaussianSampling
from tfdpg.arguments import reject
from tfdpg.networks.mlp import OutputTransform, box_action, gaussian_output, probabilities
from tfdpg.networks.randomness import stateless_normal
from tfdpg.networks.tensors import CriticEstimate, WindowActions
from tfdpg.spec import Spec

LARGEST_LOG_RATIO = 30.0
"""Of two densities, so that an importance weight is a finite number."""


class PolicyDistribution(abc.ABC):
    """A policy by the distribution that it draws actions from.

    Attributes:
        output: what a stock network makes of its last layer.
        exploration: draws actions, in NumPy.
        dimensions: of an action, whose root an importance weight's trace is.
        record_width: the numbers in a record.
    """

    output: OutputTransform
    exploration: Exploration
    dimensions: int
    record_width: int

    @abc.abstractmethod
    def check(self, output: np.ndarray) -> None:
        """Raises `ValueError` for outputs `[batch, units]` of an own `pi` that are no distributions."""

    @abc.abstractmethod
    def statistics(self, output: tf.Tensor) -> tf.Tensor:
        """The statistics of a network's output `[..., units]`."""

    @abc.abstractmethod
    def parameters(self, statistics: tf.Tensor) -> tf.Tensor:
        """The parameters of the distribution that has these statistics."""

    @abc.abstractmethod
    def recorded(self, record: tf.Tensor) -> tf.Tensor:
        """The parameters of the distribution that has this record."""

    @abc.abstractmethod
    def distribution(self, parameters: tf.Tensor) -> Any:
        """A TF-Probability distribution of batch shape `[...]`, of what `events` gives."""

    @abc.abstractmethod
    def events(self, action: tf.Tensor) -> tf.Tensor:
        """Actions `[..., act_dim]` as the distribution has them."""

    @abc.abstractmethod
    def trace(self, c: tf.Tensor) -> tf.Tensor:
        """The traces `[...]` of the returns in the policy's gradient, from those of Retrace."""

    @abc.abstractmethod
    def gradient(
        self, statistics: tf.Tensor, window_actions: WindowActions, estimate: CriticEstimate, c: float
    ) -> tf.Tensor:
        """ACER's truncated policy gradient with bias correction, on the statistics.

        Args:
            statistics: of the policy.
            window_actions: the actions taken, and what is known of them.
            estimate: what the critic says of other actions.
            c: where importance weights are truncated.
        """

    @abc.abstractmethod
    def kl_gradient(self, average: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        """∇ KL[average ‖ policy] on the statistics; `average` are others' statistics."""

    @abc.abstractmethod
    def entropy_gradient(self, statistics: tf.Tensor) -> tf.Tensor:
        """∇ of the entropy on the statistics."""

    @abc.abstractmethod
    def scores(self, output: Any) -> Any:
        """The output of the evaluation policy (see `tfdpg.acting.greedy_actions`) for a network's output."""

    @abc.abstractmethod
    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """The distribution for a network's output, by its parameters in the environment's units."""

    def ratio(self, parameters: tf.Tensor, behaviour: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """The importance weights ρ = f(a) / μ(a) of actions `[..., act_dim]`, `[...]`, without gradient."""
        event = self.events(action)
        log_ratio = self.distribution(parameters).log_prob(event) - self.distribution(behaviour).log_prob(event)
        return tf.stop_gradient(tf.exp(tf.minimum(log_ratio, LARGEST_LOG_RATIO)))


class CategoricalPolicy(PolicyDistribution):
    """Probabilities of the actions of a Discrete space."""

    dimensions = 1

    def __init__(self, spec: Spec):
        self._first = int(spec.low[0])
        self.record_width = spec.actions or 0
        self.output = probabilities(spec)
        self.exploration = CategoricalSampling(spec)

    def check(self, output: np.ndarray) -> None:
        """They must be probabilities."""
        if (output < 0).any() or not np.allclose(output.sum(axis=-1), 1, atol=1e-3):
            raise reject("pi", "a model that returns probabilities (end it in a softmax)", output[0].tolist())

    def statistics(self, output: tf.Tensor) -> tf.Tensor:
        """The probabilities `[..., actions]`."""
        return output

    def parameters(self, statistics: tf.Tensor) -> tf.Tensor:
        """The probabilities."""
        return statistics

    def recorded(self, record: tf.Tensor) -> tf.Tensor:
        """The probabilities."""
        return record

    def distribution(self, parameters: tf.Tensor) -> Any:
        """Of indices from 0."""
        from tensorflow_probability import distributions as tfd

        return tfd.Categorical(probs=tf.maximum(parameters, losses.MIN_PROBABILITY))

    def events(self, action: tf.Tensor) -> tf.Tensor:
        """Indices from 0, `[...]`; what is no action, where no step was taken, becomes one."""
        return tf.clip_by_value(self._index(action), 0, self.record_width - 1)

    def is_action(self, action: tf.Tensor) -> tf.Tensor:
        """Which of `[..., 1]` there are, bool `[...]`."""
        index = self._index(action)
        return (index >= 0) & (index < self.record_width)

    def _index(self, action: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.squeeze(action, axis=-1), tf.int32) - self._first

    def trace(self, c: tf.Tensor) -> tf.Tensor:
        """Retrace's own."""
        return c

    def gradient(
        self, statistics: tf.Tensor, window_actions: WindowActions, estimate: CriticEstimate, c: float
    ) -> tf.Tensor:
        """With all other actions."""
        values = estimate.q_other, window_actions.target, window_actions.v
        return losses.acer_gradient_categorical(
            statistics, window_actions.behaviour, self.events(window_actions.action), *values, c
        )

    def kl_gradient(self, average: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        """On the probabilities."""
        return losses.kl_gradient_categorical(average, statistics)

    def entropy_gradient(self, statistics: tf.Tensor) -> tf.Tensor:
        """On the probabilities."""
        return losses.entropy_gradient_categorical(statistics)

    def scores(self, output: Any) -> Any:
        """The probabilities, `[batch, actions]`."""
        return output

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """`probs` `[batch, actions]`."""
        return {"probs": output}


class GaussianPolicy(PolicyDistribution):
    """A Gaussian with independent dimensions, whose mean is in the action box.

    Args:
        spec: the spaces.
        sigma: its scale, as a fraction of the half-range.
        learns_scale: whether networks give scales too, which `sigma` is the first of.
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
        """Scales must be above 0."""
        if self._learns_scale and not (output[:, self.dimensions :] > 0).all():
            raise reject("pi", "a model that returns means, then scales above 0", output[0].tolist())

    def statistics(self, output: tf.Tensor) -> tf.Tensor:
        """The means `[..., act_dim]`, or means and scales `[..., 2 act_dim]`."""
        if not self._learns_scale:
            return self.events(output)
        return self.recorded(output)

    def parameters(self, statistics: tf.Tensor) -> tf.Tensor:
        """Means and scales `[..., 2 act_dim]`."""
        if self._learns_scale:
            return statistics
        return tf.concat([statistics, tf.fill(tf.shape(statistics), self._sigma)], axis=-1)

    def recorded(self, record: tf.Tensor) -> tf.Tensor:
        """Means and scales, which a record has in the environment's units."""
        loc, scale = tf.split(record, 2, axis=-1)
        return tf.concat([self.events(loc), scale / self._spec.action_scale], axis=-1)

    def distribution(self, parameters: tf.Tensor) -> Any:
        """Of actions in half-ranges from the middle of the box."""
        from tensorflow_probability import distributions as tfd

        return tfd.Independent(tfd.Normal(*tf.split(parameters, 2, axis=-1)), 1)

    def events(self, action: tf.Tensor) -> tf.Tensor:
        """In half-ranges from the middle of the box, `[..., act_dim]`."""
        return (action - self._spec.center) / self._spec.action_scale

    def sample(self, statistics: tf.Tensor, count: int, key: tf.Tensor) -> tf.Tensor:
        """Drawn actions in the environment's units, `[count, ..., act_dim]`, without gradient, a function of `key`."""
        return self.transformed(statistics, stateless_normal((count, *statistics.shape[:-1], self.dimensions), key))

    def transformed(self, statistics: tf.Tensor, noise: Any) -> tf.Tensor:
        """The actions that standard normal numbers `[..., act_dim]` stand for, in the environment's units."""
        loc, scale = tf.split(tf.stop_gradient(self.parameters(statistics)), 2, axis=-1)
        return self._spec.center + self._spec.action_scale * (loc + scale * noise)

    def trace(self, c: tf.Tensor) -> tf.Tensor:
        """1: Q^opc corrects by no importance weights."""
        return tf.ones_like(c)

    def gradient(
        self, statistics: tf.Tensor, window_actions: WindowActions, estimate: CriticEstimate, c: float
    ) -> tf.Tensor:
        """With one other action, drawn from the policy."""
        parameters = self.parameters(statistics)
        other = cast(tf.Tensor, estimate.other)
        loc, scale = tf.split(parameters, 2, axis=-1)
        here = window_actions.rho, self.events(window_actions.action), window_actions.target, window_actions.v
        there = self.ratio(parameters, window_actions.behaviour, other), self.events(other), estimate.q_other
        return self._on_statistics(*losses.acer_gradient_gaussian(loc, scale, *here, *there, c))

    def kl_gradient(self, average: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        """On the means, and on the scales where they are learnt."""
        ends = [tf.split(self.parameters(each), 2, axis=-1) for each in (average, statistics)]
        return self._on_statistics(*losses.kl_gradient_gaussian(*ends[0], *ends[1]))

    def entropy_gradient(self, statistics: tf.Tensor) -> tf.Tensor:
        """On the scales; 0 on the means."""
        loc, scale = tf.split(self.parameters(statistics), 2, axis=-1)
        return self._on_statistics(tf.zeros_like(loc), losses.entropy_gradient_gaussian(scale))

    def scores(self, output: Any) -> Any:
        """The means, `[batch, act_dim]`."""
        return output[:, : self.dimensions] if self._learns_scale else output

    def describe(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """`loc` and `scale` `[batch, act_dim]`, in the environment's units."""
        _, scale = tf.split(self.parameters(self.statistics(output)), 2, axis=-1)
        return {"loc": self._loc(output), "scale": scale * self._spec.action_scale}

    def _loc(self, output: tf.Tensor) -> tf.Tensor:
        return tf.split(output, 2, axis=-1)[0] if self._learns_scale else output

    def _on_statistics(self, on_loc: tf.Tensor, on_scale: tf.Tensor) -> tf.Tensor:
        return tf.concat([on_loc, on_scale], axis=-1) if self._learns_scale else on_loc
