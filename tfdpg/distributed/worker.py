"""A rollout worker: one environment, one policy, in a process of its own. NumPy only."""

import secrets
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy
from tfdpg.arguments import reject
from tfdpg.distributed.chunks import Chunk, RolloutRequest, Summary
from tfdpg.replay import TimeSteps
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.environment.env_runner import TRAINING, EnvRunner, reset_seed


class Worker:
    """Collects chunks of one lane.

    It is made in no time: the environment is made with the first order, so that what goes wrong with it is an
    error of that order and reaches the learner.

    Args:
        env_index: the lane, which is the number of the worker.
        spec: the spaces that the environment must have.
        make_env: makes the environment.
        behaviour: acts; the weights of its actor come with each order.
        seed: the agent's.
        max_ep_len: episodes are cut (truncated) after this many steps; None leaves it to the environment.
    """

    def __init__(
        self,
        env_index: int,
        spec: Spec,
        make_env: Callable[[], gym.Env],
        behaviour: BehaviourPolicy,
        seed: int,
        max_ep_len: int | None,
    ):
        self._env_index = env_index
        self._spec = spec
        self._make_env = make_env
        self._behaviour = behaviour
        self._seed = seed
        self._max_ep_len = max_ep_len
        self._process_id = secrets.randbits(62)
        self._chunk_count = 0
        self._version = -1
        self._runner: EnvRunner | None = None
        self._packed: Packed | None = None  # what the environment shows; None between two episodes

    def rollout(self, weights: Any, version: int, request: RolloutRequest) -> Chunk:
        """Takes `request.steps` steps, and returns them.

        Args:
            weights: of the policy.
            version: the version of the weights; those that the worker has already are not looked at.
            request: what to do.

        Raises:
            ValueError: the environment has other spaces than the agent.
        """
        runner = self._runner = self._runner or self._make_runner(request.episodes)
        if version != self._version:
            actor: Any = self._behaviour.network
            actor.load(weights)
            self._version = version
        rows = _StepBuffer(self._spec, self._behaviour.step_width, 2 * request.steps)
        ended = np.zeros(request.steps, bool)
        finished = []
        terminated = []
        truncated = []
        for step in range(request.steps):
            if self._packed is None:
                self._packed = self._spec.pack(runner.reset())
                rows.begin(self._packed)
            if step < request.random_steps:
                action = self._behaviour.act_uniformly(self._packed, self._rng)
            else:
                action = self._behaviour.explore(self._packed, request.noise_factor, self._rng)
            outcome, episodes = runner.step(self._spec.to_env(action))
            self._packed = self._spec.pack(outcome.next_observation)
            self._behaviour.received(outcome.reward)
            rows.add(action, outcome.reward, outcome.terminated, self._packed)
            if episodes:
                finished += episodes
                terminated.append(bool(outcome.terminated[0]))
                truncated.append(bool(outcome.truncated[0]))
                ended[step] = True
                self._packed = None
                self._behaviour.end(np.ones(1, bool))
        self._chunk_count += 1
        returns, lengths = ([episode[i] for episode in finished] for i in (1, 2))
        number = self._process_id, self._chunk_count - 1
        ends = ended, returns, lengths, terminated, truncated
        return Chunk(Summary(*number, self._version, *ends, self._episodes), rows.filled())

    def _make_runner(self, episodes: int) -> EnvRunner:
        env = self._make_env()
        if not isinstance(env, gym.Env):
            raise reject("make_env", "a function that makes one gymnasium.Env", env)
        self._spec.check(env, "make_env")
        self._episodes = episodes
        self._rng = np.random.default_rng(stream(Purpose.WORKERS, self._seed, self._env_index, episodes))
        return EnvRunner(env, self._spec, self._next_reset_seed, self._max_ep_len)

    def _next_reset_seed(self, env_index: int) -> int:
        self._episodes += 1
        return reset_seed(self._seed, TRAINING, self._env_index, self._episodes - 1)


class _StepBuffer:
    """Room for the rows of a chunk."""

    def __init__(self, spec: Spec, step_width: int, capacity: int):
        self._count = 0
        self._rows = TimeSteps(
            tuple(np.empty((capacity, width), group) for group, width in zip(spec.groups, spec.widths, strict=True)),
            np.zeros((capacity, step_width), np.float32),
            np.zeros(capacity, np.float32),
            np.zeros(capacity, bool),
            np.zeros(capacity, bool),
        )

    def begin(self, observation: Packed) -> None:
        """Adds the row that opens an episode."""
        self._rows.is_first[self._count] = True
        self._append(observation)

    def add(self, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, next_observation: Packed) -> None:
        """Adds a step, and the row that it led to."""
        i = self._count
        rows = self._rows
        rows.action[i] = action[0]
        rows.reward[i] = reward[0]
        rows.terminated[i] = terminated[0]
        self._append(next_observation)

    def _append(self, observation: Packed) -> None:
        for part, values in zip(self._rows.observation, observation, strict=True):
            part[self._count] = values[0]
        self._count += 1

    def filled(self) -> TimeSteps:
        """The rows."""
        return self._rows.part(slice(0, self._count))
