"""Episodes of a policy, and their returns."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy, NoState
from tfdpg.arguments import positive_int, reject
from tfdpg.environments import opened
from tfdpg.spec import Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.environment.env_runner import EVALUATION, EnvRunner, Episode, reset_seed
from tfdpg.training.environment.finite import NO_REWARD, check_finite


@runtime_checkable
class PolicyLike(Protocol):
    """Anything with a `spec` that maps a batch of observations to actions: a `Policy`, an agent."""

    @property
    def spec(self) -> Spec:
        """The spaces that it serves."""
        ...

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations, a row or an entry for each."""
        ...


@runtime_checkable
class HasPolicy(PolicyLike, Protocol):
    """An agent, whose policy acts apart from what the agent itself goes on with."""

    def policy(self) -> PolicyLike:
        """The greedy policy."""
        ...


@runtime_checkable
class StatefulPolicy(Protocol):
    """A policy that carries something from step to step."""

    def received(self, reward: np.ndarray) -> None:
        """Takes note of what the last actions were rewarded with, `[num_envs]`."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        ...


@runtime_checkable
class ResettablePolicy(Protocol):
    """A policy that can begin anew."""

    def reset(self) -> None:
        """Forgets the past of all lanes."""
        ...


AnyPolicy = PolicyLike | Callable[[Any], Any]
"""What can be evaluated: a policy or an agent, or what takes an observation of an environment and gives an action."""


class _CallablePolicy:
    """A callable as a policy: it sees what the environment gives, and gives what the environment takes.

    Args:
        spec: the spaces.
        act: from an observation to an action, or from a vector environment's to its actions.
        num_envs: the lanes of a vector environment; None is a single one.
    """

    def __init__(self, spec: Spec, act: Callable[[Any], Any], num_envs: int | None):
        self.spec = spec
        self._act = act
        self._num_envs = num_envs

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations."""
        if self._num_envs is None:
            observation = {k: v[0] for k, v in observation.items()} if self.spec.is_dict else observation[0]
        given = self._act(observation)
        batch_shape = () if self._num_envs is None else (self._num_envs,)
        if isinstance(given, tuple):
            raise ValueError(f"`policy` must give actions alone, and no tuple with something else. Received: {given!r}")
        action = np.asarray(given)
        expected = (*batch_shape, *self.spec.act_shape)
        if action.shape != expected or action.dtype.kind not in "biuf":
            raise ValueError(f"`policy` must give actions of shape {expected}, as `env` takes. Received: {action!r}")
        return action if batch_shape else action[None]


