"""Distributed distributional deterministic policy gradients (D4PG).

Source: Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", algorithm 1. For actors
in parallel, see `tfdpg.distributed`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import keras
import tensorflow as tf

from tfdpg import export
from tfdpg.acting import RecurrentSpec
from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import actor_critic
from tfdpg.agents.options import D4PGOptions
from tfdpg.agents.support_range import choose_support, follow_returns, warn_of_edges
from tfdpg.components import Declaration, clipped_policy_loss, polyak, smoothness_penalty
from tfdpg.losses import td_target
from tfdpg.networks import Batch, Categorical, Critics, Head, HeadOptions, Mixture, Value, head_of, per_critic
from tfdpg.options import takes_options
from tfdpg.spec import Spec

DEFAULT_SUPPORT = -149.5, 150.5
"""The support until returns are known, close to that of the DeepMind Control Suite report."""


def declare(spec: Spec, options: D4PGOptions) -> Declaration:
    """The components of D4PG: a policy, distributional critics, which export `z`, and their target networks."""
    head = critic_head(options)
    beta = 1.0 if options.replay == "prioritized" and options.beta is None else options.beta
    declaration = actor_critic(
        spec,
        options,
        polyak(options.polyak, every=options.target_update_every),
        head=head,
        sampling={"beta": beta, "normalize_weights": options.normalize_weights},
    )
    categorical = options.critic == "categorical"
    is_given = options.v_min is not None or (options.q1 is not None and options.v_range is None)
    follows = options.v_range == "running"
    return dataclasses.replace(
        declaration,
        signatures=functools.partial(signatures, spec, declaration.signatures, declaration.behaviour.recurrent),
        host_state={"support_period": 0, "edges_warned": None} if categorical else {},
        before_phase=[follow_returns if follows else choose_support] if categorical and not is_given else [],
        after_phase=[warn_of_edges] if categorical and not follows else [],
    )


def signatures(
    spec: Spec,
    of_critics: Callable[..., Mapping[str, export.Signature]],
    recurrent_spec: RecurrentSpec | None,
    networks: Mapping[str, keras.Model],
    policy: keras.Model,
) -> dict[str, export.Signature]:
    """The signatures of every agent, and `z`, the distribution of the return."""
    q1 = networks["q1"]
    z = export.return_signature(spec, q1, cast(Head, head_of(q1)), recurrent_spec)
    return {**of_critics(networks, policy), "z": z}


def critic_head(options: D4PGOptions) -> HeadOptions:
    """Return the kind and the options of the critics' last layer."""
    match options.critic:
        case "mixture":
            names = ("components", "target_samples", "min_stddev")
            return HeadOptions(Mixture, {name: getattr(options, name) for name in names})
        case "categorical":
            v_min, v_max = DEFAULT_SUPPORT if options.v_min is None else (options.v_min, options.v_max)
            return HeadOptions(Categorical, {"v_min": v_min, "v_max": v_max, "atoms": options.atoms})
    return HeadOptions(Value)


class D4PG(Agent):
    """D4PG: a critic that learns the distribution of N-step returns, and a policy that maximises its mean.

    A subclass may override `declare`, which returns what the agent is made of, `update`, or one of the methods that
    `update` calls: `next_output`, `target_value`, `critic_loss` and `policy_loss`.

    Args:
        env: an environment or vector environment whose spaces the agent is for, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.D4PG.__init__)` describes them.

    Raises:
        ValueError: an argument is out of its range or has no effect, the spaces are not supported, or a custom network
            has a wrong shape.

    Example:
        ```python
        agent = tfdpg.D4PG("dm_control/walker-walk-v0", v_min=0, v_max=100, seed=0)
        agent.fit("dm_control/walker-walk-v0", epochs=75, validation_env="dm_control/walker-walk-v0")
        agent.export("policies/d4pg-walker")
        ```
    """

    @takes_options(D4PGOptions)
    def __init__(self, env: Any, options: D4PGOptions):
        """See the class.

        Args:
            env: an environment or vector environment with the spaces of the agent, its id, or a `Spec`.
            options: keyword arguments.
        """
        super().__init__(env, options, self.declare)
        self.pi = self.networks["pi"]
        self.pi_target = self.targets.get("pi", self.pi)
        self.q1 = self.networks["q1"]
        self.critics = Critics.of("q", self.networks)
        self.target_critics = Critics.of("q", self.networks | self.targets)
        self.head = cast(Head, head_of(self.q1))

    declare = staticmethod(declare)

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards r + γᵐ (1 − d) Z_targ(s', π_targ(s')), the policy up its mean, the targets after them."""
        action_t = batch.ask_next(self.pi_target)
        with self.minimize(*self.critics.names) as step:
            outputs, outputs_t = batch.ask_both(self.critics, batch.action, self.target_critics, action_t)
            output_t = self.next_output(outputs_t)
            target = self.target_value(batch, output_t, counter)
            losses = self.critic_loss(batch, outputs, target)
            step(batch.mean(losses))
        with self.minimize("pi") as step:
            loss_pi = self.policy_loss(batch) + smoothness_penalty(self, batch, counter)
            step(batch.average(loss_pi))
        self.update_copies(counter)
        values = per_critic(self.head.mean, outputs)
        mean = td_target(batch.reward, batch.discount, self.head.mean(output_t))
        return {
            "loss_q": tf.reduce_sum(losses, axis=0),
            "loss_pi": loss_pi,
            **self.critics.by_name(values),
            "td_error": tf.reduce_mean(tf.abs(mean - values), axis=0),
            **self.head.measure(target),
        }

    def next_output(self, outputs_t: tf.Tensor) -> tf.Tensor:
        """Of the target critics' outputs `[n, batch, k]`, the one with the smallest mean, `[batch, k]`."""
        return functools.reduce(self.smaller, tf.unstack(outputs_t))

    def target_value(self, batch: Batch, output_t: tf.Tensor, counter: Any) -> tf.Tensor:
        """The target r + γᵐ (1 − d) Z_targ(s', π_targ(s')), in the form of `Head.target`.

        Args:
            batch: the minibatch.
            output_t: a critic's output for the next observation and action, `[batch, k]`.
            counter: the number of the update, which determines the samples of a mixture.
        """
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        return self.head.target(batch.reward, batch.discount, output_t, key)

    def critic_loss(self, batch: Batch, outputs: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The cross-entropy of each critic, `[n, batch]`.

        Args:
            batch: the minibatch.
            outputs: the critics' outputs for the stored actions, `[n, batch, k]`.
            target: the result of `target_value`.
        """
        return per_critic(lambda output: self.head.td_loss(output, target), outputs)

    def smaller(self, output1: tf.Tensor, output2: tf.Tensor) -> tf.Tensor:
        """Of two critics' outputs the one with the smaller mean, for each element."""
        is_first = self.head.mean(output1) <= self.head.mean(output2)
        return tf.where(tf.reshape(is_first, [-1] + [1] * (output1.shape.rank - 1)), output1, output2)

    def policy_loss(self, batch: Batch) -> tf.Tensor:
        """−E[Z(s, π(s))], `[batch]`, whose gradient by the action may be clipped."""

        def value(action: tf.Tensor) -> tf.Tensor:
            return self.head.mean(batch.ask(self.q1, action))

        action = batch.ask(self.pi, training=True)
        return clipped_policy_loss(value, action, self.options.clip_action_gradient, self.spec.action_scale)
