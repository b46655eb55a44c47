"""Actor-critic with experience replay (ACER), for discrete and continuous actions.

Source: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay". Its parallel actor-learners are the
sub-environments of a vector environment, in one synchronous update.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, final

import keras
import tensorflow as tf

from tfdpg import export
from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import given_networks, normalizer
from tfdpg.agents.options import ACEROptions
from tfdpg.arguments import reject
from tfdpg.components import Component, Copy, Declaration, Metric, Minibatches, PolicySpec, polyak, rmsprop
from tfdpg.losses import retrace, trust_region
from tfdpg.networks.acer_builders import acer_network, check_given_to_acer
from tfdpg.networks.acer_critics import ACERCritic, ActionValues, Dueling, SeparateCritic
from tfdpg.networks.acer_policies import CategoricalPolicy, GaussianPolicy, PolicyDistribution, importance_weights
from tfdpg.networks.mlp import MIN_SIGMA
from tfdpg.networks.tensors import CriticEstimate, WindowActions, WindowBatch, unpack_windows
from tfdpg.options import takes_options
from tfdpg.replay import ReplayBuffer, window_minibatches
from tfdpg.spec import Spec
from tfdpg.training.environment.schedule import Schedule
from tfdpg.training.learning.batches import pack_windows

METRICS = (
    Metric("loss_q", "critic loss"),
    Metric("loss_pi", "policy loss"),
    Metric("q1", "value (q1)", spread=True),
    Metric("v"),
    Metric("entropy"),
    Metric("kl"),
    Metric("td_error", "TD error", priority=True),
)


def declare(spec: Spec, options: ACEROptions) -> Declaration:
    """The components of ACER: a stochastic policy, its critic, and their averages."""
    policy, critic = acer_policy_and_critic(spec, options)
    names = ("pi", *critic.names)
    given = given_networks(options, names)
    steps = default_by_action_space(spec, options.n_steps, 20, 50)
    on_policy = default_by_action_space(spec, options.on_policy, True, False)
    size = options.replay_size
    ratio = options.replay_ratio
    if ratio == 0 and not on_policy:
        raise reject("replay_ratio", "above 0 where `on_policy` is off: there are no updates", ratio)
    if steps >= size:
        raise reject("n_steps", f"less than replay_size={size}", steps)
    if options.replay_start > size and ratio > 0:
        raise reject("replay_start", f"at most replay_size={size}", options.replay_start)
    check_given_to_acer(spec, policy, given, options)
    alpha = default_by_action_space(spec, options.alpha, 0.99, 0.995)
    copies = [Copy("pi_target", "pi", polyak(alpha))]
    if options.critic_average is not None:
        copies += [Copy(f"{name}_target", name, polyak(options.critic_average)) for name in critic.names]
    sampling = {"steps": steps, "newest": on_policy, "ratio": ratio, "start": options.replay_start}
    sampling |= {"seed": options.drawn_seed, "batch_size": options.batch_size, "gamma": options.gamma}
    width = policy.record_width
    return Declaration(
        spec=spec,
        components=[Component(name, acer_network(options, policy, name), given[name]) for name in names],
        optimizers={"all": rmsprop(options, of=names)},
        copies=copies,
        encoder=options.encoder,
        normalizer=normalizer(options),
        behaviour=PolicySpec("pi"),
        evaluation=PolicySpec("pi", call=lambda observation, pi: policy.scores(pi(observation))),
        exploration=policy.exploration,
        signatures=functools.partial(signatures, spec, policy, critic, options.reward_scale),
        minibatches=Minibatches(
            replay=ReplayBuffer(
                spec, size, options.replay_dir, spec.act_dim + width, has_windows=True, gamma=options.gamma
            ),
            make_minibatch_builder=functools.partial(window_minibatches, **sampling),
            unpack=functools.partial(unpack_windows, spec, record_width=width),
            pack=functools.partial(pack_windows, spec, options.batch_size, steps, width, options.gamma),
            batch_elements=options.batch_size,
        ),
        schedule=Schedule(start_steps=0, update_after=0, update_every=steps, gradient_steps=None, per_env=True),
        metrics=METRICS,
        unused=unused_options(spec, options),
        updates_per_phase=1 + math.ceil(ratio),
    )


def signatures(
    spec: Spec,
    policy: PolicyDistribution,
    critic: ACERCritic,
    reward_scale: float,
    networks: Mapping[str, keras.Model],
    evaluation: keras.Model,
) -> dict[str, export.Signature]:
    """The signatures of every agent, with values in units of the unscaled return; the value `v`; and `distribution`.

    `pi(x) → pi` is the mode: a mean within the action bounds, `[batch, act_dim]`, or the most probable action, int64
    `[batch]`. `v(x) → v` is `[batch]`. `distribution(x)` returns `probs` `[batch, actions]`, or `loc` and `scale`
    `[batch, act_dim]`.
    """
    pi = networks["pi"]

    def value(observation: Any) -> dict[str, tf.Tensor]:
        return {"v": critic.v(networks, observation, pi(observation)) / reward_scale}

    def action_value(observation: Any, a: tf.Tensor) -> tf.Tensor:
        return critic.q(networks, observation, a, pi(observation)) / reward_scale

    return export.single_step_signatures(spec, evaluation, {critic.names[0]: action_value}) | {
        "v": export.Signature(value, {}),
        "distribution": export.Signature(lambda observation: policy.describe(pi(observation)), {}),
    }


def acer_policy_and_critic(spec: Spec, options: ACEROptions) -> tuple[PolicyDistribution, ACERCritic]:
    """The family of ACER's policy, and the kind of its critic, for the action space.

    Raises:
        ValueError: the standard deviation is too small to be learnt.
    """
    if spec.actions is not None:
        family = CategoricalPolicy(spec)
        return family, ActionValues(family)
    if options.learn_sigma and options.sigma <= MIN_SIGMA:
        raise reject("sigma", f"above {MIN_SIGMA} where it is learnt", options.sigma)
    policy = GaussianPolicy(spec, options.sigma, options.learn_sigma)
    if not options.dueling:
        return policy, SeparateCritic(policy)
    return policy, Dueling(policy, options.dueling_samples, options.drawn_seed)


def unused_options(spec: Spec, options: ACEROptions) -> dict[str, str]:
    """Why options have no effect for the action space, by name."""
    if spec.actions is not None:
        return dict.fromkeys(
            ("v", "sigma", "learn_sigma", "dueling", "dueling_samples"), f"actions are {spec.action_space}"
        )
    fixed = "the scale of a Gaussian is fixed (`learn_sigma` is False)"
    return {} if options.learn_sigma else {"ent_coef": fixed}


def default_by_action_space(spec: Spec, given: Any, discrete: Any, box: Any) -> Any:
    """Return the value of an option, or its default for Discrete or Box actions if it is None."""
    if given is not None:
        return given
    return box if spec.actions is None else discrete


@final
class ACER(Agent):
    """ACER: on-policy and off-policy updates of a stochastic policy, within a trust region, on Retrace's returns.

    Discrete actions have a categorical policy and a critic of all their values; Box actions a Gaussian policy and a
    stochastic dueling network. Some defaults are for one kind or the other: 20 | 50 is for Discrete and for Box.

    Args:
        env: an environment or vector environment whose spaces the agent is for, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.ACER.__init__)` describes them.

    Raises:
        ValueError: an argument is out of its range or has no effect, the spaces are not supported, or a custom network
            has a wrong shape.

    Example:
        ```python
        env = gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
        agent = tfdpg.ACER(env, seed=0)
        agent.fit(env, epochs=20, validation_env=gymnasium.make("CartPole-v1"))
        agent.export("exported_models/acer-cartpole")
        ```
    """

    @takes_options(ACEROptions)
    def __init__(self, env: Any, options: ACEROptions):
        """See the class.

        Args:
            env: an environment or vector environment with the spaces of the agent, its id, or a `Spec`.
            options: keyword arguments.
        """
        super().__init__(env, options, declare)
        spec = self.spec
        self.family, self.critic = acer_policy_and_critic(spec, options)
        self.pi = self.networks["pi"]
        self.q1 = self.networks["q1"]
        self.v = self.networks.get("v")
        self.reward_scale = options.reward_scale
        self.critic_average = options.critic_average
        self.retrace_lambda = options.retrace_lambda
        self.retrace_clip = options.retrace_clip
        self.c = default_by_action_space(spec, options.c, 10.0, 5.0)
        self.delta = options.delta
        self.ent_coef = options.ent_coef
        self.q_coef = options.q_coef

    def update(self, batch: WindowBatch, counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards Q^ret, the policy along ACER's gradient within the trust region, then the averages."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        average = self.family.statistics(batch.ask(self.targets["pi"]))
        with self.minimize("all") as step:
            statistics = self.family.statistics(batch.ask(self.pi, training=True))
            fixed = tf.stop_gradient(statistics)
            estimate = self.critic.estimate(self.networks, batch, fixed, key, training=True)
            value_estimates = self.value_estimates(estimate, batch, fixed, key)
            rho, target, direction = self.improve(batch, fixed[:, :-1], average[:, :-1], value_estimates)
            loss_pi = -tf.reduce_sum(direction * statistics[:, :-1], axis=-1)
            loss_q = self.critic.loss(estimate, target, rho)
            step(batch.mean(loss_pi + self.q_coef * loss_q))
        self.update_copies(counter)
        values = {"q1": estimate.q, "v": estimate.v[:, :-1], "td_error": tf.abs(target - estimate.q)}
        measured = {name: value / self.reward_scale for name, value in values.items()}
        measured |= {"loss_q": loss_q, "loss_pi": loss_pi, **self.divergence(fixed, average)}
        return {name: mean_of_windows(values, batch.acted) for name, values in measured.items()}

    def improve(
        self, batch: WindowBatch, statistics: tf.Tensor, average: tf.Tensor, value_estimates: CriticEstimate
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the importance weights and Q^ret, `[batch, T]`, and the ascent direction on the statistics.

        The direction is z = g − max(0, (k · g − δ) / |k|²) k plus the entropy's gradient; 0 where no step was taken.
        """
        acted = batch.acted > 0
        behaviour = self.family.recorded(batch.record)
        weights = importance_weights(self.family, self.family.parameters(statistics), behaviour, batch.action)
        rho = tf.where(acted, weights, 1.0)
        traces = self.retrace_lambda * tf.minimum(self.retrace_clip, tf.pow(rho, 1 / self.family.dimensions))
        steps = self.reward_scale * batch.reward, batch.discount
        target, policy_target = (
            retrace(value_estimates.q, value_estimates.v[:, 1:], *steps, next_step_traces(c, batch))
            for c in (traces, self.family.trace(traces))
        )
        window_actions = WindowActions(behaviour, batch.action, rho, policy_target, value_estimates.v[:, :-1])
        g = self.family.gradient(statistics, window_actions, value_estimates, self.c)
        k = self.family.kl_gradient(average, statistics)
        z = trust_region(g, k, self.delta) + self.ent_coef * self.family.entropy_gradient(statistics)
        return rho, target, tf.where(tf.expand_dims(acted, -1), z, 0.0)

    def value_estimates(
        self, estimate: CriticEstimate, batch: WindowBatch, statistics: tf.Tensor, key: tf.Tensor
    ) -> CriticEstimate:
        """Return the values for returns and advantages: those of the critic, or of the average critic.

        Retrace takes V and Q from the same critic: V(s') − Q(s', a') should be 0 on average.
        """
        if self.critic_average is None:
            return estimate
        return self.critic.estimate(self.targets, batch, statistics, key, training=False)

    def divergence(self, statistics: tf.Tensor, average: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the policy's entropy and the divergence KL[average ‖ policy], `[batch, T]`."""
        pair = (self.family.parameters(each[:, :-1]) for each in (statistics, average))
        now, before = map(self.family.distribution, pair)
        return {"entropy": now.entropy(), "kl": before.kl_divergence(now)}


def next_step_traces(c: tf.Tensor, batch: WindowBatch) -> tf.Tensor:
    """Return the traces of the next steps' actions, `[batch, T]`; 0 where the episode has no next action."""
    c = c * batch.acted
    return tf.where(batch.discount > 0, tf.concat([c[:, 1:], tf.zeros_like(c[:, :1])], axis=1), 0.0)


def mean_of_windows(values: tf.Tensor, acted: tf.Tensor) -> tf.Tensor:
    """Return the mean over each window's steps, `[batch]`; for a window without steps, the mean over all steps."""
    values = tf.where(acted > 0, values, 0.0)
    steps = tf.reduce_sum(acted, axis=1)
    overall = tf.reduce_sum(values) / tf.maximum(tf.reduce_sum(steps), 1)
    return tf.where(steps > 0, tf.reduce_sum(values, axis=1) / tf.maximum(steps, 1), overall)
