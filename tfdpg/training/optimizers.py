"""An agent's optimizers, one for each network."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpg.arguments import positive, reject


def make_optimizers(
    networks: Mapping[str, keras.Model],
    given: Mapping[str, keras.optimizers.Optimizer | None],
    rates: Mapping[str, float],
    clip_norm: float | None,
    clip_value: float | None,
) -> dict[str, keras.optimizers.Optimizer]:
    """A built optimizer for each network, by its name: Adam, or a copy of one's own.

    Args:
        networks: the networks; all but `pi` are critics.
        given: one's own optimizer for "pi" and for the critics, "q".
        rates: the learning rates of Adam, likewise.
        clip_norm: the largest global norm of a network's gradient.
        clip_value: the largest absolute value of an element.

    Raises:
        ValueError: not an optimizer, both ways to clip, or options that an own optimizer leaves without effect.
    """
    if clip_norm is not None and clip_value is not None:
        raise ValueError(
            f"Give `clip_norm` or `clip_value`, not both. Received: clip_norm={clip_norm}, clip_value={clip_value}"
        )
    clipping: dict[str, Any] = {}
    if clip_norm is not None:
        clipping["global_clipnorm"] = positive("clip_norm", clip_norm)
    if clip_value is not None:
        clipping["clipvalue"] = positive("clip_value", clip_value)
    optimizers = {}
    for name, network in networks.items():
        kind = "pi" if name == "pi" else "q"
        own = given[kind]
        if own is None:
            optimizer = _scaled(keras.optimizers.Adam(rates[kind], name=f"{name}_adam", **clipping))
        elif not isinstance(own, keras.optimizers.Optimizer):
            raise reject(f"{kind}_optimizer", "a Keras optimizer", own)
        elif clipping and given["pi"] is not None and given["q"] is not None:
            raise ValueError("`clip_norm` and `clip_value` do nothing beside optimizers of your own; clip in these.")
        else:
            optimizer = type(own).from_config(own.get_config() | {"name": f"{name}_{own.name}"})
        optimizer.build(network.trainable_variables)
        optimizers[name] = optimizer
    return optimizers


def _scaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """With its loss scaled where Keras' dtype policy is mixed_float16."""
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name=f"{optimizer.name}_scaled")


class Optimizers:
    """Several optimizers, as `keras.optimizers.MultiOptimizer` shows them to callbacks.

    `LearningRateScheduler`, `ReduceLROnPlateau` and `TensorBoard` then treat each one, by its name.

    Attributes:
        optimizers: the optimizers; their names differ.
        iterations: the number of updates ever made.
        built: True; an agent builds its optimizers when it is made.
    """

    built = True

    def __init__(self, optimizers: Sequence[keras.optimizers.Optimizer], iterations: tf.Variable):
        self.optimizers = list(optimizers)
        self.iterations = iterations
