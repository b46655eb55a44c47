"""Evaluation: run episodes with a policy, and summarise their returns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy, ForwardPass, GreedyPolicy, RecurrentSpec
from tfdpg.arguments import positive_int, reject, shown
from tfdpg.environments import opened
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.environment.env_runner import EVALUATION, EnvRunner, Episode, reset_seed
from tfdpg.training.environment.env_watch import evaluation_of
from tfdpg.training.environment.finite import NO_REWARD, check_finite


@runtime_checkable
class PolicyLike(Protocol):
    """Anything with a `spec` that maps a batch of observations to actions: a `Policy`, an agent."""

    @property
    def spec(self) -> Spec:
        """The spaces of its observations and actions."""
        ...

    def __call__(self, observation: Any) -> np.ndarray:
        """Return the actions for a batch of observations, one for each."""
        ...


@runtime_checkable
class HasPolicy(PolicyLike, Protocol):
    """An agent: its policy has a state of its own, separate from the state of the agent during collection."""

    def policy(self) -> PolicyLike:
        """Return the greedy policy."""
        ...


@runtime_checkable
class StatefulPolicy(Protocol):
    """A policy with a state that depends on the steps before."""

    def received(self, reward: np.ndarray) -> None:
        """Receive the rewards of the last actions, `[num_envs]`."""

    def end(self, ended: np.ndarray) -> None:
        """Reset the state of the sub-environments whose episode ended, bool `[num_envs]`."""


@runtime_checkable
class ResettablePolicy(Protocol):
    """A policy whose state can be reset."""

    def reset(self) -> None:
        """Reset the state of all sub-environments."""


INFO = "info_"
"""The logs of numbers in `info` begin so."""
AnyPolicy = PolicyLike | Callable[[Any], Any]
"""What can be evaluated: a policy, an agent, or a callable from an observation to an action."""


class _CallablePolicy:
    """Makes a policy from a callable between observations and actions as the environment has them.

    Args:
        spec: the spaces.
        act: maps an observation to an action, or the observations of a vector environment to its actions.
        num_envs: the number of sub-environments; None for a single environment.
    """

    def __init__(self, spec: Spec, act: Callable[[Any], Any], num_envs: int | None):
        self.spec = spec
        self._act = act
        self._num_envs = num_envs

    def __call__(self, observation: Any) -> np.ndarray:
        """Return the actions for a batch of observations."""
        if self._num_envs is None:
            parts = self.spec.by_name(observation)
            observation = self.spec.nested({name: part[0] for name, part in parts.items()})
        given = self._act(observation)
        batch_shape = () if self._num_envs is None else (self._num_envs,)
        if isinstance(given, tuple):
            raise ValueError(f"`policy` must return actions, not a tuple. Received: {shown(given)}")
        action = np.asarray(given)
        expected = (*batch_shape, *self.spec.act_shape)
        if action.shape != expected or action.dtype.kind not in "biuf":
            raise ValueError(f"`policy` must return actions of shape {expected}, for `env`. Received: {shown(action)}")
        return action if batch_shape else action[None]


class EvaluationPolicy(GreedyPolicy):
    """An agent's behaviour policy as `evaluate` takes it: it explores.

    Args:
        behaviour: selects actions; its recurrent state is this policy's alone.
        factor: the factor of the exploration, in [0, 1].
        seed: the seed of the exploration.
    """

    def __init__(self, behaviour: BehaviourPolicy, factor: float, seed: int):
        super().__init__(behaviour.spec, behaviour.policy_state.recurrent_spec, behaviour.network)
        self._behaviour = behaviour
        self._policy_state = behaviour.policy_state
        self._factor = factor
        self._rng = np.random.default_rng(stream(Purpose.EVALUATION, seed))

    def act(self, packed: Packed) -> np.ndarray:
        """Return actions with exploration, `[batch, *act_shape]`, and advance the recurrent state."""
        return self.spec.to_user(self._behaviour.explore(packed, self._factor, self._rng))

    def _end(self, ended: np.ndarray) -> None:
        self._behaviour.end(ended)


def evaluate(
    policy: AnyPolicy,
    env: Any,
    episodes: int = 10,
    *,
    seed: int = 0,
    max_ep_len: int | None = None,
    per_episode: bool = False,
) -> dict[str, Any]:
    """Run episodes with a policy; exported policies and agents do not explore.

    Args:
        policy: an exported policy, an agent, or any callable that receives an observation from `env` and returns an
            action for `env`, such as `lambda observation: env.action_space.sample()`. A policy with state has
            `received(reward)` and `end(ended)`, both with `[num_envs]`, which are called after each step, and
            `reset()`, which is called first.
        env: an environment or a vector environment with the policy's spaces, or the id of an environment.
        episodes: the number of episodes, at least 1, divided evenly among the sub-environments of a vector environment.
        seed: the seed of the initial states. The same seed and number of sub-environments give the same states.
        max_ep_len: truncate episodes after this many steps; None sets no limit beyond the environment's own.
        per_episode: also return `returns`, `lengths` and, with `success_rate`, `successes`: lists with an entry for
            each episode, ordered by their ends.

    Returns:
        `return` (the mean of the undiscounted returns), `return_std`, `return_min`, `return_max`, `episode_length` (the
        mean number of steps), and `terminated` and `truncated`, the fractions of the episodes that ended so. If the
        environment reports `info["is_success"]` or `info["success"]`, also `success_rate`, the fraction of episodes in
        whose last step it is True. For each other number in `info`, such as `info["cost"]`, `info_cost`, the mean over
        episodes of its mean over the steps that had it.

    Raises:
        ValueError: an argument is out of its range, the spaces of `env` are not the policy's, a callable does not
            return actions, or the environment returned NaN or infinity.
        FloatingPointError: an action of the policy is NaN or infinite, and so is the result of the step.

    Example:
        ```python
        policy = tfdpg.load("exported_models/td3-halfcheetah")
        scores = tfdpg.evaluate(policy, "HalfCheetah-v5", episodes=20)
        ```
    """
    with opened(env) as env:
        ended = list(run_episodes(policy, env, episodes, seed=seed, max_ep_len=max_ep_len))
    scores: dict[str, Any] = summarise(ended)
    if per_episode:
        scores |= {"returns": [episode.episode_return for episode in ended]}
        scores |= {"lengths": [episode.length for episode in ended]}
        if "success_rate" in scores:
            scores |= {"successes": [episode.success for episode in ended]}
    return scores


def run_episodes(
    policy: AnyPolicy,
    env: Any,
    episodes: int,
    *,
    seed: int = 0,
    max_ep_len: int | None = None,
    hold_steps: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Episode]:
    """Run episodes as `evaluate` does, and yield each one when it ends.

    It returns before the next step if `is_stopped` is True. For `hold_steps`, see `EnvRunner`.
    """
    positive_int("episodes", episodes)
    if max_ep_len is not None:
        positive_int("max_ep_len", max_ep_len)
    policy, memory = prepare_policy(policy, env)
    spec = policy.spec
    spec.check(env)
    episodes_begun = {}
    steps = 0

    def next_seed(env_index: int) -> int:
        episodes_begun[env_index] = episodes_begun.get(env_index, -1) + 1
        return reset_seed(seed, EVALUATION, env_index, episodes_begun[env_index])

    def checked_reset(observation: Any) -> Any:
        check_finite(spec, spec.pack(observation), NO_REWARD, f"a reset after step {steps} of an evaluation")
        return observation

    with evaluation_of(env):
        runner = EnvRunner(env, spec, next_seed, max_ep_len, hold_steps=hold_steps)
        remaining = [len(range(env_index, episodes, runner.num_envs)) for env_index in range(runner.num_envs)]
        observation = checked_reset(runner.reset())
        while any(remaining) and not is_stopped():
            action = spec.to_env(policy(observation))
            step, ended = runner.step(action)
            steps += 1
            check_finite(spec, spec.pack(step.next_observation), step.reward, f"step {steps} of an evaluation", action)
            if memory is not None:
                memory.received(step.reward)
                memory.end(step.terminated | step.truncated)
            for episode in ended:
                if remaining[episode.env_index]:
                    remaining[episode.env_index] -= 1
                    yield episode
            if any(remaining):
                observation = checked_reset(runner.reset_ended(step)) if ended else step.next_observation


def prepare_policy(given: Any, env: Any) -> tuple[PolicyLike, StatefulPolicy | None]:
    """Return a policy for an environment, after a reset, and the same object again if it has state."""
    if not callable(given):
        raise reject("policy", "a policy, an agent, or a callable from observations to actions", given)
    if isinstance(given, HasPolicy):
        given = given.policy()
    num_envs = env.num_envs if isinstance(env, gym.vector.VectorEnv) else None
    policy = given if isinstance(given, PolicyLike) else _CallablePolicy(Spec.of(env), given, num_envs)
    memory = given if isinstance(given, StatefulPolicy) else None
    if memory is not None and isinstance(memory, ResettablePolicy):
        memory.reset()
    return policy, memory


def predict(spec: Spec, recurrent_spec: RecurrentSpec | None, forward: ForwardPass, observations: Any) -> np.ndarray:
    """The greedy actions for observations, or for sequences if the policy is recurrent; see `Agent.predict`.

    Args:
        spec: the spaces.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.
        forward: from packed observations to actions, with the new state behind them.
        observations: one or a batch, or sequences.
    """
    policy = GreedyPolicy(spec, recurrent_spec, forward)
    if recurrent_spec is None:
        return policy(observations)
    if recurrent_spec.uses_reward:
        raise ValueError(
            "`predict` takes observations only, but this recurrent policy also receives rewards. Use `agent.policy()`, "
            "and pass it the reward of each step: policy.received(reward)."
        )
    if spec.is_single(observations):
        raise ValueError(
            "A recurrent agent predicts for sequences that begin with an episode's first observation. For one "
            "observation at a time use `agent.policy()`, which keeps the state, and call its reset() after an episode."
        )
    packed, leading = spec.pack_steps(observations)
    rows = [part.reshape(-1, leading[-1], part.shape[1]) for part in packed]
    actions = [policy.act(tuple(part[:, t] for part in rows)) for t in range(leading[-1])]
    return np.stack(actions, axis=1).reshape(*leading, *spec.act_shape)


def summarise(episodes: Sequence[Episode], goals: bool = False) -> dict[str, float]:
    """Return the statistics of finished episodes; NaN if there are none.

    Args:
        episodes: the episodes.
        goals: whether `success_rate` is there even if no episode reports success.
    """
    successes = [episode.success for episode in episodes if episode.success is not None]
    rate = {"success_rate": float(np.mean(successes)) if successes else np.nan} if successes or goals else {}
    names = "return", "return_std", "return_min", "return_max", "episode_length", "terminated", "truncated"
    if not episodes:
        return dict.fromkeys(names, np.nan) | rate
    returns = np.array([episode.episode_return for episode in episodes])
    ends = np.array([[episode.length, episode.terminated, episode.truncated] for episode in episodes])
    values = returns.mean(), returns.std(), returns.min(), returns.max(), *ends.mean(axis=0)
    return dict(zip(names, map(float, values), strict=True)) | rate | info_means(episodes)


def ends(scores: Mapping[str, float]) -> str:
    """Describe how the episodes of `summarise` ended, such as "terminated 20 %, truncated 80 %"."""
    return f"terminated {scores['terminated']:.0%}, truncated {scores['truncated']:.0%}".replace("%", " %")


def info_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return `info_<name>` for each number in `info`, the mean over the episodes that had it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            values.setdefault(f"{INFO}{name}", []).append(value)
    return {name: float(np.mean(each)) for name, each in sorted(values.items())}
