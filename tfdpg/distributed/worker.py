"""Rollout workers: each steps one environment with one policy, in its own process. NumPy only."""

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy, Preprocessing
from tfdpg.arguments import reject
from tfdpg.replay import TimeSteps
from tfdpg.spec import Packed
from tfdpg.streams import Purpose, stream
from tfdpg.training.environment.env_runner import TRAINING, EnvRunner, Episode, reset_seed
from tfdpg.training.environment.finite import check_finite


class RolloutRequest(NamedTuple):
    """The learner's request for a chunk of environment steps.

    Attributes:
        steps: the number of environment steps.
        random_steps: how many of them, from the first, use uniformly random actions.
        noise_factor: the factor of the exploration noise.
        episodes: the number of episodes that this worker's environment has begun, as far as the learner knows. A new
            worker process begins with the next one.
    """

    steps: int
    random_steps: int
    noise_factor: float
    episodes: int


class Summary(NamedTuple):
    """A summary of a chunk of environment steps.

    Attributes:
        process_id: identifies the worker process that collected the chunk.
        chunk_index: the number of chunks that this process had collected before.
        version: the version of the policy weights: the number of updates that they have.
        ended: whether an episode ended with each step, bool `[steps]`.
        finished: the episodes that ended.
        first_versions: for each of them the version of the weights at its first step; −1 if that was a random one.
        episodes: the number of episodes that this worker's environment has begun, in all its processes.
        begins_episode: whether the first row of the chunk is the first observation of an episode.
        flagged: the numbers of observations that have been missing (`Preprocessing.flagged`); None without
            preprocessing.
    """

    process_id: int
    chunk_index: int
    version: int
    ended: np.ndarray
    finished: list[Episode]
    first_versions: list[int]
    episodes: int
    begins_episode: bool
    flagged: np.ndarray | None = None


class Chunk(NamedTuple):
    """The rows that a worker collected for one request, each with the step that led to it, and their summary."""

    summary: Summary
    rows: TimeSteps


class ChunkSequence:
    """Tracks which chunk of each worker must arrive next."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}

    def advance(self, env_index: int, summary: Summary) -> tuple[bool, np.ndarray]:
        """Register a chunk that arrived.

        Returns:
            Whether the chunk directly follows the last one of its worker; and `ended` for those of its steps that can
            be stored, bool `[steps]`. If the preceding chunk is missing, so is the observation of the first step.
        """
        is_next = self._next.get(env_index) == (summary.process_id, summary.chunk_index)
        self._next[env_index] = summary.process_id, summary.chunk_index + 1
        return is_next, summary.ended if is_next or summary.begins_episode else summary.ended[1:]


class Worker:
    """Collects chunks of steps from one environment.

    The environment is made at the first request, so an error that it raises is an error of that request and reaches the
    learner.

    Args:
        env_index: the worker's number, which is the `env_index` of its rows in the replay buffer.
        make_env: makes the environment. Its spaces must be those of the policy.
        behaviour: the behaviour policy. Its weights come with each request.
        seed: the agent's seed.
        max_ep_len: truncate episodes after this many steps; None never truncates them.
        checks_rows: whether to check that observations and rewards are finite, because the learner does not see them.
        preprocessing: computes the features that the policy receives of the environment's observations; None if it
            receives these.
    """

    def __init__(
        self,
        env_index: int,
        make_env: Callable[[], gym.Env],
        behaviour: BehaviourPolicy,
        seed: int,
        max_ep_len: int | None,
        checks_rows: bool = False,
        preprocessing: Preprocessing | None = None,
    ):
        self.env_index = env_index
        self.spec = behaviour.spec
        self._make_env = make_env
        self._preprocessing = preprocessing
        self._behaviour = behaviour
        self._seed = seed
        self._max_ep_len = max_ep_len
        self._checks_rows = checks_rows
        self._process_id = secrets.randbits(62)
        self._chunk_count = 0
        self._version = -1
        self._first_version = -1  # at the first step of the open episode
        self._runner: EnvRunner | None = None
        self._packed: Packed | None = None  # the current observation; None between two episodes

    def rollout(self, weights: Any, version: int, request: RolloutRequest) -> Chunk:
        """Take `request.steps` environment steps and return them.

        Args:
            weights: the weights of the policy.
            version: the version of the weights. The worker ignores `weights` if it already has this version.
            request: how to act.

        Raises:
            ValueError: the spaces of the environment differ from the policy's, or a reward or an observation is not
                finite.
        """
        runner = self._runner = self._runner or self._make_runner(request.episodes)
        behaviour = self._behaviour
        if version != self._version:
            actor: Any = behaviour.network
            actor.load(weights)
            self._version = version
        no_action = np.zeros((1, behaviour.step_width), np.float32)
        rows: list[TimeSteps] = []
        ended = np.zeros(request.steps, bool)
        finished: list[Episode] = []
        first_versions: list[int] = []
        for step in range(request.steps):
            if self._packed is None:
                self._packed = self.spec.pack(runner.reset())
                self._first_version = -1 if step < request.random_steps else self._version
                rows.append(_row(self._packed, no_action, np.zeros(1), np.zeros(1, bool), True))
            if step < request.random_steps:
                action = behaviour.act_uniformly(self._packed, self._rng)
            else:
                action = behaviour.explore(self._packed, request.noise_factor, self._rng)
            outcome, episodes = runner.step(self.spec.to_env(action))
            self._packed = self.spec.pack(outcome.next_observation)
            behaviour.received(outcome.reward)
            rows.append(_row(self._packed, action, outcome.reward, outcome.terminated, False))
            if episodes:
                finished += episodes
                first_versions.append(self._first_version)
                ended[step] = True
                self._packed = None
                behaviour.end(np.ones(1, bool))
        observations, *others = zip(*rows, strict=True)
        packed = tuple(map(np.concatenate, zip(*observations, strict=True)))
        steps = TimeSteps(packed, *map(np.concatenate, others))
        if self._checks_rows:
            of = f"of sub-environment {self.env_index} (worker {self.env_index})"
            where = f"{request.steps} steps {of}; none of these was stored"
            check_finite(self.spec, packed, steps.reward, where, steps.masked_action, "row")
        source = self._process_id, self._chunk_count, self._version
        self._chunk_count += 1
        flagged = None if self._preprocessing is None else self._preprocessing.flagged
        begins = bool(steps.is_first[0])
        summary = Summary(*source, ended, finished, first_versions, self._episodes, begins, flagged)
        return Chunk(summary, steps)

    def _make_runner(self, episodes: int) -> EnvRunner:
        env = self._make_env()
        if not isinstance(env, gym.Env):
            raise reject("make_env", "a function that makes one gymnasium.Env", env)
        raw = self.spec if self._preprocessing is None else self._preprocessing.raw
        raw.check(env, "make_env")
        self._episodes = episodes
        self._rng = np.random.default_rng(stream(Purpose.WORKERS, self._seed, self.env_index, episodes))
        return EnvRunner(env, raw, self._next_reset_seed, self._max_ep_len, preprocessing=self._preprocessing)

    def _next_reset_seed(self, _: int) -> int:
        self._episodes += 1
        return reset_seed(self._seed, TRAINING, self.env_index, self._episodes - 1)


def _row(packed: Packed, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, is_first: bool) -> TimeSteps:
    """Return one row. It has a copy of the observation, because an environment may reuse the array."""
    observation = tuple(part.copy() for part in packed)
    return TimeSteps(observation, action, reward.astype(np.float32), terminated, np.array([is_first]))
