"""Find problems of an environment before training on it: `tfdpg.check` and `tfdpg check`. It imports no TensorFlow.

A companion of the core. It uses `spec`, `spaces`, `findings`, `environments`, and the parsing of steps and the checks
of numbers in `training.environment`. `conventions` checks Gymnasium's API, `spaces` the spaces, `random_steps` takes
steps, `observations` looks at what came back, `realtime` measures times (it imports TensorFlow when it is called), and
`report` prints it.
"""

import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from tfdpg.arguments import natural, positive, positive_int
from tfdpg.checking.conventions import check_form, conventions
from tfdpg.checking.observations import Observations
from tfdpg.checking.random_steps import seeds, take_random_steps
from tfdpg.checking.realtime import real_time, steps_of
from tfdpg.checking.report import Fact, report
from tfdpg.checking.spaces import findings_from, space_facts
from tfdpg.environments import is_real, make_unchecked
from tfdpg.findings import Finding, normalizers
from tfdpg.training.environment.env_runner import check_partial_reset

__all__ = ["Finding", "check"]


def check(
    env: Any, *, steps: int | None = None, seed: int = 0, realtime: float | None = None, verbose: int = 1
) -> list[Finding]:
    """Find problems of an environment, and report what an agent will see of it.

    The environment is reset and stepped with random actions. For a vector environment, the first sub-environment is
    checked.

    A real machine, whose unwrapped environment has an attribute `is_real` = True, is reset twice and then after each
    episode, and takes one step more. No seed is used twice. With `realtime`, an environment takes no further step.

    Args:
        env: an environment, a vector environment, or an id: a registered id, `module:id` or `module:Class`.
        steps: the number of random steps, at least 1. None takes 1,000, or as many as the step limit of the
            environment if that is more; without a known limit, steps until an episode ends, at most 10,000. Stepping
            stops after ten seconds, or after a minute if no episode has ended and there is a known limit. With
            `realtime`, None takes as many as ten seconds have at that rate, at least 10. Stepping then ends after twice
            the time that the steps should take.
        seed: seeds the resets and the actions; at least 0.
        realtime: the rate of a control loop in steps per second, above 0. The check then measures, in place of all
            else, how well the environment keeps this rate, and whether learning makes an update per step on this
            machine. None measures neither.
        verbose: 0 prints nothing, 1 prints a report.

    Returns:
        The findings, each with a problem (`what`) and its `remedy`.

    Raises:
        ValueError: the environment cannot be made; `steps`, `seed` or `realtime` is out of range; or `realtime` is
            given for a vector environment.

    Example:
        ```python
        assert not tfdpg.check("Pendulum-v1")
        ```
    """
    made = make_unchecked(env) if isinstance(env, str) else env
    try:
        name, facts, findings = examine(made, steps, seed, realtime, announces=bool(verbose))
    finally:
        if made is not env:
            made.close()
    if verbose:
        print(report(name, facts, findings))
    return findings


def examine(
    env: Any, steps: int | None = None, seed: int = 0, realtime: float | None = None, *, announces: bool = False
) -> tuple[str, list[Fact], list[Finding]]:
    """Check an environment as `check` does.

    Args:
        env: an environment or a vector environment.
        steps: the number of random steps; None takes as many as `check` says.
        seed: seeds the resets and the actions.
        realtime: the rate of a control loop in steps per second; None is not about real time.
        announces: whether to say on standard error that a machine will move, before it does.

    Returns:
        The name of the environment, the facts about it, and the findings.

    Raises:
        ValueError: `steps`, `seed` or `realtime` is out of range, or `realtime` is given for a vector environment.
    """
    if steps is not None:
        positive_int("steps", steps)
    natural("seed", seed)
    if realtime is not None:
        realtime = positive("realtime", realtime)
        if isinstance(env, gym.vector.VectorEnv):
            raise ValueError(f"`realtime` needs a single environment. Received: {_name(env)}")
    if announces and (realtime is not None or is_real(env)):
        print(f"tfdpg: {_name(env)} will move: it is reset and takes random steps. Ctrl-C stops it.", file=sys.stderr)
    items: list[Fact | Finding] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `conventions` turns those of Gymnasium into findings
            for item in _examine(env, steps, seed, realtime):
                items.append(item)
    except (Exception, SystemExit) as error:
        items.append(_raised(error))
    facts = [item for item in items if isinstance(item, Fact)]
    return _name(env), facts, [item for item in items if isinstance(item, Finding)]


def _examine(env: Any, steps: int | None, seed: int, realtime: float | None) -> Iterator[Fact | Finding]:
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        yield Finding(
            f"This is a {type(env).__module__}.{type(env).__name__}, not a gymnasium.Env.",
            "Derive its class from gymnasium.Env. For environments of legacy Gym, `pip install shimmy` provides "
            "`shimmy:GymV26Environment-v0`.",
        )
        return
    normalizing = normalizers(env)
    yield from normalizing
    if isinstance(env, gym.vector.VectorEnv):
        if refused := list(findings_from(lambda: check_partial_reset(env))):
            yield from refused
            return
    elif missing := [name for name in ("observation_space", "action_space") if getattr(env, name, None) is None]:
        for name in missing:
            yield Finding(f"It has no `{name}`.", f"Set `self.{name} = ...` in `__init__`, then check again.")
        return
    single_env = _FirstEnv(env) if isinstance(env, gym.vector.VectorEnv) else env
    facts = list(space_facts(single_env))
    yield from facts
    if realtime is not None:
        if not any(isinstance(fact, Finding) for fact in facts):
            yield from real_time(single_env, realtime, steps_of(realtime, steps), seed)
        return
    if malformed := check_form(env, single_env, seed):
        yield malformed._replace(remedy=f"{malformed.remedy} Then check again: nothing else was checked.")
        return
    moves = is_real(env)
    yield from conventions(single_env, seed, moves)
    observations = Observations(single_env.observation_space)
    yield from take_random_steps(env, single_env, observations, steps, seed)
    if not (normalizing or moves):  # the statistics of normalising wrappers persist over a reset
        yield from seeds(single_env, observations, seed)


class _FirstEnv(gym.Env):
    """The first sub-environment of a vector environment in any autoreset mode.

    All sub-environments are stepped with the same action.
    """

    def __init__(self, env: Any):
        self._env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.spec = env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all sub-environments with the same seed."""
        observation, info = self._env.reset(seed=[seed] * self._env.num_envs, options=options)
        return self._first_observation(observation), info

    def step(self, action: Any) -> Any:
        """Step all sub-environments with the same action."""
        num_envs = self._env.num_envs
        empty = create_empty_array(self.action_space, num_envs)
        observation, reward, terminated, truncated, info = self._env.step(
            concatenate(self.action_space, [action] * num_envs, empty)
        )
        ended = terminated[0] or truncated[0]
        shown = info["final_obs"][0] if ended and "final_obs" in info else self._first_observation(observation)
        return shown, reward[0], terminated[0], truncated[0], info

    def _first_observation(self, observation: Any) -> Any:
        return next(iter(iterate(self._env.observation_space, observation)))


def _raised(error: BaseException) -> Finding:
    """Return the finding for an error that the environment raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Finding(message, f"It was raised at {where.filename}:{where.lineno}. Nothing after it was checked.")


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    name = str(env) if spec is None else spec.id
    return f"{name}, {env.num_envs} sub-environments" if isinstance(env, gym.vector.VectorEnv) else name
