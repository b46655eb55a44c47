"""Soft actor-critic (SAC) with a learnt temperature: an algorithm in a user's own file.

Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications".

docs/adding-an-algorithm.md explains this file. To run it:

tfdpg train examples/sac.py:SAC --env Pendulum-v1
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdpg
from tfdpg.acting import Exploration
from tfdpg.agents.declarations import actor_critic, td_losses
from tfdpg.agents.options import OffPolicyOptions
from tfdpg.components import Component, adam, polyak, scalar
from tfdpg.networks import Batch, Critics, OutputTransform, per_critic, smallest, stateless_normal
from tfdpg.options import takes_options
from tfdpg.ranges import Positive

WITHOUT = (
    *("noise", "act_noise", "ou_theta", "random_eps", "act_noise_schedule", "bc_weight", "action_l2", "smoothness"),
    *("target_networks", "recurrent", "recurrent_units", "remembers", "sequence_length", "burn_in", "stored_state"),
)
"""Options of similar agents that SAC does not take."""


class SACOptions(OffPolicyOptions, without=WITHOUT):
    """The options of SAC; the defaults are those of Stable-Baselines3."""

    batch_size = 256
    pi_lr = 3e-4
    q_lr = 3e-4
    start_steps = 100
    update_after = 100
    update_every = 1
    temperature_lr: Positive = 3e-4
    """learning rate of the temperature's Adam."""
    temperature: Positive = 1.0
    """temperature at the start."""
    target_entropy: float | None = None
    """target of the entropy; None is minus the number of action dimensions."""


class SquashedGaussian(Exploration):
    """Exploration: actions are samples of tanh(N(mean, std)), rescaled to the bounds."""

    def __init__(self, spec: tfdpg.Spec):
        self._spec = spec
        self.step_width = spec.act_dim

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Sample actions `[num_envs, act_dim]` for means and logarithms of standard deviations."""
        mean, log_std = np.split(output, 2, axis=1)
        return self._squashed(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Return the actions of the means, `[num_envs, act_dim]`."""
        return self._squashed(output[:, : self._spec.act_dim])

    def _squashed(self, u: np.ndarray) -> np.ndarray:
        return np.tanh(u) * self._spec.action_scale + self._spec.center


def declare(spec: tfdpg.Spec, options: SACOptions) -> tfdpg.Declaration:
    """The components of SAC: a stochastic policy, critics with target networks, and a temperature."""

    def means_and_log_stds(x: Any) -> Any:
        log_stds = keras.ops.clip(x[:, spec.act_dim :], -20.0, 2.0)
        return keras.layers.Concatenate(dtype="float32")([x[:, : spec.act_dim], log_stds])

    def mean_action(observation: Any, pi: keras.Model) -> Any:
        rescale = keras.layers.Rescaling(spec.action_scale.tolist(), spec.center.tolist(), dtype="float32")
        return rescale(keras.ops.tanh(pi(observation)[:, : spec.act_dim]))

    output = OutputTransform(2 * spec.act_dim, means_and_log_stds)
    base = actor_critic(spec, options, polyak(options.polyak), output=output, exploration=SquashedGaussian(spec))
    return dataclasses.replace(
        base,
        components=[*base.components, Component("log_temperature", scalar(np.log(options.temperature)))],
        optimizers={**base.optimizers, "temperature": adam(options, "temperature", of=["log_temperature"])},
        copies=[each for each in base.copies if each.name != "pi_target"],
        evaluation=tfdpg.PolicySpec(*(base.evaluation or base.behaviour).networks, call=mean_action),
        metrics=[*base.metrics, tfdpg.Metric("entropy"), tfdpg.Metric("temperature")],
    )


class SAC(tfdpg.Agent):
    """Soft actor-critic with a temperature that is adjusted to a target entropy."""

    @takes_options(SACOptions)
    def __init__(self, env: Any, options: SACOptions):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options, declare)
        self.critics = Critics.of("q", self.networks)
        self.target_critics = Critics.of("q", self.targets)
        self.td_loss, self.td_error = td_losses(options.replay)
        self.log_temperature = self.networks["log_temperature"].trainable_variables[0]
        self.target_entropy = -float(self.spec.act_dim) if options.target_entropy is None else options.target_entropy

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Update critics towards r + γ (1 − d) (min_i Q_targ(s', a') − α log π(a'|s')), then policy and temperature."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise_t, noise = tf.unstack(stateless_normal((2, self.batch_elements, self.spec.act_dim), key))
        temperature = tf.exp(self.log_temperature.value)
        action_t, log_prob_t = self.sample(batch.ask_next(self.networks["pi"]), noise_t)
        with self.minimize(*self.critics.names) as step:
            values, values_t = batch.ask_both(self.critics, batch.action, self.target_critics, action_t)
            target = tfdpg.losses.td_target(batch.reward, batch.discount, smallest(values_t) - temperature * log_prob_t)
            losses = per_critic(lambda value: self.td_loss(value, target), values)
            step(batch.mean(losses))
        with self.minimize("pi") as step:
            action, log_prob = self.sample(batch.ask(self.networks["pi"], training=True), noise)
            loss_pi = temperature * log_prob - smallest(batch.ask(self.critics, action))
            step(batch.average(loss_pi))
        with self.minimize("temperature") as step:
            step(-batch.average(self.log_temperature.value * (log_prob + self.target_entropy)))
        self.update_copies(counter)
        measured = {"loss_q": tf.reduce_sum(losses, axis=0), "loss_pi": loss_pi, **self.critics.by_name(values)}
        measured |= {"entropy": -log_prob, "temperature": tf.fill([self.batch_elements], temperature)}
        return measured | {"td_error": self.td_error(tf.abs(target - values))}

    def sample(self, output: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return actions tanh(u), u = mean + std · noise, and their log π, `[batch]`, in units of the action scale.

        log π = Σ_i [log N(u_i) − log(1 − tanh² u_i)], where log(1 − tanh² u) = 2 (log 2 − u − softplus(−2 u)).
        """
        mean, log_std = tf.split(output, 2, axis=-1)
        u = mean + tf.exp(log_std) * noise
        log_normal = -0.5 * (tf.square(noise) + np.log(2 * np.pi)) - log_std
        log_slope = 2 * (np.log(2) - u - tf.math.softplus(-2 * u))
        return self.spec.center + self.spec.action_scale * tf.tanh(u), tf.reduce_sum(log_normal - log_slope, axis=-1)
