"""Off-policy returns of trajectory windows."""

from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import TensorLike

from tfdpg.losses.td import same_shape


def retrace(q_tm1: TensorLike, v_t: TensorLike, r_t: TensorLike, discount_t: TensorLike, c_t: TensorLike) -> tf.Tensor:
    """Return Retrace targets: G_t = r_t + discount_t (v_t + c_t (G_{t+1} − q_{t+1})).

    At the end of the window, G_t = r_t + discount_t v_t.

    Args:
        q_tm1: Q(s_t, a_t), `[..., T]`.
        v_t: V(s_{t+1}), `[..., T]`; at the end of a truncated episode, the value of its final observation.
        r_t: rewards, `[..., T]`.
        discount_t: gamma (1 − terminated), `[..., T]`.
        c_t: trace of the action of step t + 1, λ min(1, ρ_{t+1}), `[..., T]`; 0 if step t + 1 is not in the same
            episode. With traces of 1 inside episodes, the targets are ACER's Q^opc.

    Returns:
        The targets, `[..., T]`, without gradient.

    Raises:
        ValueError: The shapes differ.

    Source: Munos et al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning", equation 3, as a recursion;
    Q^opc: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay", equation 21.
    """
    q, v, r, discount, c = same_shape(q_tm1=q_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, c_t=c_t)
    steps = q.shape[-1] or 0
    decay = discount * c * tf.one_hot(steps - 1, steps, on_value=0, off_value=1, dtype=c.dtype)
    targets = r + discount * v - decay * _shift(q, 1)
    # G_t = targets_t + decay_t G_{t+1}: each pass doubles the number of steps in the sum of a target
    step = 1
    while step < steps:
        targets += decay * _shift(targets, step)
        decay *= _shift(decay, step)
        step *= 2
    return tf.stop_gradient(targets)


def _shift(x: Any, steps: int) -> tf.Tensor:
    """Return x_{t + steps}, with 0 after the end."""
    return tf.concat([x[..., steps:], tf.zeros_like(x[..., :steps])], axis=-1)
