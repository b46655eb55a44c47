"""A rollout worker: one environment, one policy, in a process of its own. NumPy only."""

import secrets
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.acting import Behaviour
from tfdpg.arguments import reject
from tfdpg.distributed.chunks import Chunk, Order, Summary
from tfdpg.replay import Rows
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.lanes import TRAINING, Lanes, reset_seed


class Worker:
    """Collects chunks of one lane.

    It is made in no time: the environment is made with the first order, so that what goes wrong with it is an
    error of that order and reaches the learner.

    Args:
        lane: the lane, which is the number of the worker.
        spec: the spaces that the environment must have.
        make_env: makes the environment.
        behaviour: acts; the weights of its actor come with each order.
        seed: the agent's.
        max_ep_len: episodes are cut (truncated) after this many steps; None leaves it to the environment.
    """

    def __init__(
        self,
        lane: int,
        spec: Spec,
        make_env: Callable[[], gym.Env],
        behaviour: Behaviour,
        seed: int,
        max_ep_len: int | None,
    ):
        self._lane, self._spec, self._make_env, self._behaviour = lane, spec, make_env, behaviour
        self._seed, self._max_ep_len = seed, max_ep_len
        self._incarnation, self._sequence, self._version = secrets.randbits(62), 0, -1
        self._lanes: Lanes | None = None
        self._packed: Packed | None = None  # what the environment shows; None between two episodes

    def rollout(self, weights: Any, version: int, order: Order) -> Chunk:
        """Takes `order.steps` steps, and returns them.

        Args:
            weights: of the policy.
            version: the version of the weights; those that the worker has already are not looked at.
            order: what to do.

        Raises:
            ValueError: the environment has other spaces than the agent.
        """
        lanes = self._lanes = self._lanes or self._first_lanes(order.episodes)
        if version != self._version:
            actor: Any = self._behaviour.actor
            actor.load(weights)
            self._version = version
        rows = _Rows(self._spec, self._behaviour.step_width, 2 * order.steps)
        ended, finished = np.zeros(order.steps, bool), []
        for step in range(order.steps):
            if self._packed is None:
                self._packed = self._spec.pack(lanes.reset())
                rows.begin(self._packed)
            if step < order.random_steps:
                action = self._behaviour.at_random(self._packed, self._rng)
            else:
                action = self._behaviour.explore(self._packed, order.noise_factor, self._rng)
            outcome, episodes = lanes.step(self._spec.to_env(action))
            self._packed = self._spec.pack(outcome.next_observation)
            self._behaviour.received(outcome.reward)
            rows.add(action, outcome.reward, outcome.terminated, self._packed)
            if episodes:
                finished += episodes
                ended[step], self._packed = True, None
                self._behaviour.end(np.ones(1, bool))
        self._sequence += 1
        returns, lengths = ([episode[i] for episode in finished] for i in (1, 2))
        number = self._incarnation, self._sequence - 1
        return Chunk(Summary(*number, self._version, ended, returns, lengths, self._episodes), rows.taken())

    def _first_lanes(self, episodes: int) -> Lanes:
        env = self._make_env()
        if not isinstance(env, gym.Env):
            raise reject("make_env", "a function that makes one gymnasium.Env", env)
        self._spec.check(env, "make_env")
        self._episodes = episodes
        self._rng = np.random.default_rng(stream(Purpose.WORKERS, self._seed, self._lane, episodes))
        return Lanes(env, self._spec, self._next_reset_seed, self._max_ep_len)

    def _next_reset_seed(self, lane: int) -> int:
        self._episodes += 1
        return reset_seed(self._seed, TRAINING, self._lane, self._episodes - 1)


class _Rows:
    """Room for the rows of a chunk."""

    def __init__(self, spec: Spec, step_width: int, most: int):
        self._count = 0
        self._rows = Rows(
            tuple(np.empty((most, width), group) for group, width in zip(spec.groups, spec.widths, strict=True)),
            np.zeros((most, step_width), np.float32),
            np.zeros(most, np.float32),
            np.zeros(most, bool),
            np.zeros(most, bool),
        )

    def begin(self, observation: Packed) -> None:
        """Adds the row that opens an episode."""
        self._rows.first[self._count] = True
        self._append(observation)

    def add(self, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, next_observation: Packed) -> None:
        """Adds a step, and the row that it led to."""
        i, rows = self._count, self._rows
        rows.action[i], rows.reward[i], rows.terminated[i] = action[0], reward[0], terminated[0]
        self._append(next_observation)

    def _append(self, observation: Packed) -> None:
        for part, values in zip(self._rows.observation, observation, strict=True):
            part[self._count] = values[0]
        self._count += 1

    def taken(self) -> Rows:
        """The rows."""
        return self._rows.part(slice(0, self._count))
