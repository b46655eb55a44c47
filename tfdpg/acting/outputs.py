"""The choice among discrete actions."""

import numpy as np


def most_probable(probs: np.ndarray) -> np.ndarray:
    """The index of the most probable action for each row of `[batch, actions]`; -1 where probabilities are NaN."""
    return np.where(np.isnan(probs[:, 0]), -1, probs.argmax(axis=1))
