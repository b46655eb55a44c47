"""Checks that observations, rewards and actions are finite. NumPy only."""

from typing import Any

import numpy as np

from tfdpg.spec import Packed, Spec

NO_REWARD = np.zeros(1, np.float32)
"""The reward of an observation that a reset returned."""


def check_finite(
    spec: Spec,
    observation: Packed,
    reward: np.ndarray,
    where: str,
    action: np.ndarray | None = None,
    row: str = "sub-environment",
) -> None:
    """Check the results of actions.

    Args:
        spec: the spaces.
        observation: packed observations, `[n, ...]`.
        reward: rewards, `[n]`.
        where: the time of the step, for the message.
        action: the actions that led to them, `[n, ...]`.
        row: what each of the n rows stands for, for the message.

    Raises:
        FloatingPointError: a result is not finite because its action was not.
        ValueError: another result is not finite, and is not an observation that may have missing numbers. The message
            names it.
    """
    for what, values in (("reward", reward), ("observation", observation[0])):
        if what == "observation" and spec.missing == "hold":
            continue
        if values.dtype != np.uint8 and not np.logical_and.reduce(np.isfinite(values), axis=None):
            values = values.reshape(len(values), -1)
            first, column = np.argwhere(~np.isfinite(values))[0]
            if action is not None and not np.isfinite(action[first]).all():
                raise FloatingPointError(f"The policy's action is not finite at {where}: action={action[first]}")
            name = what if what == "reward" else spec.entry_name(column)
            of = f", of {row} {first}" if len(values) > 1 else ""
            raise ValueError(f"The environment's {what} is not finite at {where}: {name} = {values[first, column]}{of}")


def float32_rewards(reward: Any) -> np.ndarray:
    """Convert rewards to float32. Those beyond its range become infinite.

    Raises:
        ValueError: an integer is beyond the range of float64, or a reward is not a number.
    """
    try:
        return np.asarray(reward, np.float32)
    except OverflowError:
        raise ValueError(
            "`reward` must be finite as float32. Received: an integer beyond the range of float64"
        ) from None
