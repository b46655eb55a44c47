"""From raw observations to one feature vector: flatten, scale images, one-hot discrete parts."""

from typing import Any

import keras

from tfdpg.acting.encoder import discrete_ranges
from tfdpg.spec import Leaf, Spec


def observation_inputs(spec: Spec) -> Any:
    """Keras inputs for raw observations: one tensor, or a dict of them for a Dict space."""
    inputs = {leaf.name: keras.Input(leaf.shape, dtype=leaf.dtype, name=leaf.name) for leaf in spec.leaves}
    return inputs if spec.is_dict else inputs["x"]


def encoder(spec: Spec) -> keras.Model:
    """The stock encoder, without weights.

    Box observations are flattened; uint8 ones are first scaled from 0..255 to [0, 1]; Discrete and
    MultiDiscrete ones become one-hot. The parts of a Dict are concatenated in the order of its keys.

    Args:
        spec: the spaces.

    Returns:
        A functional model from raw observations (see `observation_inputs`) to features `[batch, features]`.
    """
    inputs = observation_inputs(spec)
    parts = [_encode(leaf, inputs[leaf.name] if spec.is_dict else inputs) for leaf in spec.leaves]
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    return keras.Model(inputs, features, name="encoder")


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
