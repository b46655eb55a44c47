"""Episodes of a policy, and their returns."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from tfdpg.acting import Behaviour
from tfdpg.arguments import positive_int
from tfdpg.spec import Spec
from tfdpg.streams import Purpose, stream
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


class BehaviourPolicy:
    """An agent's policy as `evaluate` takes it.

    Args:
        behaviour: acts; its memory is this policy's alone.
        factor: how much of its exploration there is, of 1; None is the greedy policy.
        seed: fixes what it draws.
    """

    def __init__(self, behaviour: Behaviour, factor: float | None, seed: int):
        self._behaviour, self._factor = behaviour, factor
        self._rng = np.random.default_rng(stream(Purpose.EVALUATION, seed))

    @property
    def spec(self) -> Spec:
        """The spaces that it serves."""
        return self._behaviour.spec

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for a batch of observations."""
        packed = self.spec.pack(observation)
        if self._factor is None:
            return self.spec.served(self._behaviour.greedy(packed))
        return self._behaviour.explore(packed, self._factor, self._rng)[:, : self.spec.act_dim]

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[lanes]`."""
        self._behaviour.end(ended)


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
            if isinstance(policy, BehaviourPolicy):
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
