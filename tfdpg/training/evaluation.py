"""Episodes of a policy, and their returns."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdpg.arguments import positive_int
from tfdpg.exploration import Behaviour
from tfdpg.spec import Packed, Spec
from tfdpg.training.lanes import EVALUATION, Episode, Lanes, reset_seed


class Acts(Protocol):
    """Anything with a `spec` that maps a batch of observations to actions: a `Policy`, an agent."""

    @property
    def spec(self) -> Spec:
        """The spaces that it serves."""
        ...

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations, `[batch, act_dim]`."""
        ...


class _Policy(NamedTuple):
    """The spaces that a policy serves, what it does with packed observations, and with lanes whose episode ended."""

    spec: Spec
    act: Callable[[Packed], np.ndarray]
    end: Callable[[np.ndarray], None]

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations."""
        return self.act(self.spec.pack(observation))


def policy(
    spec: Spec, actor: Callable[[Packed], np.ndarray], behaviour: Behaviour, step: int, seed: int | None
) -> Acts:
    """A policy whose actions are chosen by a behaviour, or by a copy of it.

    Args:
        spec: the spaces.
        actor: from packed observations to the outputs of the policy's network.
        behaviour: makes actions of them.
        step: the environment step whose exploration is wanted.
        seed: fixes it; None is the greedy policy.
    """
    if seed is None:
        return _Policy(spec, lambda packed: spec.served(behaviour.greedy(actor(packed))), lambda ended: None)
    explores, rng = copy.deepcopy(behaviour), np.random.default_rng([seed, EVALUATION])
    explores.state = np.zeros_like(explores.state)
    return _Policy(spec, lambda packed: explores(actor(packed), step, rng)[:, : spec.act_dim], explores.end)


def evaluate(
    policy: Acts, env: Any, episodes: int = 10, *, seed: int = 0, max_ep_len: int | None = None
) -> dict[str, float]:
    """Runs episodes with the actions that a policy gives; exports and agents do not explore.

    Args:
        policy: an exported policy or an agent.
        env: an environment or a vector environment with the policy's spaces.
        episodes: how many; a vector environment's lanes share them evenly.
        seed: fixes the episodes' initial states; the same seed gives the same episodes.
        max_ep_len: cuts episodes after this many steps; None leaves it to the environment.

    Returns:
        `return` (the mean), `return_std`, `return_min`, `return_max` and `episode_length` (the mean).

    Raises:
        ValueError: the spaces of `env` are not the policy's.
    """
    return summarise(list(run_episodes(policy, env, episodes, seed=seed, max_ep_len=max_ep_len)))


def run_episodes(
    policy: Acts, env: Any, episodes: int, *, seed: int = 0, max_ep_len: int | None = None
) -> Iterator[Episode]:
    """Runs episodes as `evaluate` does, and yields each as it ends."""
    positive_int("episodes", episodes)
    spec = policy.spec
    spec.check(env)
    run, steps = {}, 0

    def next_seed(lane: int) -> int:
        run[lane] = run.get(lane, -1) + 1
        return reset_seed(seed, EVALUATION, lane, run[lane])

    lanes = Lanes(env, spec, next_seed, max_ep_len)
    shares = [len(range(lane, episodes, lanes.num_lanes)) for lane in range(lanes.num_lanes)]
    observation = lanes.reset()
    while any(shares):
        action = spec.to_env(policy(observation))
        step, ended = lanes.step(action)
        steps += 1
        spec.check_finite(spec.pack(step.next_observation), step.reward, f"step {steps} of an evaluation", action)
        for episode in ended:
            if shares[episode.lane]:
                shares[episode.lane] -= 1
                yield episode
        if any(shares):
            if isinstance(policy, _Policy):
                policy.end(step.terminated | step.truncated)
            observation = lanes.restart(step)


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
