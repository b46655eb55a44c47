"""The learner: hands out orders, stores what arrives, and makes the updates that it earned."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import ray

from tfdpg.agents.agent import Agent
from tfdpg.distributed.actors import connected
from tfdpg.distributed.chunks import Order
from tfdpg.distributed.fleet import IN_FLIGHT, Fleet
from tfdpg.distributed.plan import Plan
from tfdpg.distributed.policies import policy_for_workers
from tfdpg.distributed.rates import RateLimit, proportional_updates, scheduled_updates, usual_rate
from tfdpg.distributed.storage import Storage, storage
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.lanes import Episode
from tfdpg.training.learning import compile_updates
from tfdpg.training.loop import callback_list, run_step_epochs, validation
from tfdpg.training.updates import LARGEST_CHUNK

WAIT = 0.2
"""Seconds to wait for a chunk at most before it is looked whether there was a signal to end."""


def train(
    agent: Agent,
    make_env: Callable[[], Any],
    plan: Plan,
    epochs: int,
    steps_per_epoch: int,
    initial_epoch: int,
    callbacks: Sequence[keras.callbacks.Callback] | None,
    verbose: Any,
    validation_env: Any,
    validation_episodes: int,
    max_ep_len: int | None,
) -> keras.callbacks.History:
    """See `tfdpg.distributed.fit`, whose arguments these are, checked."""
    policy, weights = policy_for_workers(agent, plan.worker_backend)
    plan.check(agent.given)
    validate = validation(agent, validation_env, validation_episodes, max_ep_len)
    hooks, history = callback_list(agent, callbacks, verbose, epochs, steps_per_epoch)
    agent.stop_training, agent._initial_epoch = False, None
    agent.collector.close_episodes()
    agent._updates = agent._updates or compile_updates(agent, LARGEST_CHUNK)
    with (
        deferred_signals() as interrupted,
        connected(plan.ray_address, plan.actors + plan.replay_shards),
        storage(agent, plan.replay_shards) as store,
    ):
        workers = [
            store.start_worker(lane, agent.spec, make_env, policy, noise, agent.seed, max_ep_len)
            for lane, noise in enumerate(plan.noises(agent.given))
        ]
        with Fleet(workers) as fleet:
            run = _Run(agent, plan, store, fleet, weights, hooks, interrupted)
            try:
                run_step_epochs(agent, hooks, interrupted, initial_epoch, epochs, steps_per_epoch, run.epoch, validate)
            finally:
                agent.actor.refresh()
    return history


class _Run:
    """The learning of one `fit`, which goes on from epoch to epoch."""

    def __init__(
        self,
        agent: Agent,
        plan: Plan,
        store: Storage,
        fleet: Fleet,
        weights: Callable[[], Any],
        hooks: keras.callbacks.CallbackList,
        interrupted: Interrupt,
    ):
        self._agent, self._plan, self._store, self._fleet, self._weights = agent, plan, store, fleet, weights
        self._hooks, self._interrupted = hooks, interrupted
        self._rate = _updates_per_step(agent, plan)
        usual = usual_rate(agent.schedule) if self._rate is None else self._rate
        slack = plan.tolerance * agent.schedule.update_after
        ahead = 0.0 if self._rate is None else slack * usual
        self._limit = RateLimit(ahead, usual * max(slack, plan.actors * IN_FLIGHT * plan.chunk))
        self._version, self._sent, self._reference = 0, agent.updates, ray.put(weights())

    def epoch(self, steps: int) -> dict[str, float]:
        """Trains until `steps` environment steps have arrived; returns the epoch's logs."""
        agent, schedule = self._agent, self._agent.schedule
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
        agent.collector.make_room(lane)
        agent.collector.episodes[lane] = summary.episodes
        if self._rate is None:
            self._limit.earn(scheduled_updates(agent.schedule, agent.sampler, ended))
        else:
            self._limit.earn(proportional_updates(agent.schedule, self._rate, ended))
        return [Episode(lane, *episode) for episode in zip(summary.returns, summary.lengths, strict=True)]

    def _learn(self, due: int) -> dict[str, float]:
        """Makes some of the updates that are due, so few that what arrives meanwhile does not wait for long."""
        updates = self._store.ready(min(due, LARGEST_CHUNK))
        if not updates:
            return {}
        self._limit.spend(updates)
        return self._agent.learn(updates)

    def _newest_weights(self) -> tuple[Any, int]:
        """A reference to the weights that workers act with now, and their version."""
        if self._agent.updates - self._sent >= self._plan.variable_update_period:
            self._version, self._sent = self._version + 1, self._agent.updates
            self._reference = ray.put(self._weights())
        return self._reference, self._version

    def _next_order(self, lane: int) -> Order:
        agent, steps = self._agent, self._plan.chunk
        issued = agent.schedule.env_steps + self._fleet.in_flight
        at_random = min(max(agent.schedule.start_steps - issued, 0), steps)
        agent.collector.make_room(lane)
        factor = agent.exploration.factor(agent.schedule.env_steps)
        return Order(steps, at_random, factor, int(agent.collector.episodes[lane]))


def _updates_per_step(agent: Agent, plan: Plan) -> float | None:
    """The updates for each step that `samples_per_insert` asks for; None leaves it to the agent's schedule."""
    return None if plan.samples_per_insert is None else plan.samples_per_insert / agent.batch_size
