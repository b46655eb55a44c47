"""Policies for acting: in NumPy, or as compiled calls."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import NumpyPolicy
from tfdpg.networks.tensors import unpack_observation
from tfdpg.spec import Packed, Spec


class PolicyInference:
    """The outputs of a policy: in NumPy where NumPy can compute them, otherwise by a compiled call.

    Args:
        spec: the spaces.
        pi: the policy, observation → outputs `[batch, n]`.
        numpy_policy: its forward pass in NumPy, which takes copies of the weights; None if NumPy cannot compute it.
        device: where the compiled call runs.
        recurrent_width: the width of the recurrent inputs (see `tfdpg.acting.RecurrentSpec`); 0 without any.

    Attributes:
        pi: the policy.
    """

    def __init__(
        self,
        spec: Spec,
        pi: keras.Model,
        numpy_policy: NumpyPolicy | None,
        device: str | None = None,
        recurrent_width: int = 0,
    ):
        self.pi = pi
        self._numpy_policy = numpy_policy
        self._compiled = CompiledActor(spec, pi, device, recurrent_width)
        self.refresh()

    def __call__(self, packed: Packed) -> np.ndarray:
        """Outputs `[num_envs, n]`, with the weights that `load` or `refresh` took last."""
        return self._compiled(packed) if self._numpy_policy is None else self._numpy_policy(packed)

    def predict(self, packed: Packed) -> np.ndarray:
        """Outputs `[batch, n]`, with the policy's present weights."""
        return self._compiled(packed)

    @property
    def weights_from(self) -> keras.Model | None:
        """The model whose weights `load` takes; None if acting needs no copies of weights."""
        return None if self._numpy_policy is None else self.pi

    def load(self, weights: np.ndarray) -> None:
        """Take the weights of `weights_from`, flat (see `flat_weights`)."""
        if self._numpy_policy is not None:
            self._numpy_policy.load(weights)

    def refresh(self) -> None:
        """Take the policy's present weights."""
        if self._numpy_policy is not None:
            self.load(flat_weights(self.pi).numpy())

    def snapshot(self) -> Callable[[Packed], np.ndarray]:
        """The policy with its present weights, which later calls of `load` do not change if it acts in NumPy."""
        return self.numpy_policy() or self._compiled

    def numpy_policy(self) -> NumpyPolicy | None:
        """The forward pass in NumPy with the present weights; None if NumPy cannot compute the policy."""
        if self._numpy_policy is None:
            return None
        policy = copy.copy(self._numpy_policy)
        policy.load(flat_weights(self.pi).numpy())
        return policy


class CompiledActor:
    """A policy as one compiled call from packed observations to outputs, for any number of observations.

    A recurrent policy takes the recurrent inputs as one more matrix behind the observations,
    `[num_envs, recurrent_width]`. A pickled or deep copy has the present weights, and is compiled again.

    Args:
        spec: the spaces.
        pi: the policy, observation → outputs `[batch, n]`.
        device: where the call runs; None lets TensorFlow choose.
        recurrent_width: the width of the recurrent inputs; 0 without any.
    """

    def __init__(self, spec: Spec, pi: keras.Model, device: str | None = None, recurrent_width: int = 0):
        self._spec = spec
        self._pi = pi
        self._device = device
        self._recurrent_width = recurrent_width

    @functools.cached_property
    def _compiled(self) -> Any:
        spec = self._spec
        pi = self._pi
        width = self._recurrent_width
        matrices = [*zip(spec.groups, spec.widths, strict=True), *([("float32", width)] if width else [])]
        signature = tuple(tf.TensorSpec([None, width], group) for group, width in matrices)

        def act(packed: tuple[tf.Tensor, ...]) -> tf.Tensor:
            observation = unpack_observation(spec, packed)
            return pi((observation, packed[-1]) if width else observation)

        return tf.function(act, input_signature=[signature], autograph=False).get_concrete_function()

    def __call__(self, packed: Packed) -> np.ndarray:
        """The outputs, `[num_envs, n]`."""
        with tf.device(self._device):
            return self._compiled(tuple(map(tf.constant, packed))).numpy()

    def __reduce__(self) -> Any:
        structure = self._pi.to_json()
        options = {"spec": self._spec, "device": self._device, "recurrent_width": self._recurrent_width}
        return _rebuilt, (structure, custom_classes(structure), self._pi.get_weights(), options)


def _rebuilt(structure: str, classes: Mapping[str, Any], weights: Sequence[np.ndarray], options: Any) -> CompiledActor:
    """Undo `CompiledActor.__reduce__`."""
    with keras.saving.custom_object_scope(classes):
        pi: Any = keras.models.model_from_json(structure)
    pi.set_weights(weights)
    return CompiledActor(pi=pi, **options)


def custom_classes(structure: str) -> dict[str, Any]:
    """Return the registered objects of users in a model, by name; another process may not have registered them.

    Args:
        structure: the result of `keras.Model.to_json`.
    """
    return {
        name: kind
        for name, kind in keras.saving.get_custom_objects().items()
        if f'"{name}"' in structure and not name.startswith("tfdpg>")
    }


def flat_weights(network: keras.Model) -> tf.Tensor:
    """Return all weights of a network, flattened and concatenated in Keras' order, `[n]`."""
    return tf.concat([tf.reshape(weight.value, [-1]) for weight in network.weights], axis=0)
