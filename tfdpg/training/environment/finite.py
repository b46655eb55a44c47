"""Numbers that are not finite, and where they began. NumPy only."""

from typing import Any

import numpy as np

from tfdpg.spec import Packed, Spec

NO_REWARD = np.zeros(1, np.float32)
"""Where an observation comes without one, at a reset."""


def check_finite(
    spec: Spec,
    observation: Packed,
    reward: np.ndarray,
    where: str,
    action: np.ndarray | None = None,
    row: str = "lane",
) -> None:
    """Checks what came of actions.

    Args:
        spec: the spaces.
        observation: packed observations, `[n, ...]`.
        reward: rewards, `[n]`.
        where: when they came, for the message.
        action: what was done, `[n, ...]`.
        row: what each of the n is.

    Raises:
        FloatingPointError: the action that led to the first bad one is not finite itself.
        ValueError: observations or rewards are not finite; the message names the first number that is not.
    """
    for what, values in (("reward", reward), ("observation", observation[0])):
        if values.dtype != np.uint8 and not np.logical_and.reduce(np.isfinite(values), axis=None):
            first, column = np.argwhere(~np.isfinite(values.reshape(len(values), -1)))[0]
            if action is not None and not np.isfinite(action[first]).all():
                raise FloatingPointError(f"The policy's action is not finite at {where}: action={action[first]}")
            name = what if what == "reward" else entry_name(spec, column)
            value = values.reshape(len(values), -1)[first, column]
            of = f", of {row} {first}" if len(values) > 1 else ""
            raise ValueError(f"The environment's {what} is not finite at {where}: {name} = {value}{of}")


def float32_rewards(reward: Any) -> np.ndarray:
    """Rewards as float32, of any integers and floats; those beyond float32 become infinite.

    Raises:
        ValueError: an integer that no float can hold, or something else than numbers.
    """
    try:
        return np.asarray(reward, np.float32)
    except OverflowError:
        raise ValueError("`reward` must be finite as float32. Received: an integer beyond every float") from None


def entry_name(spec: Spec, column: int) -> str:
    """The name of a column of packed observations: that of its array, with its index there."""
    leaf = next(leaf for leaf in spec.leaves if leaf.group == "float32" and column < leaf.columns.stop)
    index = map(int, np.unravel_index(column - leaf.columns.start, leaf.shape)) if leaf.shape else ()
    return f"{leaf.name}{list(index) or ''}"
