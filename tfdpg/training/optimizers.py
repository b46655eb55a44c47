"""An agent's optimizers, with the face that Keras' callbacks look for in `model.optimizer`."""

from collections.abc import Sequence

import keras
import tensorflow as tf


def adam(learning_rate: float, name: str) -> keras.optimizers.Optimizer:
    """Adam, with its loss scaled where Keras' dtype policy is mixed_float16."""
    optimizer = keras.optimizers.Adam(learning_rate, name=name)
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name=f"{name}_scaled")


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
