"""`tfdpg check`."""

from typing import Annotated

import tyro

from tfdpg import checking
from tfdpg.environments import make, parse_kwargs


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
    made = make(env, **parse_kwargs(env_kwargs))
    try:
        return int(bool(checking.check(made, steps=steps, seed=seed)))
    finally:
        made.close()
