"""Gymnasium's conventions: the structure of return values, and the findings of Gymnasium's own checker."""

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.utils import env_checker, passive_env_checker
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from tfdpg.findings import Finding, malformed_reset, malformed_step

IGNORED = (
    "is not within the observation space",
    "observation keys is not same",
    "is a NaN value",
    "is an inf value",
    "Casting input x to numpy array",
)
"""Messages about the observation of the first step, which `take_random_steps` checks for all steps."""

REMEDIES = {
    "numpy array dtype": "Cast it to the dtype of its space, or declare the space with this dtype.",
    "numpy array, actual type": "Return a NumPy array.",
    "must be a float": "Return a float.",
    "should be an int": "Return an int.",
    "default seed": "Make None the default.",
    "share an object": "Return a copy: `return self.observation.copy(), ...`.",
    "values are equal": "Declare bounds of positive width for each entry.",
}
"""Parts of the messages of Gymnasium's checker, and the remedies."""


def check_form(env: Any, single_env: gym.Env, seed: int) -> Finding | None:
    """Check the return values of `reset` and `step`. Errors that have another reason are raised.

    Args:
        env: the environment.
        single_env: the same, or its first sub-environment.
        seed: the seed of the reset.
    """
    try:
        return malformed_reset(single_env.reset(seed=seed)) or malformed_step(
            single_env.step(single_env.action_space.sample()), True
        )
    except Exception:
        if found := _malformed(env):
            return found
        raise


def _malformed(env: Any) -> Finding | None:
    """Find out whether `reset` or `step` failed because it has the signature or the return value of legacy Gym.

    The methods are called without the wrappers, which fail before the return value can be seen.

    Args:
        env: the environment. The sub-environments of a vector environment are not accessible, so one is made again.
    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv):
        base = base.env_fns[0]().unwrapped
    parameters = inspect.signature(base.reset).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in ("seed", "options"):
            if name not in parameters:
                return Finding(
                    f"`reset` takes no `{name}`.",
                    "Declare it as `def reset(self, *, seed=None, options=None)`, and begin with "
                    "`super().reset(seed=seed)`.",
                )
    with contextlib.suppress(Exception):  # the caller reports the original error
        return malformed_reset(base.reset(seed=0)) or malformed_step(base.step(base.action_space.sample()))
    return None


def conventions(env: gym.Env, seed: int) -> Iterator[Finding]:
    """Yield the findings of Gymnasium's checker."""
    checks: list[Callable[[], Any]] = [
        lambda: passive_env_checker.check_observation_space(env.observation_space),
        lambda: passive_env_checker.check_action_space(env.action_space),
        lambda: passive_env_checker.env_reset_passive_checker(env, seed=seed),
        lambda: passive_env_checker.env_step_passive_checker(env, env.action_space.sample()),
        lambda: env_checker.check_returned_data_not_reused(env, seed),
    ]
    messages = []
    for check in checks:
        with warnings.catch_warnings(record=True) as caught, contextlib.suppress(gym.error.Error):
            warnings.simplefilter("always")
            try:
                check()
            except (AssertionError, TypeError) as error:
                messages.append(str(error))
        messages += [message for warning in caught if "WARN: " in (message := str(warning.message))]
    for message in dict.fromkeys(map(_first_sentence, messages)):
        if not any(part in message for part in IGNORED):
            remedies = [remedy for part, remedy in REMEDIES.items() if part in message]
            yield Finding(message, remedies[0] if remedies else "See gymnasium.utils.env_checker.check_env.")


def plain(message: str) -> str:
    """Return a message of Gymnasium on one line, without colours."""
    return " ".join(re.sub(r"\x1b\[\d+m|WARN: ", "", message).split())


def _first_sentence(message: str) -> str:
    """Return the first sentence of a message, with one wording for `reset` and `step`."""
    message = plain(message).replace("`reset()`", "`step()`")
    return re.split(r"\.\s|, therefore", message)[0].rstrip(".") + "."
