"""The learner: hands out orders, stores what arrives, and makes the updates that it earned."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import ray

from tfdpg.agents.agent import Agent
from tfdpg.distributed.chunks import RolloutRequest
from tfdpg.distributed.control_store import monitored_control_store
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import check, worker_policies
from tfdpg.distributed.policies import policy_for_workers
from tfdpg.distributed.processes import connected, unwrapped_ray_errors
from tfdpg.distributed.rates import RateLimiter, proportional_updates, scheduled_rate, scheduled_updates
from tfdpg.distributed.storage import Storage, storage
from tfdpg.distributed.worker_pool import REQUESTS_PER_WORKER, WorkerPool
from tfdpg.training.environment.env_runner import Episode
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.learning.updates import LARGEST_CHUNK
from tfdpg.training.loop import STEP_LOGS, TrainingRun, check_environments, with_environment

MAX_WAIT = 0.2
"""Seconds to wait for a chunk at most before it is looked whether there was a signal to end."""

LOGS = (*STEP_LOGS, "updates_per_second", "worker_restarts")
"""The logs of an epoch, beside what updates measure."""


def train(agent: Agent, make_env: Callable[[], Any], options: DistributedFitOptions) -> keras.callbacks.History:
    """See `tfdpg.distributed.fit`."""
    with with_environment(options) as options:
        return _train(agent, make_env, options)


def _train(agent: Agent, make_env: Callable[[], Any], options: DistributedFitOptions) -> keras.callbacks.History:
    check_environments(agent, options.validation_env)
    actor, weights = policy_for_workers(agent, options.worker_backend)
    check(agent, options)
    training = TrainingRun(agent, options, options.epochs, LOGS)
    agent.learner.set_updates_per_phase(LARGEST_CHUNK)
    cpus = options.actors + options.replay_shards
    with (
        deferred_signals() as interrupted,
        unwrapped_ray_errors(),
        connected(options.ray_address, cpus),
        monitored_control_store() as control_store,
        storage(
            agent,
            options.replay_shards,
            liveness := LivenessMonitor(cpus, options.step_timeout, interrupted, control_store),
        ) as store,
    ):
        workers = [
            store.start_worker(env_index, agent.spec, make_env, behaviour, agent.seed, options.max_ep_len)
            for env_index, behaviour in enumerate(worker_policies(agent, options, actor))
        ]
        with WorkerPool(workers, options.step_timeout, liveness) as worker_pool:
            epoch_runner = _EpochRunner(agent, options, store, worker_pool, weights, training.callbacks, interrupted)
            try:
                training.run(interrupted, options.initial_epoch, epoch_runner.epoch)
            finally:
                agent.schedule.plan(None)
                agent.actor.refresh()
    return training.history


class _EpochRunner:
    """The learning of one `fit`, which goes on from epoch to epoch."""

    def __init__(
        self,
        agent: Agent,
        options: DistributedFitOptions,
        store: Storage,
        worker_pool: WorkerPool,
        weights: Callable[[], Any],
        callbacks: keras.callbacks.CallbackList,
        interrupted: Interrupt,
    ):
        self._agent = agent
        self._options = options
        self._store = store
        self._worker_pool = worker_pool
        self._weights = weights
        self._callbacks = callbacks
        self._interrupted = interrupted
        samples = options.samples_per_insert
        self._rate = None if samples is None else samples / agent.batch_size  # None leaves it to the agent's schedule
        updates_per_step = scheduled_rate(agent.schedule) if self._rate is None else self._rate
        slack = options.tolerance * agent.schedule.update_after
        ahead = 0.0 if self._rate is None else slack * updates_per_step
        self._rate_limiter = RateLimiter(
            ahead, updates_per_step * max(slack, options.actors * REQUESTS_PER_WORKER * options.chunk)
        )
        self._version = 0
        self._sent_at_update = agent.updates
        self._updates_by_version = [agent.updates]
        self._reference = ray.put(weights())

    def epoch(self, epoch: int) -> dict[str, float]:
        """Trains until an epoch's environment steps have arrived; returns its logs."""
        agent = self._agent
        schedule = self._agent.schedule
        steps = self._options.steps_per_epoch
        schedule.plan((self._options.epochs - epoch) * steps)
        agent.epoch_metrics.reset()
        first = schedule.env_steps
        updates = agent.updates
        began = time.perf_counter()
        episodes: list[Episode] = []
        while schedule.env_steps - first < steps and not self._should_stop:
            self._callbacks.on_train_batch_begin(min(schedule.env_steps - first, steps - 1))
            ended = self._collect()
            episodes += ended
            logs = self._learn(self._due) | {"env_steps": schedule.env_steps}
            if ended:
                logs["return"] = float(np.mean([episode.episode_return for episode in ended]))
            self._callbacks.on_train_batch_end(max(0, min(schedule.env_steps - first, steps) - 1), logs)
        while self._learn(self._rate_limiter.owed) and not self._should_stop:
            pass
        seconds = time.perf_counter() - began
        return (
            summarise(episodes)
            | agent.epoch_metrics.summary()
            | {
                "env_steps": schedule.env_steps,
                "steps_per_second": (schedule.env_steps - first) / seconds,
                "updates_per_second": (agent.updates - updates) / seconds,
                "worker_restarts": self._worker_pool.restarts,
            }
        )

    @property
    def _due(self) -> int:
        """The updates to make now; 0 while the agent defers them."""
        return 0 if self._agent.defers_updates else self._rate_limiter.due

    @property
    def _should_stop(self) -> bool:
        return self._agent.stop_training or self._interrupted.is_set()

    def _collect(self) -> list[Episode]:
        """Stores what arrived; waits until something did, or until there is something else to do."""
        while True:
            self._send_requests()
            replies = self._worker_pool.collect_replies(0.0 if self._due else MAX_WAIT)
            ended = [episode for env_index, reply in replies for episode in self._count_steps(env_index, reply)]
            if replies or self._due or self._interrupted.is_set():
                self._send_requests()
                return ended

    def _send_requests(self) -> None:
        """Gives the workers new orders, unless they are too far ahead of the learner."""
        if self._rate_limiter.may_collect or self._agent.defers_updates:
            self._worker_pool.send_requests(*self._newest_weights(), self._next_request)

    def _count_steps(self, env_index: int, reply: Any) -> list[Episode]:
        """Counts what a worker reports; returns the episodes that ended."""
        agent = self._agent
        summary = reply.summary
        ended = self._store.receive(env_index, reply)
        agent.collector.set_episodes_begun(env_index, summary.episodes)
        if self._rate is None:
            self._rate_limiter.earn(scheduled_updates(agent.schedule, agent.minibatch_builder.sampler, ended))
        else:
            self._rate_limiter.earn(proportional_updates(agent.schedule, self._rate, ended))
        ends = zip(summary.returns, summary.lengths, summary.terminated, summary.truncated, strict=True)
        for end in ends:
            agent.end_episode(env_index, *end, updates=self._updates_by_version[summary.version])
        return [Episode(env_index, *episode) for episode in zip(summary.returns, summary.lengths, strict=True)]

    def _learn(self, due: int) -> dict[str, float]:
        """Makes some of the updates that are due, so few that what arrives meanwhile does not wait for long."""
        updates = 0 if self._agent.defers_updates else self._store.ready(min(due, LARGEST_CHUNK))
        if not updates:
            return {}
        self._rate_limiter.spend(updates)
        return self._agent.learn(updates=updates)

    def _newest_weights(self) -> tuple[Any, int]:
        """A reference to the weights that workers act with now, and their version."""
        if self._agent.updates - self._sent_at_update >= self._options.variable_update_period:
            self._version, self._sent_at_update = self._version + 1, self._agent.updates
            self._updates_by_version.append(self._agent.updates)
            self._reference = ray.put(self._weights())
        return self._reference, self._version

    def _next_request(self, env_index: int) -> RolloutRequest:
        agent = self._agent
        steps = self._options.chunk
        issued = agent.schedule.env_steps + self._worker_pool.in_flight
        random_steps = min(max(agent.schedule.start_steps - issued, 0), steps)
        agent.collector.ensure_env_index(env_index)
        factor = agent.behaviour.exploration.factor(agent.schedule.env_steps)
        return RolloutRequest(steps, random_steps, factor, int(agent.collector.episodes[env_index]))
