"""`tfdpg check`."""

import sys
import warnings
from typing import Annotated

import tyro

from tfdpg import checking
from tfdpg.checking.conventions import plain
from tfdpg.environments import make_unchecked, parse_kwargs


def check(
    env: Annotated[str, tyro.conf.Positional],
    /,
    env_kwargs: tuple[str, ...] = (),
    steps: int = 1000,
    seed: int = 0,
) -> int:
    """Look for what is wrong with an environment, and show what an agent will see of it.

    The exit status is 1 where something was found.

    Args:
        env: id of a registered Gymnasium environment, module:id or module:Class.
        env_kwargs: arguments of the environment, as name=value with Python literals.
        steps: random steps to take.
        seed: fixes resets and actions.
    """
    with warnings.catch_warnings(record=True) as caught:
        made = make_unchecked(env, **parse_kwargs(env_kwargs))
    for warning in caught:
        print(f"tfdpg: {plain(str(warning.message))}", file=sys.stderr)
    try:
        return int(bool(checking.check(made, steps=steps, seed=seed)))
    finally:
        made.close()
