"""Soft actor-critic (SAC) with a learnt temperature: an algorithm in a user's own file.

Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications".

python examples/sac.py --steps 10000
"""

import argparse
import functools
from typing import Any, final

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

import tfdpg
from tfdpg import export
from tfdpg.agents.declarations import check_box, given_networks, minibatches, normalizer, update_schedule
from tfdpg.agents.options import OffPolicyOptions
from tfdpg.components import Component, Copy, Declaration, Metric, PolicySpec, adam, polyak, scalar
from tfdpg.losses import td_loss, td_target
from tfdpg.networks import (
    Batch,
    OutputTransform,
    check_given,
    critic_network,
    flat_values,
    policy_network,
    smallest,
    stateless_normal,
)
from tfdpg.options import takes_options
from tfdpg.ranges import Positive

METRICS = (
    Metric("loss_q", "critic loss"),
    Metric("loss_pi", "policy loss"),
    Metric("q1", "value (q1)", spread=True),
    Metric("q2", "value (q2)", spread=True, shown=False),
    Metric("entropy"),
    Metric("temperature"),
    Metric("td_error", "TD error", priority=True),
)
LOG_STD = -20.0, 2.0
"""The range of the logarithm of the standard deviations."""


class SACOptions(
    OffPolicyOptions,
    without=(
        *("critics", "noise", "act_noise", "ou_theta", "random_eps"),
        *("act_noise_schedule", "bc_weight", "action_l2", "target_networks"),
        *("recurrent", "recurrent_units", "remembers", "sequence_length"),
        *("burn_in", "stored_state"),
    ),
):
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


class SquashedGaussian:
    """Exploration: actions are samples of tanh(N(mean, std)), rescaled to the bounds."""

    def __init__(self, spec: tfdpg.Spec):
        self._spec = spec
        self.step_width = spec.act_dim
        self.state = np.zeros((0, spec.act_dim), np.float32)

    def factor(self, step: int) -> float:
        """Return 1, because the policy itself determines how much it explores."""
        return 1.0

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Sample actions `[num_envs, act_dim]` for means and logarithms of standard deviations."""
        mean, log_std = np.split(output, 2, axis=1)
        return self._squashed(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Return the actions of the means, `[num_envs, act_dim]`."""
        return self._squashed(output[:, : self._spec.act_dim])

    def end(self, ended: np.ndarray) -> None:
        """Do nothing: samples do not depend on earlier ones."""

    def at_scale(self, scale: float | None) -> "SquashedGaussian":
        """Return this exploration, which is the same in all workers."""
        return self

    def _squashed(self, u: np.ndarray) -> np.ndarray:
        return np.tanh(u) * self._spec.action_scale + self._spec.center


def means_and_log_stds(spec: tfdpg.Spec) -> OutputTransform:
    """Return the transform to the output of the policy, means and clipped logarithms, `[batch, 2 · act_dim]`."""

    def apply(x: Any) -> Any:
        log_std = keras.ops.clip(x[:, spec.act_dim :], *LOG_STD)
        return keras.layers.Concatenate(dtype="float32")([x[:, : spec.act_dim], log_std])

    return OutputTransform(2 * spec.act_dim, apply)


def declare(spec: tfdpg.Spec, options: SACOptions) -> Declaration:
    """The components of SAC: a stochastic policy, two critics with target networks, and a temperature."""
    check_box(spec)
    output = means_and_log_stds(spec)
    given = given_networks(options, ("pi", "q1", "q2"))
    check_given(spec, given, options, output=output)

    def mean_action(observation: Any, pi: keras.Model) -> Any:
        rescale = keras.layers.Rescaling(spec.action_scale.tolist(), spec.center.tolist(), dtype="float32")
        return rescale(keras.ops.tanh(pi(observation)[:, : spec.act_dim]))

    return Declaration(
        spec=spec,
        components=[
            Component("pi", policy_network(options, output), given["pi"]),
            Component("q1", critic_network(options, "q1"), given["q1"]),
            Component("q2", critic_network(options, "q2"), given["q2"]),
            Component("log_temperature", scalar(np.log(options.temperature))),
        ],
        optimizers={
            "pi": adam(options, "pi"),
            "q1": adam(options, "q1"),
            "q2": adam(options, "q2"),
            "temperature": adam(options, "temperature", of=["log_temperature"]),
        },
        copies=[Copy(f"{name}_target", name, polyak(options.polyak)) for name in ("q1", "q2")],
        encoder=options.encoder,
        normalizer=normalizer(options),
        behaviour=PolicySpec("pi"),
        evaluation=PolicySpec("pi", call=mean_action),
        exploration=SquashedGaussian(spec),
        signatures=functools.partial(export.signatures, spec, critics=("q1", "q2")),
        minibatches=minibatches(spec, options, None),
        schedule=update_schedule(options),
        metrics=METRICS,
    )


