"""The built-in observation encoder and the observation normaliser."""

from typing import Any

import keras

from tfdpg.acting.encoder import discrete_ranges
from tfdpg.spec import Leaf, Spec


def observation_inputs(spec: Spec) -> Any:
    """Return Keras inputs for raw observations: one tensor, or a dict of tensors for a Dict or Tuple space.

    Args:
        spec: the spaces of the environment.

    Returns:
        A `keras.KerasTensor` of shape `[batch, ...]`, or a dict of them by name (see `tfdpg.Spec`). Its type is the one
        that networks receive: float32, uint8 for a uint8 Box, or int32 for Discrete and MultiDiscrete spaces.
    """
    inputs = {leaf.name: keras.Input(leaf.shape, dtype=leaf.dtype, name=leaf.name) for leaf in spec.leaves}
    return inputs if spec.is_dict else inputs["x"]


def encoder(spec: Spec, normalizer: "Normalizer | None" = None) -> keras.Model:
    """Build the built-in encoder. It has no weights except those of the normaliser.

    Box observations are flattened, and those of dtype uint8 are scaled from 0..255 to [0, 1]. Discrete and
    MultiDiscrete observations are encoded as one-hot vectors. The parts of a Dict or Tuple are concatenated in order.

    Args:
        spec: the spaces of the environment.
        normalizer: a layer applied to the features, which networks may share.

    Returns:
        A functional model from raw observations (see `observation_inputs`) to features `[batch, features]`.
    """
    inputs = observation_inputs(spec)
    parts = [_encode(leaf, inputs[leaf.name] if spec.is_dict else inputs) for leaf in spec.leaves]
    features: Any = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    if normalizer is not None:
        features = normalizer(features)
    model: Any = keras.Model(inputs, features, name="encoder")
    model.is_built_in_encoder = True
    return model


def is_built_in_encoder(model: keras.Model) -> bool:
    """Whether `encoder` made a model, so that `tfdpg.acting.encode` computes the same features."""
    return getattr(model, "is_built_in_encoder", False)


def _encode(leaf: Leaf, x: Any) -> Any:
    size = leaf.columns.stop - leaf.columns.start
    x = keras.layers.Reshape((size,))(x)
    if leaf.dtype == "float32":
        return x
    if leaf.dtype == "uint8":
        return keras.layers.Rescaling(1 / 255)(x)
    starts, counts = discrete_ranges(leaf.space)
    parts = [
        keras.ops.one_hot(x[:, i] - int(start), int(count), dtype="float32")
        for i, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)


@keras.saving.register_keras_serializable("tfdpg")
class Normalizer(keras.layers.Layer):
    """Normalise each feature: clip((x − mean) / (√variance + epsilon), −clip, clip).

    The mean and the variance are weights that are not trained: before each update phase, the agent writes the
    statistics of the observations that it has collected. All networks of an agent have the same statistics, and an
    export keeps them. The option `normalize_observations` adds this layer to built-in networks. In a custom network,
    apply it to the observation `[batch, features]` before any other layer.

    Args:
        epsilon: added to the standard deviation; above 0.
        clip: largest absolute value of the output; above 0.
    """

    def __init__(self, epsilon: float = 1e-8, clip: float = 5.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.clip = clip

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the weights."""
        shape = (input_shape[-1],)
        self.mean = self.add_weight(name="mean", shape=shape, initializer="zeros", trainable=False)
        self.variance = self.add_weight(name="variance", shape=shape, initializer="ones", trainable=False)

    def call(self, features: Any) -> Any:
        """Return the normalised features."""
        std: Any = keras.ops.sqrt(self.variance)
        return keras.ops.clip((features - self.mean) / (std + self.epsilon), -self.clip, self.clip)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().get_config() | {"epsilon": self.epsilon, "clip": self.clip}
