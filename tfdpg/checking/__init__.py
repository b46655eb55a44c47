"""`tfdpg.check`: what an environment gives, and what is wrong with it. No TensorFlow is imported."""

import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from tfdpg.arguments import natural, positive_int
from tfdpg.checking.conventions import check_form, conventions, seeds
from tfdpg.checking.first_env import FirstEnv
from tfdpg.checking.random_steps import RandomSteps
from tfdpg.checking.report import Fact, report
from tfdpg.checking.spaces import findings_from, space_facts
from tfdpg.environments import make_unchecked
from tfdpg.findings import Finding, normalizers
from tfdpg.training.environment.env_runner import check_partial_reset

__all__ = ["Finding", "check"]


def check(env: Any, *, steps: int = 1000, seed: int = 0, verbose: int = 1) -> list[Finding]:
    """Looks for what is wrong with an environment, and shows what an agent will see of it.

    The environment is reset, and stepped with random actions; of a vector environment the first lane is looked at.

    Args:
        env: an environment, a vector environment, or an id: a registered one, `module:id` or `module:Class`.
        steps: how many to take; fewer where they take longer than ten seconds.
        seed: fixes resets and actions.
        verbose: 0 prints nothing, 1 a report.

    Returns:
        The findings, each with `what` is wrong and its `remedy`; none where there is nothing to change.

    Raises:
        ValueError: no environment can be made of the id, or `steps` or `seed` is out of range.

    Example:
        ```python
        assert not tfdpg.check("Pendulum-v1")
        ```
    """
    made = make_unchecked(env) if isinstance(env, str) else env
    try:
        name, facts, findings = examine(made, steps, seed)
    finally:
        if made is not env:
            made.close()
    if verbose:
        print(report(name, facts, findings))
    return findings


def examine(env: Any, steps: int = 1000, seed: int = 0) -> tuple[str, list[Fact], list[Finding]]:
    """Examine an environment as `check` does.

    Args:
        env: an environment or a vector environment.
        steps: how many random steps to take.
        seed: fixes resets and actions.

    Returns:
        The name of the environment, the facts about it, and the findings.

    Raises:
        ValueError: `steps` or `seed` is out of range.
    """
    positive_int("steps", steps)
    natural("seed", seed)
    items: list[Fact | Finding] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's: `conventions` takes them over
            for item in _examine(env, steps, seed):
                items.append(item)
    except (Exception, SystemExit) as error:
        items.append(_raised(error))
    facts = [item for item in items if isinstance(item, Fact)]
    return _name(env), facts, [item for item in items if isinstance(item, Finding)]


def _examine(env: Any, steps: int, seed: int) -> Iterator[Fact | Finding]:
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        yield Finding(
            f"This is a {type(env).__module__}.{type(env).__name__}, not a gymnasium.Env.",
            "Let its class be one; `pip install shimmy` has `shimmy:GymV26Environment-v0` for those of old Gym.",
        )
        return
    normalizing = list(normalizers(env))
    yield from normalizing
    if isinstance(env, gym.vector.VectorEnv):
        if refused := list(findings_from(lambda: check_partial_reset(env))):
            yield from refused
            return
    elif missing := [name for name in ("observation_space", "action_space") if getattr(env, name, None) is None]:
        for name in missing:
            yield Finding(f"It has no `{name}`.", f"Set `self.{name} = ...` in `__init__`, then check again.")
        return
    single_env = FirstEnv(env) if isinstance(env, gym.vector.VectorEnv) else env
    yield from space_facts(single_env)
    if malformed := check_form(env, single_env, seed):
        yield malformed._replace(remedy=f"{malformed.remedy} Then check again: the rest was not looked at.")
        return
    yield from conventions(single_env, seed)
    yield from RandomSteps(env, single_env).steps(steps, seed)
    if not normalizing:  # statistics outlive a reset
        yield from seeds(single_env, seed)


def _raised(error: BaseException) -> Finding:
    """An error that the environment raised, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Finding(message, f"It comes from {where.filename}:{where.lineno}. What follows it was not looked at.")


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    name = str(env) if spec is None else spec.id
    return f"{name}, {env.num_envs} lanes" if isinstance(env, gym.vector.VectorEnv) else name
