"""Recurrent networks, with recurrent cells between the encoder and the torso."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.acting import RecurrentSpec, make_torso
from tfdpg.networks.encoder import Normalizer, observation_inputs
from tfdpg.networks.heads import Head
from tfdpg.networks.mlp import OutputTransform, action_input, actor_torso, critic_torso, features
from tfdpg.networks.rnn import RNNStack, cell_name, make_cells, output_width, part_names
from tfdpg.networks.tensors import over_steps
from tfdpg.spec import Spec

PARTS = "encoder", "previous_scaling", "rnn", "torso"
"""The parts of a recurrent network."""


@keras.saving.register_keras_serializable("tfdpg")
class Recurrent(keras.Model):
    """A recurrent network: encoder, recurrent cells, torso.

    Args:
        encoder: maps observations to features.
        previous_scaling: rescales the previous action and reward (see `RecurrentSpec`) to the magnitude of features.
        rnn: the recurrent cells, already built; their inputs are the features and the rescaled previous step.
        torso: maps the output of the cells, or this output and an action, to the output of the network.
    """

    def __init__(
        self,
        encoder: keras.Model,
        previous_scaling: keras.layers.Layer,
        rnn: RNNStack,
        torso: keras.Model,
        **kwargs: Any,
    ):
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.encoder = encoder
        self.previous_scaling = previous_scaling
        self.rnn = rnn
        self.torso = torso
        previous_scaling.build((None, None, len(previous_scaling.scale)))
        self.built = True

    def unroll(self, observation: Any, previous: Any, valid: Any, state: Any, training: bool = False) -> Any:
        """Run the encoder and the recurrent cells over sequences.

        Args:
            observation: `[batch, steps, ...]`.
            previous: previous actions and rewards, if the network receives them, `[batch, steps, n]`.
            valid: mask of the valid steps, bool `[batch, steps]`; the others do not change the state.
            state: recurrent state before the first step, `[batch, state_width]`.
            training: as for any Keras layer.

        Returns:
            The outputs of the cells, `[batch, steps, units]`, and the state after the last step.
        """
        parts = [tf.cast(over_steps(self.encoder, observation, training=training), tf.float32)]
        if len(self.previous_scaling.scale):  # LiteRT does not run a concatenation with a part that has no columns
            parts.append(self.previous_scaling(previous))
        return self.rnn(tf.concat(parts, axis=-1), state, valid, training=training)

    def apply_torso(self, remembered: Any, action: Any = None, training: bool = False) -> Any:
        """Return the output `[n, ...]` for outputs of the cells, `[n, units]`, and an action."""
        return self.torso(remembered if action is None else [remembered, action], training=training)

    def call(self, inputs: tuple[Any, Any], training: bool = False) -> Any:
        """Run one step: from an observation and recurrent inputs (see `RecurrentSpec`) to the output and new state."""
        observation, recurrent_inputs = inputs
        rows = keras.tree.map_structure(lambda x: x[:, None], observation)
        previous = recurrent_inputs[:, None, : len(self.previous_scaling.scale)]
        state = recurrent_inputs[:, len(self.previous_scaling.scale) :]
        remembered, state = self.unroll(rows, previous, tf.ones_like(recurrent_inputs[:, :1], tf.bool), state, training)
        return tf.concat([self.apply_torso(remembered[:, 0], None, training), state], axis=-1)

    def initial_state(self, like: Any) -> Any:
        """Return the state at the start of an episode, `[batch, state_width]`, with the batch size of `like`."""
        return tf.zeros([tf.shape(like)[0] if like.shape[0] is None else like.shape[0], self.rnn.state_width])

    def get_config(self) -> dict[str, Any]:
        """Return the parts of the network, serialized."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in PARTS}
        return {"name": self.name} | parts

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Recurrent":
        """Build a network from the result of `get_config`."""
        return cls(**config | {name: keras.saving.deserialize_keras_object(config[name]) for name in PARTS})


class RNNSpec(NamedTuple):
    """The recurrent cells of an agent's networks, and the recurrent inputs of its policy.

    Attributes:
        recurrent: "lstm", "gru", "rnn", or a Keras RNN cell.
        units: number of units of each layer of named cells, or of the only layer.
        recurrent_spec: the recurrent inputs.
    """

    recurrent: Any
    units: int | Sequence[int]
    recurrent_spec: RecurrentSpec

    @classmethod
    def of(cls, spec: Spec, recurrent: Any, units: Any, remembers: Sequence[str], stored: bool) -> "RNNSpec":
        """Build the specification from the agents' options.

        Raises:
            ValueError: `recurrent` is not a supported cell.
        """
        parts = part_names(make_cells(recurrent, units, 0))
        return cls(recurrent, units, RecurrentSpec(spec, "action" in remembers, "reward" in remembers, parts, stored))

    @property
    def cell_kinds(self) -> tuple[tuple[str | None, int], ...]:
        """The name and the units of each cell; the name is None if NumPy does not support the cell."""
        return tuple((cell_name(cell), output_width(cell)) for cell in make_cells(self.recurrent, self.units, 0))


def recurrent_actor(
    rnn_spec: RNNSpec,
    spec: Spec,
    *,
    encoder: keras.Model | None,
    normalizer: Normalizer | None,
    l2: float,
    seed: int,
    output: OutputTransform | None,
    **hidden: Any,
) -> Recurrent:
    """Build a recurrent policy; see `mlp_actor` for the arguments."""
    layers = make_torso(**hidden)
    x = keras.Input((rnn_spec.cell_kinds[-1][1],), name="remembered")
    torso_model = keras.Model(x, actor_torso(spec, layers, x, seed=seed, l2=l2, output=output), name="torso")
    return _recurrent_network(rnn_spec, spec, features(spec, encoder, normalizer), torso_model, seed, "pi")


def recurrent_critic(
    rnn_spec: RNNSpec,
    spec: Spec,
    *,
    encoder: keras.Model | None,
    normalizer: Normalizer | None,
    l2: float,
    seed: int,
    name: str,
    head: Callable[..., Head],
    **hidden: Any,
) -> Recurrent:
    """Build a recurrent critic; see `mlp_critic` for the arguments.

    The action enters after the recurrent cells, so that only executed actions are part of the history.
    """
    layers = make_torso(**hidden)
    x = keras.Input((rnn_spec.cell_kinds[-1][1],), name="remembered")
    action = action_input(spec)
    output = critic_torso(spec, layers, x, action, seed=seed, l2=l2, head=head)
    torso_model = keras.Model([x, action], output, name="torso")
    return _recurrent_network(rnn_spec, spec, features(spec, encoder, normalizer), torso_model, seed, name)


def _recurrent_network(
    rnn_spec: RNNSpec, spec: Spec, encoder: keras.Model, torso: keras.Model, seed: int, name: str
) -> Recurrent:
    scale, offset = rnn_spec.recurrent_spec.scaling
    previous_scaling = keras.layers.Rescaling(scale.tolist(), offset.tolist(), dtype="float32", name="before")
    encoded: Any = encoder(observation_inputs(spec))
    rnn = RNNStack(make_cells(rnn_spec.recurrent, rnn_spec.units, seed), name="memory")
    rnn.build((None, None, encoded.shape[-1] + len(scale)))
    return Recurrent(encoder, previous_scaling, rnn, torso, name=name)
