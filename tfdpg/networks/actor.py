"""The policy in the hands of those who act."""

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
"""The names of heads in `tfdpg.acting.NumpyCritic`."""


class PolicyInference:
    """A policy's network for acting: in NumPy where there is a forward pass, else as a compiled call.

    Args:
        spec: the spaces.
        pi: the policy, observation → `[batch, n]`, actions or what they are chosen by.
        numpy_policy: its forward pass in NumPy, which takes copies of the weights; None for a network that has none.
        device: where the compiled call runs.
        recurrent_width: the width of the recurrent inputs (see `tfdpg.acting.RecurrentSpec`); 0 without any.
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
        """Outputs `[num_envs, n]`, with the weights last given to `load` or taken by `refresh`."""
        return self._compiled(packed) if self._numpy_policy is None else self._numpy_policy(packed)

    def predict(self, packed: Packed) -> np.ndarray:
        """Outputs `[batch, n]`, with the weights that the policy has now."""
        return self._compiled(packed)

    @property
    def weights_from(self) -> keras.Model | None:
        """The network whose weights `load` wants; None if it wants none."""
        return None if self._numpy_policy is None else self._pi

    def load(self, weights: np.ndarray) -> None:
        """Takes the weights of `weights_from`, flat (see `flat_weights`)."""
        if self._numpy_policy is not None:
            self._numpy_policy.load(weights)

    def refresh(self) -> None:
        """Takes the weights that the policy has now."""
        if self._numpy_policy is not None:
            self.load(flat_weights(self._pi).numpy())

    def snapshot(self) -> Callable[[Packed], np.ndarray]:
        """An actor with the weights of now, which later `load`s leave alone."""
        return self.numpy_policy() or self._compiled

    def numpy_policy(self) -> NumpyPolicy | None:
        """The forward pass in NumPy with the weights of now; None where there is none."""
        if self._numpy_policy is None:
            return None
        actor = copy.copy(self._numpy_policy)
        actor.load(flat_weights(self._pi).numpy())
        return actor


def compiled_actor(
    spec: Spec, pi: keras.Model, device: str | None = None, recurrent_width: int = 0
) -> Callable[[Packed], np.ndarray]:
    """From packed observations to a policy's outputs, one compiled call for any number of lanes, on `device`.

    With a memory, what is recalled comes as a matrix of its own at the end, `[num_envs, recurrent_width]`.
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
    """All weights of a network in Keras' order, flattened and concatenated, `[n]`."""
    return tf.concat([tf.reshape(weight.value, [-1]) for weight in network.weights], axis=0)


def numpy_critic(spec: Spec, actor: NumpyPolicy, critic: keras.Model) -> NumpyCritic | None:
    """The forward pass of a stock critic with the weights of now, beside that of its policy; None without a head."""
    head = head_of(critic)
    kind = next((name for kind, name in HEADS.items() if isinstance(head, kind)), None)
    if head is None or kind is None:
        return None
    forward_pass = NumpyCritic(spec, actor.torso, actor.normalizer, kind, head.bias.shape[0])
    forward_pass.load(flat_weights(critic).numpy())
    return forward_pass
