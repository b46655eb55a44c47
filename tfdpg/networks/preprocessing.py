"""Policies that receive the environment's observations and preprocess them; see `tfdpg.acting.preprocessing`."""

from typing import Any

import keras
import tensorflow as tf

from tfdpg.acting.preprocessing import Preprocessing
from tfdpg.networks.encoder import encoder
from tfdpg.networks.tensors import over_steps
from tfdpg.spec import Spec

PARTS = "encoder", "preprocess", "policy"
"""The parts of a policy that preprocesses."""


@keras.saving.register_keras_serializable("tfdpg")
class Preprocess(keras.layers.Layer):
    """Compute the features of a step, followed by the state for the next one; see `tfdpg.acting.preprocessing`.

    Args:
        holds: whether numbers may be missing. The weight `flagged`, `[n]`, then says which flags may be 1.
        frames: the number of observations in the features.
    """

    def __init__(self, holds: bool, frames: int, **kwargs: Any):
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.holds = holds
        self.frames = frames

    def build(self, *input_shapes: Any) -> None:
        """Create the weight."""
        if self.holds:
            shape = (input_shapes[0][-1],)
            self.flagged = self.add_weight(name="flagged", shape=shape, initializer="zeros", trainable=False)

    def call(self, x: Any, state: Any) -> Any:
        """Return the features and the new state, `[batch, width + s]`, of observations `[batch, n]`."""
        held = x[:, :0]
        frame = x
        if self.holds:
            is_finite = tf.abs(x) <= x.dtype.max  # LiteRT has no operation IsFinite
            held = tf.where(is_finite, x, state[:, : x.shape[1]])
            flags = tf.where(is_finite, tf.zeros_like(x), tf.ones_like(x) * tf.convert_to_tensor(self.flagged))
            frame = tf.concat([held, flags], axis=1)
        if self.frames == 1:
            return tf.concat([frame, held], axis=1)
        width = frame.shape[1]
        has_begun = state[:, -1:] > 0.5
        before = tf.where(has_begun, state[:, held.shape[1] : -1], tf.tile(frame, [1, self.frames - 1]))
        parts = [before, frame, *([held] if self.holds else []), before[:, width:], frame, tf.ones_like(state[:, -1:])]
        return tf.concat([part for part in parts if part.shape[1]], axis=1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().get_config() | {"holds": self.holds, "frames": self.frames}


@keras.saving.register_keras_serializable("tfdpg")
class Preprocessed(keras.Model):
    """A policy that receives the environment's observations and the state of their preprocessing.

    It has the interface of `tfdpg.networks.Recurrent`.

    Args:
        encoder: concatenates the parts of an observation.
        preprocess: computes the features, and the new state.
        policy: maps features to the outputs of the policy.
        width: the number of features.
        state_width: the number of columns of the state.
    """

    def __init__(
        self,
        encoder: keras.Model,
        preprocess: Preprocess,
        policy: keras.Model,
        width: int,
        state_width: int,
        **kwargs: Any,
    ):
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.encoder = encoder
        self.preprocess = preprocess
        self.policy = policy
        self.width = width
        self.state_width = state_width
        if not preprocess.built:
            preprocess.build(encoder.output_shape, (None, state_width))
            preprocess.built = True
        self.built = True

    @classmethod
    def of(cls, preprocessing: Preprocessing, policy: keras.Model) -> "Preprocessed":
        """Build the policy for the environment's observations from one for features."""
        raw: Spec = preprocessing.raw
        layer = Preprocess(raw.missing == "hold", preprocessing.frames, name="preprocess")
        state_width = preprocessing.initial_state(0).shape[1]
        return cls(encoder(raw), layer, policy, preprocessing.width, state_width, name="policy")

    def unroll(
        self, observation: Any, previous: Any, valid: Any, state: Any, training: bool = False
    ) -> tuple[Any, Any]:
        """Compute the features of sequences.

        Args:
            observation: `[batch, steps, ...]`.
            previous: not used; `Recurrent.unroll` receives previous actions and rewards.
            valid: mask of the valid steps, bool `[batch, steps]`; the others do not change the state.
            state: the state before the first step, `[batch, s]`.
            training: not used.

        Returns:
            The features, `[batch, steps, width]`, and the state after the last step.
        """
        x = over_steps(self.encoder, observation)

        def step(before: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[Any, Any]:
            outputs = self.preprocess(now[0], before[1])
            return outputs[:, : self.width], tf.where(now[1], outputs[:, self.width :], before[1])

        elements = tf.transpose(x, [1, 0, 2]), tf.transpose(valid)[..., None]
        first = tf.zeros([tf.shape(x)[0], self.width]), state
        features, states = tf.scan(step, elements, first)
        return tf.transpose(features, [1, 0, 2]), states[-1]

    def apply_torso(self, remembered: Any, action: Any = None, training: bool = False) -> Any:
        """Return the outputs of the policy for features `[n, width]`."""
        return self.policy(remembered)

    def call(self, inputs: tuple[Any, Any], training: bool = False) -> Any:
        """Run one step: from an observation and the state to the outputs and the new state."""
        observation, state = inputs
        outputs = self.preprocess(self.encoder(observation), state)
        return tf.concat([self.policy(outputs[:, : self.width]), outputs[:, self.width :]], axis=-1)

    def initial_state(self, like: Any) -> Any:
        """Return the state at the start of an episode, `[batch, s]`, with the batch size of `like`."""
        return tf.zeros([tf.shape(like)[0] if like.shape[0] is None else like.shape[0], self.state_width])

    def get_config(self) -> dict[str, Any]:
        """Return the parts of the policy, serialized."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in PARTS}
        return {"name": self.name, "width": self.width, "state_width": self.state_width} | parts

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Preprocessed":
        """Build a policy from the result of `get_config`."""
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in PARTS}
        return cls(**config | parts)
