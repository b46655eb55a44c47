"""TD7: TD3 with embeddings, prioritised replay, clipped target values and the best policy.

Source: Fujimoto, Chang, Smith, Gu, Precup, Meger 2023, "For SALE: State-Action Representation Learning for Deep
Reinforcement Learning". Defaults are the paper's. Differences: the critics' last biases start from 0, a minibatch's
samples are stratified, and an episode is assessed only if all of its actions came from the same policy.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg import export
from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import averaged, check_box, metrics, minibatches, normalizer, td_losses, update_schedule
from tfdpg.agents.options import TD7Options
from tfdpg.components import (
    Component,
    Copy,
    Declaration,
    Metric,
    PolicySpec,
    adam,
    critics,
    every,
    on_request,
    run_if,
    smoothness_penalty,
)
from tfdpg.exploration import noisy_actions, per_dimension
from tfdpg.losses import smooth_action, td7_policy_loss, td_target
from tfdpg.networks import (
    Critics,
    TransitionBatch,
    action_encoder,
    action_input,
    check_device,
    check_encoder,
    embedding_critic,
    embedding_policy,
    observation_inputs,
    per_critic,
    smallest,
    state_encoder,
    stateless_normal,
    with_preactivation,
)
from tfdpg.options import takes_options
from tfdpg.spec import Spec
from tfdpg.training.learning.updates import LARGEST_CHUNK

ENCODERS = "state_encoder", "action_encoder"


def declare(spec: Spec, options: TD7Options) -> Declaration:
    """The components of TD7: two encoders, a policy, the critics, and their fixed, target and best copies."""
    check_box(spec)
    check_device(options.device, {})
    check_encoder(options)
    width = {"width": options.embedding_units}
    encoder = width | {"units": options.encoder_units, "activation": options.encoder_activation}
    hidden = width | {"units": options.hidden_units, "norm": options.norm}
    critic = functools.partial(embedding_critic, activation=options.critic_activation, **hidden)
    builders = {
        "state_encoder": functools.partial(state_encoder, **encoder),
        "action_encoder": functools.partial(action_encoder, **encoder),
        "pi": functools.partial(embedding_policy, activation=options.activation, **hidden),
    }
    critic_components = critics("q", options.critics, lambda name: critic)
    names = [each.name for each in critic_components]
    rule = every(options.target_update_every)
    targets = [
        *(Copy(f"{name}_target", name, rule) for name in ("pi", *names)),
        *(Copy(f"{name}_fixed_target", f"{name}_fixed", rule) for name in ENCODERS),
    ]
    best = [Copy("pi_best", "pi", on_request), Copy("state_encoder_best", "state_encoder_fixed", on_request)]
    behaviour = PolicySpec("state_encoder_fixed", "pi", call=act)
    assesses = options.keep_best_policy
    averages, evaluation = averaged(behaviour, options.average_policy)
    noise = options.noise, options.act_noise, options.ou_theta, options.act_noise_schedule, options.random_eps
    return Declaration(
        spec=spec,
        components=[*(Component(name, build) for name, build in builders.items()), *critic_components],
        optimizers={name: adam(options, name) for name in ("pi", *names)}
        | {"encoder": adam(options, "encoder", of=ENCODERS)},
        copies=[
            *(targets if options.target_networks else []),
            *(Copy(f"{name}_fixed", name, rule) for name in ENCODERS),
            *(best if assesses else averages),
        ],
        encoder=options.encoder,
        normalizer=normalizer(options),
        behaviour=behaviour,
        evaluation=PolicySpec("state_encoder_best", "pi_best", call=act) if assesses else evaluation,
        exploration=noisy_actions(spec, *noise),
        signatures=functools.partial(export.signatures, spec, critics=names),
        action_values=functools.partial(action_values, spec, names),
        minibatches=minibatches(spec, options, None, {"max_priority_period": options.target_update_every}),
        schedule=update_schedule(options),
        metrics=[*metrics(names, delayed=True), Metric("loss_encoder", shown=False)],
        updates_per_phase=LARGEST_CHUNK if assesses else None,
        policy_period=math.gcd(options.policy_delay, options.target_update_every),
        device_state={name: np.float32(0) for name in ("value_min", "value_max")}
        | {"target_min": np.float32(np.inf), "target_max": np.float32(-np.inf)},
        host_state={"best_return": None, "worst_return": None, "assessed": 0, "assesses_more": False}
        if assesses
        else {},
        after_phase=[begin_assessment] if assesses else [],
        after_episode=[assess_policy] if assesses else [],
        after_from_export=[assess_exported_policy] if assesses else [],
    )


def act(observation: Any, encoder: keras.Model, pi: keras.Model) -> Any:
    """π(s, zs)."""
    return pi([observation, encoder(observation)])


def action_values(spec: Spec, critics: Sequence[str], networks: Mapping[str, keras.Model]) -> dict[str, keras.Model]:
    """The critics from observations and actions, with the embeddings that they are trained with."""
    observation = observation_inputs(spec)
    action = action_input(spec)
    zs = networks["state_encoder_fixed"](observation)
    zsa = networks["action_encoder_fixed"]([zs, action])
    inputs = [observation, action, zsa, zs]
    return {name: keras.Model([observation, action], networks[name](inputs), name=name) for name in critics}


def assess_policy(agent: "TD7", episode: Any, updates: int) -> None:
    """Update the worst return of the policy; after the last episode keep the policy if it is the best, and train.

    The assessment ends early if a return is smaller than the best policy's worst one. Episodes that an earlier policy
    or random actions began do not count, nor do those that end after the assessment.
    """
    if updates != agent.updates or not agent.defers_updates:
        return
    state = agent.host_state
    returns = [episode.episode_return] if state["assessed"] == 0 else [episode.episode_return, state["worst_return"]]
    state["worst_return"] = worst = min(returns)
    state["assessed"] += 1
    is_worse = state["best_return"] is not None and worst < state["best_return"]
    if not is_worse and state["assessed"] < (agent.assessed_episodes if state["assesses_more"] else 1):
        return
    if not is_worse:
        state["best_return"] = worst
        agent.copy_weights("pi_best", "state_encoder_best")
    agent.defers_updates = False


def begin_assessment(agent: "TD7", logs: Mapping[str, float]) -> None:
    """After an update phase, defer updates until the new policy has been assessed.

    Until the first assessment has ended, the newest policy is the best one.
    """
    agent.defers_updates = True
    state = agent.host_state
    state |= {"worst_return": None, "assessed": 0}
    if state["best_return"] is None:
        agent.copy_weights("pi_best", "state_encoder_best")
    if agent.updates >= agent.assess_more_after and not state["assesses_more"]:
        state["assesses_more"] = True
        if state["best_return"] is not None:
            state["best_return"] -= (1 - agent.best_return_factor) * abs(state["best_return"])


def assess_exported_policy(agent: "TD7") -> None:
    """Defer updates until an exported policy has been assessed, which later policies must then surpass."""
    agent.defers_updates = True


class TD7(Agent):
    """TD7: a TD3 whose policy and critics also receive learned embeddings of observations and actions.

    A subclass may override `declare`, which returns what the agent is made of, `update`, or one of the methods that
    `update` calls: `target_action`, `target_value`, `critic_loss`, `update_policy` and `policy_loss`.

    Args:
        env: an environment or vector environment whose spaces the agent is for, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.TD7.__init__)` describes them.

    Raises:
        ValueError: an argument is out of its range or has no effect, or the spaces are not supported.

    Example:
        ```python
        env = gymnasium.make("HalfCheetah-v5")
        agent = tfdpg.TD7(env, seed=0)
        agent.fit(env, epochs=75, validation_env=gymnasium.make("HalfCheetah-v5"))
        agent.export("exported_models/td7-halfcheetah")
        ```
    """

    @takes_options(TD7Options)
    def __init__(self, env: Any, options: TD7Options):
        """See the class.

        Args:
            env: an environment or vector environment with the spaces of the agent, its id, or a `Spec`.
            options: keyword arguments.
        """
        super().__init__(env, options, self.declare)
        self.encode_state, self.encode_action = (self.networks[name] for name in ENCODERS)
        self.fixed_zs, self.fixed_zsa = (self.copies[f"{name}_fixed"] for name in ENCODERS)
        self.target_zs = self.copies.get("state_encoder_fixed_target", self.fixed_zs)
        self.target_zsa = self.copies.get("action_encoder_fixed_target", self.fixed_zsa)
        self.pi = self.networks["pi"]
        self.pi_with_preactivation = with_preactivation(self.pi)
        self.pi_target = self.targets.get("pi", self.pi)
        self.critics = Critics.of("q", self.networks)
        self.target_critics = Critics.of("q", self.networks | self.targets)
        self.td_loss, self.td_error = td_losses(options.replay)
        self.policy_delay = options.policy_delay
        self.assessed_episodes = options.assessed_episodes
        self.assess_more_after = options.assess_more_after
        self.best_return_factor = options.best_return_factor
        per_dimension("target_noise", options.values()["target_noise"], self.spec)  # raises an error now, not later

    declare = staticmethod(declare)

    def update(self, batch: TransitionBatch, counter: Any) -> dict[str, tf.Tensor]:
        """Update the encoders, then the critics towards clipped targets; with a delay, the policy; then the copies."""
        loss_encoder = self.update_encoders(batch)
        zs = batch.ask(self.fixed_zs)
        zs_t = batch.ask_next(self.target_zs)
        action_t = self.target_action(batch, zs_t, counter)
        inputs = batch.action, self.fixed_zsa([zs, batch.action]), zs
        inputs_t = action_t, self.target_zsa([zs_t, action_t]), zs_t
        with self.minimize(*self.critics.names) as step:
            values, values_t = batch.ask_both(self.critics, inputs, self.target_critics, inputs_t)
            target = self.target_value(batch, values_t)
            losses = self.critic_loss(batch, values, target)
            step(batch.mean(losses))
        is_due = counter % self.policy_delay == 0
        loss_pi = run_if(is_due, lambda: self.update_policy(batch, zs, counter), self.batch_elements)
        self.update_copies(counter)
        self.update_value_range(counter, target)
        return {
            "loss_q": tf.reduce_sum(losses, axis=0),
            "loss_pi": loss_pi,
            "loss_encoder": loss_encoder,
            **self.critics.by_name(values),
            "td_error": self.td_error(tf.abs(target - values)),
        }

    def target_value(self, batch: TransitionBatch, values_t: tf.Tensor) -> tf.Tensor:
        """Y = r + γ (1 − d) clip(min_i Q_i,targ(s', a'), V_min, V_max), `[batch]`, for values `[n, batch]`."""
        return td_target(batch.reward, batch.discount, self.clip_value(smallest(values_t)))

    def critic_loss(self, batch: TransitionBatch, values: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The Huber loss of y − Q_i(s, a) with `replay="lap"`, or its square, `[n, batch]`, for y `[batch]`."""
        return per_critic(lambda value: self.td_loss(value, target), values)

    def update_encoders(self, batch: TransitionBatch) -> tf.Tensor:
        """Move zsa = g(f(s), a) towards f(s'), through which no gradient flows; return the loss of each element."""
        zs_t = batch.ask_next(self.encode_state)
        with self.minimize("encoder") as step:
            zsa = self.encode_action([batch.ask(self.encode_state, training=True), batch.action], training=True)
            loss = tf.reduce_mean(tf.square(zsa - zs_t), axis=-1)
            step(batch.average(loss))
        return loss

    def target_action(self, batch: TransitionBatch, zs_t: tf.Tensor, counter: Any) -> tf.Tensor:
        """The next action, a' = clip(π_targ(s', zs') + clip(ε, −c, c), a_low, a_high), `[batch, act_dim]`."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        stddev = per_dimension("target_noise", self.options.target_noise, self.spec) * self.spec.action_scale
        noise = stateless_normal((self.batch_elements, self.spec.act_dim), key) * stddev
        clip = self.options.noise_clip * self.spec.action_scale
        return smooth_action(batch.ask_next(self.pi_target, zs_t), noise, clip, self.spec.low, self.spec.high)

    def clip_value(self, value_t: tf.Tensor) -> tf.Tensor:
        """Clip target values `[batch]` to the range of targets at the last update of the copies.

        Without target networks, values change with each update, and are not clipped: the range would hold them back.
        """
        if not self.targets:
            return value_t
        return tf.clip_by_value(value_t, self.device_state["value_min"], self.device_state["value_max"])

    def policy_loss(self, batch: TransitionBatch, zs: tf.Tensor) -> tf.Tensor:
        """−mean_i Q_i(s, π(s, zs)), with behaviour cloning, `[batch]`, for the fixed embeddings zs of s.

        The preactivation x of π = tanh(x) may be penalised, as in MR.Q (Fujimoto et al. 2025), by w · mean x².
        """
        preactivation, action = batch.ask(self.pi_with_preactivation, zs, training=True)
        zsa = self.fixed_zsa([zs, action])
        values = tf.transpose(batch.ask(self.critics, action, zsa, zs))
        scaled, data = ((a - self.spec.center) / self.spec.action_scale for a in (action, batch.action))
        loss = td7_policy_loss(values, scaled, data, self.options.bc_weight, batch.average)
        return loss + self.options.preactivation_weight * tf.reduce_mean(tf.square(preactivation), axis=-1)

    def update_policy(self, batch: TransitionBatch, zs: tf.Tensor, counter: Any) -> tf.Tensor:
        """Take one step of the policy's optimizer; return the loss of each element, `[batch]`."""
        with self.minimize("pi") as step:
            penalty = smoothness_penalty(self, batch, counter, lambda at: act(at.observation, self.fixed_zs, self.pi))
            loss_pi = self.policy_loss(batch, zs) + penalty
            step(batch.average(loss_pi))
        return loss_pi

    def update_value_range(self, counter: Any, target: tf.Tensor) -> None:
        """Record the smallest and the largest target so far; with the copies, they become V_min and V_max."""
        state = self.device_state
        is_due = counter % self.options.target_update_every == 0
        extremes = {
            "min": tf.minimum(state["target_min"], tf.reduce_min(target)),
            "max": tf.maximum(state["target_max"], tf.reduce_max(target)),
        }
        for name, extreme in extremes.items():
            state[f"target_{name}"].assign(extreme)
            state[f"value_{name}"].assign(tf.where(is_due, extreme, state[f"value_{name}"]))
