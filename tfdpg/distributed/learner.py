"""The learner: hands out orders, stores what arrives, and makes the updates that it earned."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import ray

from tfdpg.agents.agent import Agent
from tfdpg.distributed.chunks import Order
from tfdpg.distributed.control_store import watched_control_store
from tfdpg.distributed.fleet import IN_FLIGHT, Fleet
from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import behaviours, check
from tfdpg.distributed.policies import policy_for_workers
from tfdpg.distributed.processes import connected, plain_errors
from tfdpg.distributed.rates import RateLimit, proportional_updates, scheduled_updates, usual_rate
from tfdpg.distributed.storage import Storage, storage
from tfdpg.distributed.waiting import Waiting
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.lanes import Episode
from tfdpg.training.loop import STEPPED, Training, check_environments, with_environment
from tfdpg.training.updates import LARGEST_CHUNK

WAIT = 0.2
"""Seconds to wait for a chunk at most before it is looked whether there was a signal to end."""

LOGS = (*STEPPED, "updates_per_second", "worker_restarts")
"""The logs of an epoch, beside what updates measure."""


def train(agent: Agent, make_env: Callable[[], Any], options: DistributedFitOptions) -> keras.callbacks.History:
    """See `tfdpg.distributed.fit`."""
    with with_environment(options) as options:
        return _train(agent, make_env, options)


def _train(agent: Agent, make_env: Callable[[], Any], options: DistributedFitOptions) -> keras.callbacks.History:
    check_environments(agent, options.validation_env)
    actor, weights = policy_for_workers(agent, options.worker_backend)
    check(agent, options)
    training = Training(agent, options, options.epochs, LOGS)
    agent.learning.expect(LARGEST_CHUNK)
    cpus = options.actors + options.replay_shards
    with (
        deferred_signals() as interrupted,
        plain_errors(),
        connected(options.ray_address, cpus),
        watched_control_store() as control_store,
        storage(
            agent,
            options.replay_shards,
            waiting := Waiting(cpus, options.step_timeout, interrupted, control_store),
        ) as store,
    ):
        workers = [
            store.start_worker(lane, agent.spec, make_env, behaviour, agent.seed, options.max_ep_len)
            for lane, behaviour in enumerate(behaviours(agent, options, actor))
        ]
        with Fleet(workers, options.step_timeout, waiting) as fleet:
            run = _Run(agent, options, store, fleet, weights, training.hooks, interrupted)
            try:
                training.run(interrupted, options.initial_epoch, run.epoch)
            finally:
                agent.schedule.plan(None)
                agent.actor.refresh()
    return training.history


class _Run:
    """The learning of one `fit`, which goes on from epoch to epoch."""

    def __init__(
        self,
        agent: Agent,
        options: DistributedFitOptions,
        store: Storage,
        fleet: Fleet,
        weights: Callable[[], Any],
        hooks: keras.callbacks.CallbackList,
        interrupted: Interrupt,
    ):
        self._agent, self._options, self._store, self._fleet = agent, options, store, fleet
        self._weights, self._hooks, self._interrupted = weights, hooks, interrupted
        samples = options.samples_per_insert
        self._rate = None if samples is None else samples / agent.batch_size  # None leaves it to the agent's schedule
        usual = usual_rate(agent.schedule) if self._rate is None else self._rate
        slack = options.tolerance * agent.schedule.update_after
        ahead = 0.0 if self._rate is None else slack * usual
        self._limit = RateLimit(ahead, usual * max(slack, options.actors * IN_FLIGHT * options.chunk))
        self._version, self._sent, self._reference = 0, agent.updates, ray.put(weights())

    def epoch(self, epoch: int) -> dict[str, float]:
        """Trains until an epoch's environment steps have arrived; returns its logs."""
        agent, schedule, steps = self._agent, self._agent.schedule, self._options.steps_per_epoch
        schedule.plan((self._options.epochs - epoch) * steps)
        agent.statistics.reset()
        first, updates, began = schedule.env_steps, agent.updates, time.perf_counter()
        episodes: list[Episode] = []
        while schedule.env_steps - first < steps and not self._stops:
            self._hooks.on_train_batch_begin(min(schedule.env_steps - first, steps - 1))
            ended = self._collect()
            episodes += ended
            logs = self._learn(self._limit.due) | {"env_steps": schedule.env_steps}
            if ended:
                logs["return"] = float(np.mean([episode.episode_return for episode in ended]))
            self._hooks.on_train_batch_end(max(0, min(schedule.env_steps - first, steps) - 1), logs)
        while self._learn(self._limit.owed) and not self._stops:
            pass
        seconds = time.perf_counter() - began
        return (
            summarise(episodes)
            | agent.statistics.summary()
            | {
                "env_steps": schedule.env_steps,
                "steps_per_second": (schedule.env_steps - first) / seconds,
                "updates_per_second": (agent.updates - updates) / seconds,
                "worker_restarts": self._fleet.restarts,
            }
        )

    @property
    def _stops(self) -> bool:
        return self._agent.stop_training or self._interrupted.is_set()

    def _collect(self) -> list[Episode]:
        """Stores what arrived; waits until something did, or until there is something else to do."""
        while True:
            self._order()
            arrivals = self._fleet.arrivals(0.0 if self._limit.due else WAIT)
            ended = [episode for lane, reply in arrivals for episode in self._count(lane, reply)]
            if arrivals or self._limit.due or self._interrupted.is_set():
                self._order()
                return ended

    def _order(self) -> None:
        """Gives the workers new orders, unless they are too far ahead of the learner."""
        if self._limit.may_collect:
            self._fleet.order(*self._newest_weights(), self._next_order)

    def _count(self, lane: int, reply: Any) -> list[Episode]:
        """Counts what a worker reports; returns the episodes that ended."""
        agent, summary = self._agent, reply.summary
        ended = self._store.take(lane, reply)
        agent.collector.begun(lane, summary.episodes)
        if self._rate is None:
            self._limit.earn(scheduled_updates(agent.schedule, agent.draw.sampler, ended))
        else:
            self._limit.earn(proportional_updates(agent.schedule, self._rate, ended))
        return [Episode(lane, *episode) for episode in zip(summary.returns, summary.lengths, strict=True)]

    def _learn(self, due: int) -> dict[str, float]:
        """Makes some of the updates that are due, so few that what arrives meanwhile does not wait for long."""
        updates = self._store.ready(min(due, LARGEST_CHUNK))
        if not updates:
            return {}
        self._limit.spend(updates)
        return self._agent.learn(updates=updates)

    def _newest_weights(self) -> tuple[Any, int]:
        """A reference to the weights that workers act with now, and their version."""
        if self._agent.updates - self._sent >= self._options.variable_update_period:
            self._version, self._sent = self._version + 1, self._agent.updates
            self._reference = ray.put(self._weights())
        return self._reference, self._version

    def _next_order(self, lane: int) -> Order:
        agent, steps = self._agent, self._options.chunk
        issued = agent.schedule.env_steps + self._fleet.in_flight
        at_random = min(max(agent.schedule.start_steps - issued, 0), steps)
        agent.collector.make_room(lane)
        factor = agent.behaviour.exploration.factor(agent.schedule.env_steps)
        return Order(steps, at_random, factor, int(agent.collector.episodes[lane]))
