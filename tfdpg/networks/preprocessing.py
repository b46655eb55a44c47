"""Policies that receive the environment's observations and preprocess them; see `tfdpg.acting.preprocessing`."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpg.acting.preprocessing import Preprocessing
from tfdpg.networks.encoder import encoder

PARTS = "encoder", "hold", "preprocess", "stack", "policy"
"""The parts of a policy that preprocesses."""


@keras.saving.register_keras_serializable("tfdpg")
class Hold(keras.layers.Layer):
    """Replace missing numbers `[batch, n]` by their last values, `[batch, n]`; see `tfdpg.acting.preprocessing.hold`.

    The weight `flagged`, `[n]`, says which flags may be 1.
    """

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)

    def build(self, input_shape: Any) -> None:
        """Create the weight, for numbers `[batch, n]`."""
        shape = (input_shape[-1],)
        self.flagged = self.add_weight(name="flagged", shape=shape, initializer="zeros", trainable=False)

    def call(self, x: Any, held: Any) -> Any:
        """Return the numbers, which are the new `held`, and the flags, `[batch, 2n]`."""
        is_finite = tf.abs(x) <= x.dtype.max  # LiteRT has no operation IsFinite
        flags = tf.where(is_finite, tf.zeros_like(x), tf.ones_like(x) * tf.convert_to_tensor(self.flagged))
        return tf.concat([tf.where(is_finite, x, held), flags], axis=1)


@keras.saving.register_keras_serializable("tfdpg")
class Stack(keras.layers.Layer):
    """Join the newest frame to those before it; see `tfdpg.acting.preprocessing.stack`.

    Args:
        frames: the number of frames.
    """

    def __init__(self, frames: int, **kwargs: Any):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.frames = frames

    def call(self, frame: Any, state: Any) -> Any:
        """Return the frames and the new state."""
        before = tf.where(state[:, -1:] > 0.5, state[:, :-1], tf.tile(frame, [1, self.frames - 1]))
        newest = [before[:, : -frame.shape[1]]] if self.frames > 2 else []
        return tf.concat([frame, before, frame, *newest, tf.ones_like(state[:, -1:])], axis=1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().get_config() | {"frames": self.frames}


@keras.saving.register_keras_serializable("tfdpg")
class Preprocessed(keras.Model):
    """A policy that receives the environment's observations and the state of their preprocessing.

    It has the interface of `tfdpg.networks.Recurrent`. Without a state, it receives observations alone.

    Args:
        encoder: concatenates the parts of an observation.
        hold: replaces missing numbers, and makes flags; None without missing numbers.
        preprocess: the user's model; None without one.
        stack: stacks frames; None without.
        policy: maps features to the outputs of the policy.
        width: the number of features.
        state_width: the number of columns of the state.
        names: the names of the parts of an observation in the order of the encoder; None for a single array.
    """

    def __init__(
        self,
        encoder: keras.Model,
        hold: Hold | None,
        preprocess: keras.Model | None,
        stack: Stack | None,
        policy: keras.Model,
        width: int,
        state_width: int,
        names: Sequence[str] | None,
        **kwargs: Any,
    ):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.encoder = encoder
        self.hold = hold
        self.preprocess = preprocess
        self.stack = stack
        self.policy = policy
        self.width = width
        self.state_width = state_width
        self.names = names
        if hold is not None and not hold.built:
            hold.build(encoder.output_shape)
            hold.built = True
        self.built = True

    @classmethod
    def of(cls, preprocessing: Preprocessing, model: keras.Model | None, policy: keras.Model) -> "Preprocessed":
        """Build the policy for the environment's observations from one for features.

        Args:
            preprocessing: describes the preprocessing.
            model: the user's preprocessing; None without one.
            policy: maps features to outputs.
        """
        raw = preprocessing.raw
        hold = Hold(name="hold") if raw.missing == "hold" else None
        stack = Stack(preprocessing.frames, name="stack") if preprocessing.frames > 1 else None
        state_width = preprocessing.initial_state(0).shape[1]
        names = [leaf.name for leaf in raw.leaves] if raw.is_dict else None
        return cls(encoder(raw), hold, model, stack, policy, preprocessing.width, state_width, names, name="policy")

    def features(self, observation: Any, state: Any) -> tuple[Any, list[Any]]:
        """Return the features, `[batch, width]`, and the parts of the new state of a step.

        Args:
            observation: the environment's observation, `[batch, ...]`.
            state: the state before the step, `[batch, s]`; None without a state.
        """
        parts = []
        flags = []
        if self.hold is not None:
            x = self.encoder(observation)
            count = x.shape[1]
            outputs = self.hold(x, state[:, :count])
            parts = [outputs[:, :count]]
            flags = [outputs[:, count:]]
            observation = self._in_parts(observation, parts[0])
            state = state[:, count:]
        frame = tf.concat([(self.preprocess or self.encoder)(observation), *flags], axis=1)
        if self.stack is None:
            return frame, parts
        outputs = self.stack(frame, state)
        return outputs[:, : self.width], [*parts, outputs[:, self.width :]]

    def _in_parts(self, observation: Any, values: Any) -> Any:
        """Return the numbers `[batch, n]` in the structure and the shapes of an observation."""
        parts = [observation] if self.names is None else [observation[name] for name in self.names]
        split = tf.split(values, [math.prod(part.shape[1:]) for part in parts], axis=1)
        shaped = [tf.reshape(each, [-1, *part.shape[1:]]) for each, part in zip(split, parts, strict=True)]
        return shaped[0] if self.names is None else dict(zip(self.names, shaped, strict=True))

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
        steps = keras.tree.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), observation)

        def step(before: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[Any, Any]:
            features, parts = self.features(now[0], before[1])
            return features, tf.where(now[1], tf.concat(parts, axis=1), before[1])

        inputs = steps, tf.expand_dims(tf.transpose(valid), -1)
        first = tf.zeros([tf.shape(valid)[0], self.width]), state
        features, states = tf.scan(step, inputs, first)
        return tf.transpose(features, [1, 0, 2]), states[-1]

    def apply_torso(self, remembered: Any, action: Any = None, training: bool = False) -> Any:
        """Return the outputs of the policy for features `[n, width]`."""
        return self.policy(remembered)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Run one step: from an observation and the state to the outputs and the new state."""
        observation, state = inputs if self.state_width else (inputs, None)
        features, parts = self.features(observation, state)
        return tf.concat([self.policy(features), *parts], axis=-1)

    def initial_state(self, like: Any) -> Any:
        """Return the state at the start of an episode, `[batch, s]`, with the batch size of `like`."""
        return tf.zeros([tf.shape(like)[0] if like.shape[0] is None else like.shape[0], self.state_width])

    def get_config(self) -> dict[str, Any]:
        """Return the parts of the policy, serialized."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in PARTS}
        numbers = {"width": self.width, "state_width": self.state_width, "names": self.names}
        return {"name": self.name} | numbers | parts

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Preprocessed":
        """Build a policy from the result of `get_config`."""
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in PARTS}
        return cls(**config | parts)
