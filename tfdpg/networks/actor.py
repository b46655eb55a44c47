"""Inference with policy networks: in NumPy where possible, otherwise with a compiled TensorFlow function."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import NumpyCritic, NumpyPolicy
from tfdpg.networks.distributions import Categorical, Mixture
from tfdpg.networks.heads import Value, head_of
from tfdpg.networks.tensors import unpack_observation
from tfdpg.spec import Packed, Spec

HEADS = {Value: "value", Categorical: "categorical", Mixture: "mixture"}
"""The names of the heads in `tfdpg.acting.NumpyCritic`."""


class PolicyInference:
    """A policy network for acting: in NumPy if the network is supported there, otherwise compiled.

    Args:
        spec: the spaces of the environment.
        pi: the policy, observation → outputs `[batch, n]`; see `tfdpg.acting.OutputTransform`.
        numpy_policy: forward pass in NumPy, which has its own copy of the weights; None if the network has none.
        device: device of the compiled function; None for TensorFlow's default.
        recurrent_width: width of the recurrent inputs (see `tfdpg.acting.RecurrentSpec`); 0 if not recurrent.
    """

    def __init__(
        self,
        spec: Spec,
        pi: keras.Model,
        numpy_policy: NumpyPolicy | None,
        device: str | None = None,
        recurrent_width: int = 0,
    ):
        self._pi = pi
        self._numpy_policy = numpy_policy
        self._compiled = compiled_actor(spec, pi, device, recurrent_width)
        self.refresh()

    def __call__(self, packed: Packed) -> np.ndarray:
        """Return outputs `[num_envs, n]`, in NumPy with the weights of the last `load` or `refresh`."""
        return self._compiled(packed) if self._numpy_policy is None else self._numpy_policy(packed)

    def predict(self, packed: Packed) -> np.ndarray:
        """Return outputs `[batch, n]` with the current weights of the network."""
        return self._compiled(packed)

    @property
    def weights_from(self) -> keras.Model | None:
        """The network whose weights to pass to `load`; None if `load` does nothing."""
        return None if self._numpy_policy is None else self._pi

    def load(self, weights: np.ndarray) -> None:
        """Set the weights for acting: those of `weights_from`, flattened by `flat_weights`."""
        if self._numpy_policy is not None:
            self._numpy_policy.load(weights)

    def refresh(self) -> None:
        """Load the current weights of the network."""
        if self._numpy_policy is not None:
            self.load(flat_weights(self._pi).numpy())

    def snapshot(self) -> Callable[[Packed], np.ndarray]:
        """Return a forward pass with the current weights, unaffected by a later `load` if it is in NumPy."""
        return self.numpy_policy() or self._compiled

    def numpy_policy(self) -> NumpyPolicy | None:
        """Return the forward pass in NumPy with the current weights; None if the network has none."""
        if self._numpy_policy is None:
            return None
        actor = copy.copy(self._numpy_policy)
        actor.load(flat_weights(self._pi).numpy())
        return actor


def compiled_actor(
    spec: Spec, pi: keras.Model, device: str | None = None, recurrent_width: int = 0
) -> Callable[[Packed], np.ndarray]:
    """Return a compiled function from packed observations to a policy's outputs, for any number of observations.

    A recurrent policy receives its recurrent inputs as the last matrix, `[num_envs, recurrent_width]`.
    """
    matrices = [
        *zip(spec.groups, spec.widths, strict=True),
        *([("float32", recurrent_width)] if recurrent_width else []),
    ]
    signature = tuple(tf.TensorSpec([None, width], group) for group, width in matrices)

    def act(packed: tuple[tf.Tensor, ...]) -> tf.Tensor:
        observation = unpack_observation(spec, packed)
        return pi((observation, packed[-1]) if recurrent_width else observation)

    @functools.cache
    def concrete() -> Any:
        return tf.function(act, input_signature=[signature], autograph=False).get_concrete_function()

    def call(packed: Packed) -> np.ndarray:
        with tf.device(device):
            return concrete()(tuple(map(tf.constant, packed))).numpy()

    return call


def flat_weights(network: keras.Model) -> tf.Tensor:
    """Return all weights of a network, flattened and concatenated in Keras' order, `[n]`."""
    return tf.concat([tf.reshape(weight.value, [-1]) for weight in network.weights], axis=0)


def numpy_critic(spec: Spec, actor: NumpyPolicy, critic: keras.Model) -> NumpyCritic | None:
    """Return the forward pass of a built-in critic in NumPy, with its current weights; None for unsupported heads.

    Args:
        spec: the spaces of the environment.
        actor: forward pass of the policy, whose torso and normaliser the critic shares.
        critic: the critic.
    """
    head = head_of(critic)
    kind = next((name for kind, name in HEADS.items() if isinstance(head, kind)), None)
    if head is None or kind is None:
        return None
    forward_pass = NumpyCritic(spec, actor.torso, actor.normalizer, kind, head.bias.shape[0])
    forward_pass.load(flat_weights(critic).numpy())
    return forward_pass
