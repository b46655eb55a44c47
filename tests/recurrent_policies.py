"""A policy whose memory anyone can read: it counts the steps of the episode."""

import numpy as np

from tfdpg.acting import BehaviourPolicy, RecurrentSpec, RecurrentState
from tfdpg.exploration import noisy_actions


class Counts:
    """Its state is the number of observations seen, and its action a tenth of that; it keeps what it was given."""

    def __init__(self):
        self.recurrent_inputs = []

    def load(self, weights): ...

    def __call__(self, packed):
        self.recurrent_inputs.append(packed[-1])
        state = packed[-1][:, -1:] + 1
        return np.concatenate([state / 10, state], axis=1)


def counting_policy(spec, stored=True, reward=True, scale=0.0, actor=None):
    """A behaviour policy whose recurrent state is [action, reward, count]."""
    recurrent_spec = RecurrentSpec(spec, True, reward, (("h", 1),), stored)
    exploration = noisy_actions(spec, "gaussian", scale, 0.15, None)
    return BehaviourPolicy(spec, actor or Counts(), exploration, RecurrentState(recurrent_spec))
