"""Cells of one's own, and small agents with a memory."""

import keras

import tfdpg

SMALL = {"hidden_units": (4,), "batch_size": 4, "sequence_length": 3, "burn_in": 2, "replay_size": 500}
SMALL |= {"start_steps": 10, "update_after": 10, "update_every": 10, "gradient_steps": 1, "run_eagerly": True}


@keras.saving.register_keras_serializable("tests")
class Leaky(keras.layers.SimpleRNNCell):
    """A cell that nobody else has."""


def hard():
    """A stock cell with another setting, for which there is no NumPy."""
    return keras.layers.LSTMCell(3, recurrent_activation="hard_sigmoid")


def recurrent_agent(env, **options):
    """An agent with a memory, which learns little, so that there is nothing to compile."""
    return tfdpg.DDPG(env, **SMALL | {"recurrent": "lstm"} | options)
