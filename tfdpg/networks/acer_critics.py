"""Critics of stochastic policies (ACER): Q(s, a), V(s) and Q of other actions, over trajectory windows."""

import math
from collections.abc import Mapping
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from tfdpg import losses
from tfdpg.networks.acer_policies import CategoricalPolicy, GaussianPolicy
from tfdpg.networks.tensors import CriticEstimate, WindowBatch, flat_rows, flat_values, over_steps
from tfdpg.streams import Purpose, stream

Networks = Mapping[str, keras.Model]


class ActionValues:
    """`q1(s)` returns the value of each action; V is their mean under the policy."""

    names = ("q1",)

    def __init__(self, policy: CategoricalPolicy):
        self._policy = policy

    def estimate(
        self, networks: Networks, batch: WindowBatch, statistics: tf.Tensor, key: tf.Tensor, training: bool
    ) -> CriticEstimate:
        """Compute values on windows; `q_other` has the values of all actions, `[batch, T, actions]`."""
        values = over_steps(networks["q1"], batch.observation, training=training)
        q = self._select_actions(values[:, :-1], batch.action)
        return CriticEstimate(q, tf.reduce_sum(statistics * values, axis=-1), None, values[:, :-1])

    def loss(self, estimate: CriticEstimate, target: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
        """Return ½ (Q^ret − Q)²."""
        return 0.5 * losses.td_loss(estimate.q, target)

    def v(self, networks: Networks, observation: Any, output: tf.Tensor) -> tf.Tensor:
        """Return Σ_a f(a) Q(s, a)."""
        return tf.reduce_sum(self._policy.statistics(output) * networks["q1"](observation), axis=-1)

    def q(self, networks: Networks, observation: Any, action: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Return Q(s, a); NaN for values that are not in the action space."""
        values = networks["q1"](observation)
        taken = tf.expand_dims(action, -1)
        return tf.where(self._policy.is_action(taken), self._select_actions(values, taken), math.nan)

    def _select_actions(self, values: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        taken = tf.one_hot(self._policy.events(action), values.shape[-1])
        return tf.reduce_sum(taken * values, axis=-1)


class SeparateCritic:
    """Separate networks `q1(s, a)` and `v(s)`; V learns from Q."""

    names = ("q1", "v")

    def __init__(self, policy: GaussianPolicy):
        self._policy = policy

    def estimate(
        self, networks: Networks, batch: WindowBatch, statistics: tf.Tensor, key: tf.Tensor, training: bool
    ) -> CriticEstimate:
        """Compute values on windows, with one other action sampled from the policy."""
        other = self._policy.sample(statistics[:, :-1], 1, key)
        q, q_other = self._action_values(networks, batch, tf.concat([batch.action[None], other], axis=0), training)
        return CriticEstimate(q, self._state_values(networks, batch, training), other[0], q_other)

    def loss(self, estimate: CriticEstimate, target: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
        """Return ½ (Q^ret − Q)² + ½ (V^target − V)², where V^target = min(1, ρ) (Q^ret − Q) + Q(s, a').

        The action a' is sampled from the policy. Equation 14 has V in place of Q(s, a'). That ties V to Q only if Q
        contains V, as in a dueling network; it does not here.
        """
        v_target = losses.acer_v_target(rho, target, estimate.q, estimate.q_other)
        return 0.5 * (losses.td_loss(estimate.q, target) + losses.td_loss(estimate.v[:, :-1], v_target))

    def v(self, networks: Networks, observation: Any, output: tf.Tensor) -> tf.Tensor:
        """Return V(s)."""
        return flat_values(networks["v"](observation))

    def q(self, networks: Networks, observation: Any, action: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Return Q(s, a)."""
        return flat_values(networks["q1"]([observation, action]))

    def _state_values(self, networks: Networks, batch: WindowBatch, training: bool) -> tf.Tensor:
        return over_steps(networks["v"], batch.observation, training=training, values=True)

    def _action_values(
        self, networks: Networks, batch: WindowBatch, actions: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        """Call `q1` for actions `[n, batch, T, act_dim]`; returns n tensors `[batch, T]`."""
        count = actions.shape[0]
        states = keras.tree.map_structure(lambda x: tf.repeat(x[None, :, :-1], count, axis=0), batch.observation)
        flat = keras.tree.map_structure(flat_rows, (states, actions))
        values = over_steps(networks["q1"], list(cast(tuple[Any, Any], flat)), training=training, values=True)
        return cast(list[tf.Tensor], tf.unstack(tf.reshape(values, actions.shape[:-1])))


class Dueling(SeparateCritic):
    """A stochastic dueling network: Q̃(s, a) = V(s) + A(s, a) − mean_i A(s, u_i), with u_i sampled from the policy.

    The network `q1` is A. Source: Wang et al. 2017, equation 13.

    Args:
        policy: the distribution that the u_i are sampled from.
        samples: number of u_i.
        seed: seed of the constant noise for the u_i in `q`, and so in exports.
    """

    def __init__(self, policy: GaussianPolicy, samples: int, seed: int):
        super().__init__(policy)
        self._samples = samples
        shape = samples, 1, policy.dimensions
        self._noise = (
            np.random.default_rng(stream(Purpose.DUELING, seed, samples)).standard_normal(shape).astype(np.float32)
        )

    def estimate(
        self, networks: Networks, batch: WindowBatch, statistics: tf.Tensor, key: tf.Tensor, training: bool
    ) -> CriticEstimate:
        """Compute values on windows, with one other action sampled from the policy in addition to the u_i."""
        drawn = self._policy.sample(statistics[:, :-1], 1 + self._samples, key)
        a, a_other, *others = self._action_values(
            networks, batch, tf.concat([batch.action[None], drawn], axis=0), training
        )
        v = self._state_values(networks, batch, training)
        base = v[:, :-1] - tf.add_n(others) / self._samples
        return CriticEstimate(base + a, v, drawn[0], base + a_other)

    def loss(self, estimate: CriticEstimate, target: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
        """Return ½ (Q^ret − Q̃)² + ½ (V^target − V)²."""
        v = estimate.v[:, :-1]
        v_target = losses.acer_v_target(rho, target, estimate.q, v)
        return 0.5 * (losses.td_loss(estimate.q, target) + losses.td_loss(v, v_target))

    def q(self, networks: Networks, observation: Any, action: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Return Q̃(s, a), with constant noise for the u_i."""
        drawn = self._policy.transformed(self._policy.statistics(output), self._noise)
        advantages = [flat_values(networks["q1"]([observation, a])) for a in (action, *tf.unstack(drawn))]
        return flat_values(networks["v"](observation)) + advantages[0] - tf.add_n(advantages[1:]) / self._samples


ACERCritic = ActionValues | SeparateCritic
"""Values of actions and states from an agent's networks. All critics have the same methods, and `names`, the names of
the networks that they use:

- `estimate` computes values on windows, given the networks by name, the statistics of the policy in all states of the
  windows, `[batch, T + 1, n]`, the key of the random numbers, int64 `[2]`, and whether networks are in training mode;
- `loss` returns the sum of half the squared errors of the learned values, `[batch, T]`, for targets Q^ret and
  importance weights of the actions taken, `[batch, T]` each;
- `v` and `q` return the values of states and of actions, `[batch]`, deterministically; `output` is the output of the
  policy network for these states.
"""