@final
class SAC(tfdpg.Agent):
    """Soft actor-critic with two critics and a temperature that is adjusted to a target entropy."""

    @takes_options(SACOptions)
    def __init__(self, env: Any, options: SACOptions):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options, declare)
        self.pi = self.networks["pi"]
        self.log_temperature = self.networks["log_temperature"].trainable_variables[0]
        self.target_entropy = -float(self.spec.act_dim) if options.target_entropy is None else options.target_entropy

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Update critics towards r + γ (1 − d) (min_i Q_targ(s', a') − α log π(a'|s')), then policy and temperature."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise_t, noise = tf.unstack(stateless_normal((2, self.batch_elements, self.spec.act_dim), key))
        temperature = tf.exp(self.log_temperature.value)
        action_t, log_prob_t = self.sample(batch.ask_next(self.pi), noise_t)
        value_t = smallest([batch.ask_next(self.targets[name], action_t) for name in ("q1", "q2")])
        target = td_target(batch.reward, batch.discount, value_t - temperature * log_prob_t)
        with self.minimize("q1", "q2") as step:
            values = [flat_values(batch.ask(self.networks[name], batch.action, training=True)) for name in ("q1", "q2")]
            losses = [td_loss(value, target) for value in values]
            step(*[batch.mean(loss) for loss in losses])
        with self.minimize("pi") as step:
            action, log_prob = self.sample(batch.ask(self.pi, training=True), noise)
            q = smallest([batch.ask(self.networks[name], action) for name in ("q1", "q2")])
            loss_pi = temperature * log_prob - q
            step(batch.average(loss_pi))
        with self.minimize("temperature") as step:
            excess = tf.stop_gradient(log_prob + self.target_entropy)
            step(-batch.average(self.log_temperature.value * excess))
        self.update_copies(counter)
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[1],
            "entropy": -log_prob,
            "temperature": tf.broadcast_to(temperature, tf.shape(q)),
            "td_error": tf.add_n([tf.abs(target - value) for value in values]) / 2,
        }

    def sample(self, output: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return actions tanh(u), u = mean + std · noise, and their log π, `[batch]`, in units of the action scale.

        log π = Σ_i [log N(u_i) − log(1 − tanh² u_i)], where log(1 − tanh² u) = 2 (log 2 − u − softplus(−2 u)).
        """
        mean, log_std = tf.split(output, 2, axis=-1)
        u = mean + tf.exp(log_std) * noise
        log_normal = -0.5 * (tf.square(noise) + np.log(2 * np.pi)) - log_std
        log_slope = 2 * (np.log(2) - u - tf.math.softplus(-2 * u))
        action = self.spec.center + self.spec.action_scale * tf.tanh(u)
        return action, tf.reduce_sum(log_normal - log_slope, axis=-1)


def main(directory: str, steps: int, **options: Any) -> None:
    """Train on Pendulum-v1; save, load and export the agent under `directory`."""
    agent = SAC("Pendulum-v1", seed=0, **options)
    agent.fit("Pendulum-v1", epochs=5, steps_per_epoch=steps // 5, validation_env="Pendulum-v1")
    agent.save(f"{directory}/agent")
    agent = tfdpg.load_agent(f"{directory}/agent", agent_class=SAC)
    print(agent, agent.evaluate(gym.make("Pendulum-v1")))
    print("exported", agent.export(f"{directory}/model"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="runs/sac")
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    small = {"hidden_units": (64, 64), "batch_size": 64, "pi_lr": 1e-3, "q_lr": 1e-3, "temperature_lr": 1e-3}
    main(arguments.directory, arguments.steps, **small)
