"""An agent's optimizers, with the face that Keras' callbacks look for in `model.optimizer`."""

from collections.abc import Sequence

import keras
import tensorflow as tf


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
