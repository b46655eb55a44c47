"""The learner: sends requests to the workers, stores their steps, and makes the updates that these have earned."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import ray

from tfdpg.agents.agent import Agent
from tfdpg.distributed.liveness import ControlStore, LivenessMonitor
from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import check, policy_for_workers, worker_policies
from tfdpg.distributed.processes import connected, start_ray_actor, unwrapped_ray_errors
from tfdpg.distributed.rates import RateLimiter, proportional_updates, scheduled_rate, scheduled_updates
from tfdpg.distributed.storage import LocalReplay, ShardedReplay
from tfdpg.distributed.worker import ChunkSequence, RolloutRequest, Summary, Worker
from tfdpg.distributed.worker_pool import REQUESTS_PER_WORKER, WorkerPool
from tfdpg.training.environment.env_runner import Episode
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.learning.updates import LARGEST_CHUNK
from tfdpg.training.loop import TrainingRun, check_environments, step_logs, with_environment

MAX_WAIT = 0.2
"""Seconds to wait for a chunk between two checks for a signal."""

RATES = "updates_per_second", "worker_restarts"
"""The logs of an epoch, besides those of `Agent.fit`."""


def train(agent: Agent, make_env: Callable[[], Any], options: DistributedFitOptions) -> keras.callbacks.History:
    """Train an agent; see `tfdpg.distributed.fit`."""
    cpus = options.actors + options.replay_shards
    with with_environment(options) as options:
        check_environments(agent, options.validation_env)
        actor, weights = policy_for_workers(agent, options.worker_backend)
        check(agent, options)
        if agent.data.minibatch_builder.hindsight is not None:
            agent.relabel_with(make_env())
        training = TrainingRun(agent, options, options.epoch_limit, [*step_logs(agent.spec), *RATES])
        agent.learner.set_updates_per_phase(LARGEST_CHUNK)
        with (
            deferred_signals() as interrupted,
            unwrapped_ray_errors(),
            connected(options.ray_address, cpus),
            ControlStore.of_this_cluster() as control_store,
        ):
            liveness = LivenessMonitor(cpus, options.step_timeout, interrupted, control_store)
            shards = options.replay_shards
            with ShardedReplay(agent, shards, liveness) if shards else LocalReplay(agent) as store:
                more = agent.seed, options.max_ep_len, shards > 0, agent.data.preprocessing
                workers = [
                    start_ray_actor(Worker, env_index, make_env, behaviour, *more)
                    for env_index, behaviour in enumerate(worker_policies(agent, options, actor))
                ]
                with WorkerPool(workers, options.chunk, liveness, store) as worker_pool:
                    epochs = _EpochRunner(agent, options, store, worker_pool, weights, training, interrupted)
                    try:
                        training.run(interrupted, options.initial_epoch, epochs.run)
                    finally:
                        agent.data.schedule.plan(None)
                        agent.data.actor.refresh()
    return training.history


@dataclasses.dataclass
class _EpochRunner:
    """Runs the epochs of one call of `fit`."""

    agent: Agent
    options: DistributedFitOptions
    store: LocalReplay | ShardedReplay
    worker_pool: WorkerPool
    weights: Callable[[], Any]
    training: TrainingRun
    interrupted: Interrupt

    def __post_init__(self) -> None:
        agent = self.agent
        options = self.options
        slack = options.tolerance * agent.data.schedule.update_after
        ahead = 0.0
        self._rate: float | None = None  # updates per step; None follows the agent's schedule
        updates_per_step = scheduled_rate(agent.data.schedule)
        if options.samples_per_insert is not None:
            self._rate = updates_per_step = options.samples_per_insert / agent.options.batch_size
            ahead = slack * updates_per_step
        in_flight = options.actors * REQUESTS_PER_WORKER * options.chunk
        self._rate_limiter = RateLimiter(ahead, updates_per_step * max(slack, in_flight))
        self._rate_limiter.earn(agent.data.schedule.release(0))
        self._chunk_sequence = ChunkSequence()
        self._released = 0  # deferred updates that the agent has released, and that have not been made
        self._version = agent.updates  # of the weights of workers: the number of updates that they have
        self._reference = ray.put(self.weights())

    def run(self, epoch: int) -> dict[str, float]:
        """Train until the environment steps of an epoch have arrived; return its logs."""
        agent = self.agent
        schedule = self.agent.data.schedule
        steps = self.options.steps_per_epoch
        limit = self.options.epoch_limit
        schedule.plan(None if limit is None else (limit - epoch) * steps)
        agent.learner.epoch_metrics.reset()
        first = schedule.env_steps
        updates = agent.updates
        began = time.perf_counter()
        episodes: list[Episode] = []
        callbacks = self.training.callbacks
        self.training.time_budget.begin_epoch()
        while schedule.env_steps - first < steps and not self._should_stop:
            callbacks.on_train_batch_begin(min(schedule.env_steps - first, steps - 1))
            finished = self._collect()
            episodes += finished
            logs = self._learn(self._due) | {"env_steps": schedule.env_steps}
            if finished:
                logs["return"] = float(np.mean([episode.episode_return for episode in finished]))
            callbacks.on_train_batch_end(max(0, min(schedule.env_steps - first, steps) - 1), logs)
            self.training.measure()
        while self._learn(self._rate_limiter.owed) and not self._should_stop:
            pass
        if self._defers:  # they are saved with the agent
            agent.data.schedule.deferred += self._rate_limiter.owed
            self._rate_limiter.spend(self._rate_limiter.owed)
        seconds = time.perf_counter() - began
        return (
            summarise(episodes, agent.spec.has_goals)
            | agent.learner.epoch_metrics.summary()
            | {
                "env_steps": schedule.env_steps,
                "steps_per_second": (schedule.env_steps - first) / seconds,
                "updates_per_second": (agent.updates - updates) / seconds,
                "worker_restarts": self.worker_pool.restarts,
            }
        )

    @property
    def _defers(self) -> bool:
        """Whether no updates are made now; an agent that defers again has its released updates made first."""
        return self.agent.defers_updates and self._released <= 0

    @property
    def _due(self) -> int:
        """The updates to make now; 0 while the agent defers them."""
        return 0 if self._defers else self._rate_limiter.due

    @property
    def _should_stop(self) -> bool:
        return self.agent.stop_training or self.interrupted.is_set() or self.training.time_budget.is_up()

    def _collect(self) -> list[Episode]:
        """Wait until steps arrive, updates are due, or a signal is received. Return the episodes that ended."""
        while True:
            self._send_requests()
            replies = self.worker_pool.collect_replies(0.0 if self._due else MAX_WAIT)
            finished = [episode for reply in replies for episode in self._receive(*reply)]
            if replies or self._due or self._should_stop:
                self._send_requests()
                return finished

    def _send_requests(self) -> None:
        """Send requests to the workers, with the newest weights, unless they are too far ahead of the learner."""
        if not (self._rate_limiter.may_collect or self._defers):
            return
        new_updates = self.agent.updates - self._version
        if new_updates >= self.options.variable_update_period or (new_updates and self._defers):
            self._version = self.agent.updates
            self._reference = ray.put(self.weights())
        self.worker_pool.send_requests(self._reference, self._version, self._next_request)

    def _next_request(self, env_index: int) -> RolloutRequest:
        agent = self.agent
        steps = self.options.chunk
        requested = agent.data.schedule.env_steps + self.worker_pool.in_flight
        random_steps = min(max(agent.data.schedule.start_steps - requested, 0), steps)
        agent.data.collector.ensure_env_index(env_index)
        factor = agent.data.behaviour.exploration.factor(agent.data.schedule.env_steps)
        return RolloutRequest(steps, random_steps, factor, int(agent.data.collector.episodes[env_index]))

    def _receive(self, env_index: int, summary: Summary, rows: Any) -> list[Episode]:
        """Store and count the steps of a chunk, and return the episodes that ended."""
        agent = self.agent
        is_next, ended = self._chunk_sequence.advance(env_index, summary)
        self.store.receive(env_index, summary, rows, is_next)
        agent.data.collector.set_episodes_begun(env_index, summary.episodes)
        if agent.data.preprocessing is not None:
            agent.data.preprocessing.flagged |= summary.flagged
        if self._rate is None:
            earned = scheduled_updates(agent.data.schedule, agent.data.minibatch_builder.sampler, ended)
        else:
            earned = proportional_updates(agent.data.schedule, self._rate, ended)
        self._rate_limiter.earn(earned)
        finished = [episode._replace(env_index=env_index) for episode in summary.finished]
        deferred = agent.defers_updates
        for episode, first_version in zip(finished, summary.first_versions, strict=True):
            agent.learner.end_episode(episode, first_version)
        if deferred and not agent.defers_updates:
            self._rate_limiter.earn(agent.data.schedule.release(0))
            self._released = self._rate_limiter.owed
        return finished

    def _learn(self, due: int) -> dict[str, float]:
        """Make a limited number of the updates that are due, so that steps that arrive meanwhile are soon stored."""
        updates = 0 if self._defers else self.store.ready(min(due, LARGEST_CHUNK))
        if not updates:
            return {}
        self._rate_limiter.spend(updates)
        self._released -= updates
        return self.agent.learn(updates=updates)
