"""Custom recurrent cells, and small recurrent agents."""

import keras

import tfdpg

SMALL = {"hidden_units": (4,), "batch_size": 4, "sequence_length": 3, "burn_in": 2, "replay_size": 500}
SMALL |= {"start_steps": 10, "update_after": 10, "update_every": 10, "gradient_steps": 1, "run_eagerly": True}


@keras.saving.register_keras_serializable("tests")
class Leaky(keras.layers.SimpleRNNCell):
    """A custom cell."""


def hard():
    """Return a Keras cell with an option that the NumPy policy does not support."""
    return keras.layers.LSTMCell(3, recurrent_activation="hard_sigmoid")


def recurrent_agent(env, **options):
    """Return a recurrent agent that makes few updates, without compilation."""
    return tfdpg.DDPG(env, **SMALL | {"recurrent": "lstm"} | options)