class EvaluationPolicy:
    """An agent's policy as `evaluate` takes it.

    Args:
        behaviour: acts; its memory is this policy's alone.
        factor: how much of its exploration there is, of 1; None is the greedy policy.
        seed: fixes what it draws.
    """

    def __init__(self, behaviour: BehaviourPolicy, factor: float | None, seed: int):
        self._behaviour = behaviour
        self._factor = factor
        self._batch_size = 0
        self._rng = np.random.default_rng(stream(Purpose.EVALUATION, seed))

    @property
    def spec(self) -> Spec:
        """The spaces that it serves."""
        return self._behaviour.spec

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations, or the one for one, in the environment's shape."""
        packed = self.spec.pack(observation)
        self._batch_size = len(packed[0])
        if self._factor is None:
            actions = self._behaviour.greedy(packed)
        else:
            actions = self._behaviour.explore(packed, self._factor, self._rng)
        return self.spec.to_user(actions)[0 if self.spec.is_single(observation) else slice(None)]

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        self._behaviour.end(ended)

    def received(self, reward: np.ndarray) -> None:
        """Takes note of what the last actions were rewarded with, `[num_envs]`."""
        self._behaviour.received(reward)

    def reset(self, env_indices: Any = None) -> None:
        """Forgets the past of some lanes, by their numbers or a mask; None is all of them."""
        ended = np.zeros(self._batch_size, bool)
        ended[slice(None) if env_indices is None else env_indices] = True
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
    """Runs episodes with the actions that a policy gives; exports and agents do not explore.

    Args:
        policy: an exported policy, an agent, or any callable from an observation, as `env` gives it, to an action, as
            `env` takes it: `lambda observation: env.action_space.sample()`. One that carries state has `end(ended)`
            and `received(reward)`, both `[num_envs]`, which are called after each step; it begins anew by `reset()`.
        env: an environment or a vector environment with the policy's spaces, or the id of one.
        episodes: how many; a vector environment's lanes share them evenly, and step together.
        seed: fixes the episodes' initial states, lane for lane; the same seed and number of lanes give the same ones.
        max_ep_len: cuts episodes after this many steps; None leaves it to the environment.
        per_episode: adds `returns` and `lengths`, lists with a number for each episode in the order of their ends.

    Returns:
        `return` (the mean), `return_std`, `return_min`, `return_max` and `episode_length` (the mean).

    Raises:
        ValueError: the spaces of `env` are not the policy's, or a callable gives something else than actions.
    """
    with opened(env) as env:
        ended = list(run_episodes(policy, env, episodes, seed=seed, max_ep_len=max_ep_len))
    scores: dict[str, Any] = summarise(ended)
    if per_episode:
        scores |= {"returns": [episode.episode_return for episode in ended]}
        scores |= {"lengths": [episode.length for episode in ended]}
    return scores


def run_episodes(
    policy: AnyPolicy, env: Any, episodes: int, *, seed: int = 0, max_ep_len: int | None = None
) -> Iterator[Episode]:
    """Runs episodes as `evaluate` does, and yields each as it ends."""
    positive_int("episodes", episodes)
    policy, memory = _prepare_policy(policy, env)
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

    runner = EnvRunner(env, spec, next_seed, max_ep_len)
    remaining = [len(range(env_index, episodes, runner.num_envs)) for env_index in range(runner.num_envs)]
    observation = checked_reset(runner.reset())
    while any(remaining):
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


def _prepare_policy(given: Any, env: Any) -> tuple[PolicyLike, StatefulPolicy | None]:
    """A policy without a past for an environment, and whoever wants to know how its steps end."""
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


def predict(agent: Any, observations: Any) -> np.ndarray:
    """The greedy actions of an agent for observations, or, with a memory, for sequences; see `Agent.predict`."""
    spec = agent.spec
    behaviour = agent.behaviour
    if agent.recurrent_spec is None:
        outputs = NoState().forward(agent.actor.predict, spec.pack(observations))
        actions = spec.to_user(behaviour.exploration.greedy(outputs))
        return actions[0] if spec.is_single(observations) else actions
    if agent.recurrent_spec.uses_reward:
        raise ValueError(
            "A policy that remembers rewards cannot predict from observations alone. Take `agent.policy()`, and tell "
            "it what its actions were rewarded with: policy.received(reward)."
        )
    if spec.is_single(observations):
        raise ValueError(
            "An agent with a memory predicts for sequences from an episode's start. For one observation at a time take "
            "`agent.policy()`, which remembers those before, and call its reset() where an episode ends."
        )
    packed, leading = spec.pack_steps(observations)
    rows = [part.reshape(-1, leading[-1], part.shape[1]) for part in packed]
    acts = behaviour.with_network(agent.actor.predict)
    steps = [acts.greedy(tuple(part[:, t] for part in rows))[:, : spec.act_dim] for t in range(leading[-1])]
    return spec.shaped(np.stack(steps, axis=1).reshape(*leading, spec.act_dim))


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """The statistics of finished episodes; NaN where there is none."""
    if not episodes:
        return dict.fromkeys(("return", "return_std", "return_min", "return_max", "episode_length"), np.nan)
    returns = np.array([episode.episode_return for episode in episodes])
    return {
        "return": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "episode_length": float(np.mean([episode.length for episode in episodes])),
    }
