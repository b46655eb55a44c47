"""One face for a single environment and for a vector environment in any autoreset mode.

A lane is one environment. Whatever the mode, `reset_ended` resets the lanes whose episode ended, each with the
seed of its next episode, so no lane ever runs an episode that was not seeded.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from tfdpg.findings import malformed, malformed_reset
from tfdpg.spec import Packed, Spec
from tfdpg.training.environment.env_timeout import check_processes, terminate_processes
from tfdpg.training.environment.step_parsing import (
    API,
    batched,
    failed_env_index,
    is_parse_error,
    parse_step,
    parse_vector_step,
)

ResetSeed = Callable[[int], int]
"""From a lane to the seed of its next episode."""


TRAINING, EVALUATION = 0, 1
"""The streams of reset seeds: evaluation never replays the training episodes."""


def reset_seed(seed: int, stream: int, env_index: int, episode: int) -> int:
    """The seed with which an environment is reset for an episode."""
    return int(np.random.SeedSequence([seed, stream, env_index, episode]).generate_state(1)[0])


class Step(NamedTuple):
    """One step of all lanes, in the order of `Agent.observe`'s arguments.

    Attributes:
        reward: `[num_envs]`.
        next_observation: batched.
        terminated: `[num_envs]`.
        truncated: `[num_envs]`, cuts by `max_ep_len` included.
        final_observation: batched, or as SAME_STEP mode has it (see `Spec.pack_final`).
    """

    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: Any


class Episode(NamedTuple):
    """A finished episode: its lane, its return (undiscounted, as the environment gave it) and its length."""

    env_index: int
    episode_return: float
    length: int


class OpenEpisode(NamedTuple):
    """What is known of an episode that has not ended.

    Attributes:
        seed: what the environment was reset with.
        observations: what it showed, packed, `[steps + 1, ...]`; none at all where nobody has acted on it yet.
        actions: `[steps, act_dim]`.
    """

    seed: int
    observations: Packed
    actions: np.ndarray

    def matches(self, packed: Packed, env_index: int, at: int) -> bool:
        """Whether a lane sees what it saw after so many of the steps; True where nobody looked."""
        return all(
            np.array_equal(seen[env_index], rows[at]) for seen, rows in zip(packed, self.observations, strict=False)
        )


class EnvRunner:
    """Steps and resets all lanes of an environment, and keeps count of their episodes.

    Args:
        env: an environment, or a `SyncVectorEnv` or `AsyncVectorEnv` (wrapped or not).
        spec: its spaces.
        reset_seed: gives the seed of each reset.
        max_ep_len: episodes are cut (truncated) after this many steps; None leaves it to the environment.

    Attributes:
        has_hit_max_ep_len: whether an episode was truncated because of `max_ep_len` alone.

    Raises:
        ValueError: a vector environment that cannot reset some of its lanes.
    """

    def __init__(self, env: Any, spec: Spec, reset_seed: ResetSeed, max_ep_len: int | None = None):
        self._env = env
        self._spec = spec
        self._reset_seed = reset_seed
        self._is_vector = isinstance(env, gym.vector.VectorEnv)
        if self._is_vector:
            check_partial_reset(env)
        self.num_envs: int = env.num_envs if self._is_vector else 1
        self._max_ep_len = np.inf if max_ep_len is None else max_ep_len
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._has_stepped = False
        self.has_hit_max_ep_len = False

    @property
    def longest_open_episode(self) -> int:
        """The steps of the longest episode that has not ended."""
        return int(self._lengths.max())

    def reset(self, seed: ResetSeed | None = None) -> Any:
        """Resets all lanes, with the seeds of their next episodes or with others; returns what they see, batched.

        Raises:
            ValueError: the environment's `reset` has another form than Gymnasium's.
        """
        self._returns[:] = 0
        self._lengths[:] = 0
        seeds = [(seed or self._reset_seed)(env_index) for env_index in range(self.num_envs)]
        return self._reset(seed=seeds if self._is_vector else seeds[0])

    def _reset(self, **arguments: Any) -> Any:
        """What all lanes see after a reset, batched."""
        try:
            result = self._env.reset(**arguments)
        except Exception as error:
            self._explain(error)
            raise
        if found := malformed_reset(result):
            raise ValueError(f"{found} {API}")
        return result[0] if self._is_vector else batched(self._spec, result[0])

    def step(self, action: np.ndarray) -> tuple[Step, list[Episode]]:
        """Takes `action` `[num_envs, act_dim]` on all lanes; also returns the episodes that ended.

        Raises:
            ValueError: the environment's `step` has another form than Gymnasium's.
        """
        try:
            result = self._env.step(action if self._is_vector else action[0])
        except Exception as error:
            self._explain(error)
            raise
        self._has_stepped = True
        if self._is_vector:
            observation, reward, terminated, truncated, info = result
            final = info.get("final_obs", observation)
            if "_final_obs" in info:
                self._check_final(final, info["_final_obs"])
            if not self._are_well_formed(reward, terminated, truncated):
                reward, terminated, truncated = parse_vector_step(reward, terminated, truncated, self.num_envs)
        else:
            observation, reward, terminated, truncated = parse_step(result)
            observation = final = batched(self._spec, observation)
            reward = np.array([reward], np.float64)
            terminated = np.array([terminated])
            truncated = np.array([truncated])
        self._returns += reward
        self._lengths += 1
        if (over := self._lengths >= self._max_ep_len).any():
            self.has_hit_max_ep_len |= bool((over & ~terminated & ~truncated).any())
            truncated = truncated | over
        step = Step(reward, observation, terminated, truncated, final)
        ended = terminated | truncated
        return step, self._finished_episodes(ended) if ended.any() else []

    def _are_well_formed(self, reward: Any, *ends: Any) -> bool:
        """Whether these are arrays with an entry for each lane, the ends of bools."""
        shape = self._returns.shape
        return getattr(reward, "shape", None) == shape and all(
            getattr(end, "shape", None) == shape and end.dtype.kind == "b" for end in ends
        )

    def _check_final(self, observations: Any, there: np.ndarray) -> None:
        """Raises `ValueError` unless the last observations of some lanes, which nobody has read, are of the space."""
        for env_index in np.flatnonzero(there).tolist():
            try:
                self._spec.pack(batched(self._spec, observations[env_index]))
            except ValueError as error:
                raise ValueError(f"Lane {env_index}: {error}") from None

    def _explain(self, error: Exception) -> None:
        """Raises what is to be changed in the environment, if that is why it failed; or notes which lane raised."""
        base = self._env.unwrapped
        if getattr(base, "closed", False):
            return  # since it did not answer in time
        if isinstance(error, EOFError | ConnectionError):
            check_processes(self._env, error)
        env_index = failed_env_index(error, self._env, self._spec) if self._is_vector else None
        if isinstance(base, AsyncVectorEnv) and base._state is not AsyncState.DEFAULT:
            terminate_processes(base)  # which failed between two replies
        where = "" if env_index is None else f"Lane {env_index}: "
        if not self._has_stepped and (found := malformed(self._env, env_index or 0)):
            raise ValueError(f"{where}{found}") from error
        if is_parse_error(error):
            raise ValueError(f"{where}the environment returned what cannot be read ({error}). {API}") from error
        if where:
            error.add_note(f"It was raised in lane {env_index}.")

    def _finished_episodes(self, ended: np.ndarray) -> list[Episode]:
        """The episodes of the lanes that ended, whose counts begin anew."""
        env_indices = np.flatnonzero(ended)
        episodes = [
            Episode(int(env_index), float(self._returns[env_index]), int(self._lengths[env_index]))
            for env_index in env_indices
        ]
        self._returns[ended] = 0
        self._lengths[ended] = 0
        return episodes

    def reset_ended(self, step: Step) -> Any:
        """Resets the lanes whose episode ended in `step`; returns what all lanes see next, batched."""
        ended = step.terminated | step.truncated
        return self._reset_some(ended, self._reset_seed) if ended.any() else step.next_observation

    def _reset_some(self, chosen: np.ndarray, seed: ResetSeed) -> Any:
        """Resets the lanes of a mask, at least one; returns what all lanes see next, batched."""
        self._returns[chosen] = 0
        self._lengths[chosen] = 0
        seeds = [seed(env_index) if chosen[env_index] else None for env_index in range(self.num_envs)]
        if self._is_vector:
            return self._reset(seed=seeds, options={"reset_mask": chosen})
        return self._reset(seed=seeds[0])

    def replay_episodes(self, episodes: Sequence[OpenEpisode | None]) -> tuple[Any, dict[int, str]]:
        """Brings each lane to where its open episode was: resets it, and takes the episode's steps again.

        All arrive together: lanes with shorter episodes are reset later, and act from the middle of the box before.

        Args:
            episodes: of each lane; None begins a new one.

        Returns:
            What all lanes see now, batched; and of the lanes whose environment did something else than in its episode
            what that was. These begin a new one, too.
        """
        episodes_or_empty = [OpenEpisode(0, (), np.empty(0)) if episode is None else episode for episode in episodes]
        lengths = np.array([len(episode.actions) for episode in episodes_or_empty])
        steps = int(lengths.max())
        first_steps = lengths.max() - lengths
        mismatches: dict[int, str] = {}

        def seed(env_index: int) -> int:
            return episodes_or_empty[env_index].seed

        observation = self.reset(seed)
        for now in range(steps + 1):
            packed = self._spec.pack(observation)
            there = np.flatnonzero(first_steps <= now).tolist()
            for env_index in there:
                if not episodes_or_empty[env_index].matches(packed, env_index, at := now - first_steps[env_index]):
                    mismatches.setdefault(env_index, f"another observation after {at} steps")
            if now == steps or len(mismatches) == self.num_envs:
                break
            action = np.repeat(self._spec.center[None], self.num_envs, axis=0)
            for env_index in there:
                action[env_index] = episodes_or_empty[env_index].actions[now - first_steps[env_index]]
            step, _ = self.step(self._spec.to_env(action))
            ended = step.terminated | step.truncated
            for env_index in there:
                if ended[env_index]:
                    mismatches.setdefault(env_index, "an end")
            reset = ended | (first_steps == now + 1)
            observation = self._reset_some(reset, seed) if reset.any() else step.next_observation
        starts_over = np.array(
            [env_index in mismatches or episodes[env_index] is None for env_index in range(self.num_envs)]
        )
        return self._reset_some(starts_over, self._reset_seed) if starts_over.any() else observation, mismatches


def check_partial_reset(env: gym.vector.VectorEnv) -> None:
    """Raises `ValueError` for a vector environment that cannot reset some of its lanes."""
    base = env.unwrapped
    if not isinstance(base, (SyncVectorEnv, AsyncVectorEnv)):
        raise ValueError(
            "`env` must be able to reset some of its lanes, as SyncVectorEnv and AsyncVectorEnv do. "
            f"Received: {base}. Make it with gym.make_vec(..., vectorization_mode='sync' or 'async'), "
            "or drive it yourself with agent.act, agent.observe and agent.learn."
        )
    next_step = base.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
    if isinstance(base, AsyncVectorEnv) and not base.shared_memory and next_step:
        raise ValueError(
            "`env` is an AsyncVectorEnv without shared memory in NEXT_STEP mode, which resets a lane a second time "
            "after a partial reset. Make it with shared_memory=True or autoreset_mode=AutoresetMode.DISABLED."
        )


def environment_of(env: Any) -> dict[str, Any] | None:
    """The registered name and arguments of an environment; None where JSON cannot hold them, or for a `Spec`."""
    if isinstance(env, str):
        return {"id": env, "kwargs": {}}
    spec = None if isinstance(env, Spec) else env.spec
    if spec is None:
        return None
    kwargs = {k: v for k, v in spec.kwargs.items() if k not in ("num_envs", "vectorization_mode", "render_mode")}
    try:
        json.dumps(kwargs)
    except TypeError:
        return None
    return {"id": spec.id, "kwargs": kwargs}
