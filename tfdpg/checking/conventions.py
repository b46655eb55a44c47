"""Gymnasium's conventions: the forms of reset and step, what its own checker says, and seeds."""

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import env_checker, passive_env_checker

from tfdpg.checking.report import Fact
from tfdpg.findings import Finding, malformed, malformed_reset, malformed_step

STEPS = 20
"""Steps in which episodes of two seeds are compared."""

COVERED_BY_RANDOM_STEPS = (
    "is not within the observation space",
    "observation keys is not same",
    "is a NaN value",
    "is an inf value",
)
"""What Gymnasium says of the first step, and `RandomSteps` of all."""
AGAIN = "Casting input x to numpy array"
"""What it says after it has said that a NumPy array is expected."""

REMEDIES = {
    "numpy array dtype": "Cast it to the dtype of its space, or declare the space with its own; agents see float32.",
    "numpy array, actual type": "Give a NumPy array.",
    "must be a float": "Give a float.",
    "should be an int": "Give an int.",
    "default seed": "Let the default be None.",
    "share an object": "Give a copy: `return self.observation.copy(), ...`.",
    "values are equal": "Give each entry bounds of some width.",
}
"""Parts of what Gymnasium says, and what to change."""


def check_form(env: Any, single_env: gym.Env, seed: int) -> Finding | None:
    """What is wrong with the forms of reset and step; what fails for another reason raises.

    Args:
        env: the environment.
        single_env: the same, or its first lane.
        seed: fixes the reset.
    """
    try:
        return malformed_reset(single_env.reset(seed=seed)) or malformed_step(
            single_env.step(single_env.action_space.sample()), True
        )
    except Exception:
        if found := malformed(env):
            return found
        raise


def conventions(env: gym.Env, seed: int) -> Iterator[Finding]:
    """What Gymnasium's checker says."""
    checks: list[Callable[[], Any]] = [
        lambda: passive_env_checker.check_observation_space(env.observation_space),
        lambda: passive_env_checker.check_action_space(env.action_space),
        lambda: passive_env_checker.env_reset_passive_checker(env, seed=seed),
        lambda: passive_env_checker.env_step_passive_checker(env, env.action_space.sample()),
        lambda: env_checker.check_returned_data_not_reused(env, seed),
    ]
    messages: dict[str, None] = {}
    for check in checks:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(gym.error.Error):
                try:
                    check()
                except (AssertionError, TypeError) as error:
                    messages[str(error)] = None
        messages |= {str(warning.message): None for warning in caught if "WARN: " in str(warning.message)}
    for message in dict.fromkeys(map(_first_sentence, messages)):
        if not any(part in message for part in (*COVERED_BY_RANDOM_STEPS, AGAIN)):
            remedy = next((REMEDIES[part] for part in REMEDIES if part in message), None)
            yield Finding(message, remedy or "See gymnasium.utils.env_checker.check_env, which says so.")


def plain(message: str) -> str:
    """A message of Gymnasium's on one line, without colours."""
    return " ".join(re.sub(r"\x1b\[\d+m|WARN: ", "", message).split())


def _first_sentence(message: str) -> str:
    """The first sentence; of `reset` and `step` alike."""
    message = plain(message).replace("`reset()`", "`step()`")
    return re.split(r"\.\s|, therefore", message)[0].rstrip(".") + "."


def seeds(env: gym.Env, seed: int) -> Iterator[Fact | Finding]:
    """Whether a seed repeats its episode, and another gives another."""
    first_episode, same_seed_episode, other_seed_episode = (
        _episode(env, number, seed) for number in (seed, seed, seed + 1)
    )
    same = _is_same(first_episode, same_seed_episode)
    differs = not _is_same(first_episode, other_seed_episode)
    yield Fact(
        "seeds",
        f"one seed gives {'one episode' if same else 'several episodes'}, "
        f"another {'gives another' if differs else 'the same'}",
    )
    if not same:
        yield Finding(
            "Two resets with one seed, and the same actions, give two episodes.",
            "Draw random numbers from `self.np_random` alone, which `super().reset(seed=seed)` seeds.",
        )
    if not differs:
        yield Finding(
            "Two resets with two seeds, and the same actions, give one episode.",
            "Begin `reset` with `super().reset(seed=seed)`, and draw where the episode begins from `self.np_random`.",
        )


def _episode(env: gym.Env, seed: int, actions_seed: int) -> list[Any]:
    actions = copy.deepcopy(env.action_space)
    actions.seed(actions_seed)
    seen: list[Any] = [copy.deepcopy(env.reset(seed=seed)[0])]
    for _ in range(STEPS):
        observation, reward, terminated, truncated, _ = env.step(actions.sample())
        seen += [copy.deepcopy(observation), np.asarray(reward).item()]
        if terminated or truncated:
            break
    return seen


def _is_same(a: Any, b: Any) -> bool:
    """Whether two observations, or lists of them, are equal up to rounding."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "biuf":
        return np.array_equal(a, b)
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
