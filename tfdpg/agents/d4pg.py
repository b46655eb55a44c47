"""Distributed distributional deterministic policy gradients (D4PG).

Source: Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", algorithm 1. For actors
in parallel, see `tfdpg.distributed`.
"""

import functools
from typing import Any, cast, final

import tensorflow as tf

from tfdpg import export
from tfdpg.agents.agent import Agent
from tfdpg.agents.build import Parts, build
from tfdpg.agents.options import D4PGOptions
from tfdpg.losses import td_target
from tfdpg.networks import Batch, Categorical, Head, HeadOptions, Mixture, Value, head_of
from tfdpg.options import takes
from tfdpg.training.gradients import average_all, climb, descent, descents, where_due
from tfdpg.training.support import EdgeWatch, Support

METRICS = "loss_q", "loss_pi", "q1", "q2", "td_error"
UNKNOWN_RANGE = -149.5, 150.5
"""The support until returns have been seen; about the DeepMind Control Suite report's, but one that nobody gives."""


@final
class D4PG(Agent):
    """D4PG: a critic that learns the distribution of N-step returns, and a policy that climbs its mean.

    Args:
        env: the environment or vector environment to be trained on, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.D4PG.__init__)` says what they are.

    Raises:
        ValueError: an argument out of its range or without effect, spaces that are not supported, or networks of
            wrong shapes.

    Example:
        ```python
        agent = tfdpg.D4PG("dm_control/walker-walk-v0", v_min=0, v_max=100, seed=0)
        agent.fit("dm_control/walker-walk-v0", epochs=75, validation_env="dm_control/walker-walk-v0")
        agent.export("policies/d4pg-walker")
        ```
    """

    @takes(D4PGOptions)
    def __init__(self, env: Any, options: D4PGOptions):
        """See the class.

        Args:
            env: the environment or vector environment to be trained on, its id, or a `Spec`.
            options: keyword arguments.
        """
        self.critics = ("q1", "q2")[: options.critics]
        parts = d4pg_parts(env, options, self.critics)
        super().__init__(env, options, parts)
        self.pi, self.q1, self.q2 = self.networks["pi"], self.networks["q1"], self.networks.get("q2")
        self.twins = {name: self.networks[name] for name in self.critics}
        self.bootstrap = self.networks | self.targets
        self.head = cast(Head, head_of(self.q1))
        self.polyak, self.target_update_every = options.polyak, options.target_update_every
        self.clip_action_gradient = options.clip_action_gradient

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards r + γᵐ (1 − d) Z_targ(s', π_targ(s')), the policy up its mean, the targets after them."""
        action_t, key = batch.ask_next(self.bootstrap["pi"]), tf.stack([tf.constant(self.seed, tf.int64), counter])
        with descents(self.twins, self.optimizers) as down:
            asked = ((q, self.bootstrap[name]) for name, q in self.twins.items())
            outputs = [batch.ask_both(q, batch.action, q_targ, action_t) for q, q_targ in asked]
            output_t = functools.reduce(self.smaller, [output_t for _, output_t in outputs])
            target = self.head.target(batch.reward, batch.discount, output_t, key)
            losses = [self.head.td_loss(output, target) for output, _ in outputs]
            down([batch.mean(loss) for loss in losses])
        values = [self.head.mean(output) for output, _ in outputs]
        with descent(self.pi, self.optimizers["pi"]) as down:
            loss_pi = self.policy_loss(batch, batch.ask(self.pi, training=True))
            down(batch.average(loss_pi))
        where_due(counter % self.target_update_every == 0, self.update_targets)
        mean = td_target(batch.reward, batch.discount, self.head.mean(output_t))
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[-1],
            "td_error": tf.add_n([tf.abs(mean - q) for q in values]) / len(values),
            **self.head.measure(target),
        }

    def smaller(self, output1: tf.Tensor, output2: tf.Tensor) -> tf.Tensor:
        """Of two critics' outputs the one with the smaller mean, for each element."""
        is_first = self.head.mean(output1) <= self.head.mean(output2)
        return tf.where(tf.reshape(is_first, [-1] + [1] * (output1.shape.rank - 1)), output1, output2)

    def policy_loss(self, batch: Batch, action: tf.Tensor) -> tf.Tensor:
        """−E[Z(s, π(s))], `[batch]`, whose gradient by the action may be clipped."""

        def value(action: tf.Tensor) -> tf.Tensor:
            return self.head.mean(batch.ask(self.q1, action))

        return climb(value, action, self.clip_action_gradient, self.spec.half_range)

    def update_targets(self) -> None:
        """Copies, or averages, all target networks."""
        average_all(self.targets, self.networks, self.polyak)


def d4pg_parts(env: Any, options: D4PGOptions, critics: tuple[str, ...]) -> Parts:
    """What D4PG is made of: a distributional critic, which exports `z`, and whose support is found or watched."""
    head, beta = critic_head(options), options.beta
    sampling = {"beta": 1.0 if options.replay == "prioritized" and beta is None else beta}
    sampling |= {"normalize_weights": options.normalize_weights}
    metrics = *METRICS, *head.kind.metrics_of_update
    parts = build(env, options, critics, metrics, torso=options.torso, head=head, sampling=sampling)
    networks, recall = parts.networks.networks, parts.networks.recall
    z = export.return_signature(parts.spec, networks["q1"], cast(Head, head_of(networks["q1"])), recall)
    categorical = options.critic == "categorical"
    is_given = options.v_min is not None or (options.q1 is not None and options.v_range is None)
    runs = options.v_range == "running"
    heads = [head_of(network) for network in (*networks.values(), *parts.targets.values())]
    return parts.having(
        signatures=parts.signatures | {"z": z},
        preparations=[Support([head for head in heads if isinstance(head, Categorical)], runs)]
        if categorical and not is_given
        else (),
        watchers=[EdgeWatch()] if categorical and not runs else (),
    )


def critic_head(options: D4PGOptions) -> HeadOptions:
    """What makes the last layer of each critic."""
    match options.critic:
        case "mixture":
            names = ("components", "target_samples", "min_stddev")
            return HeadOptions(Mixture, {name: getattr(options, name) for name in names})
        case "categorical":
            v_min, v_max = UNKNOWN_RANGE if options.v_min is None else (options.v_min, options.v_max)
            return HeadOptions(Categorical, {"v_min": v_min, "v_max": v_max, "atoms": options.atoms})
    return HeadOptions(Value)
