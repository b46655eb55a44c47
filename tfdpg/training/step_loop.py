"""The loop of `fit` that steps an environment and makes the updates that become due."""

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdpg.findings import warn_of_observations
from tfdpg.spec import Packed
from tfdpg.training.callbacks.monitors import BatchCallbacks
from tfdpg.training.environment.env_runner import EnvRunner, Episode, Interrupted
from tfdpg.training.environment.env_watch import EnvWatch
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt
from tfdpg.training.options import FitOptions
from tfdpg.training.trained_agent import TrainedAgent

if TYPE_CHECKING:
    from tfdpg.training.loop import TrainingRun

MAX_INTERRUPTIONS = 100
"""Training fails if so many steps in succession are interrupted by other calls of the environment."""


class StepLoop:
    """Steps the environment of one `fit`; its episodes continue from one epoch to the next."""

    def __init__(
        self,
        agent: TrainedAgent,
        runner: EnvRunner,
        watch: EnvWatch,
        training: "TrainingRun",
        interrupted: Interrupt,
        options: FitOptions,
    ):
        self._agent = agent
        self._runner = runner
        self._watch = watch
        self._interruptions = 0  # since the last step that was stored
        self._training = training
        self._time_budget = training.time_budget
        self._interrupted = interrupted
        self._options = options
        self._observation: Any = None
        self._packed: Packed | None = None  # the same, as the collector has stored it
        self._has_checked_observations = False

    def run(self) -> None:
        """Train in all epochs."""
        self._training.run(self._interrupted, self._options.initial_epoch, self.epoch)

    def epoch(self, epoch: int) -> dict[str, float]:
        """Take an epoch's environment steps, with the updates that become due; return its logs."""
        agent = self._agent
        schedule = agent.data.schedule
        steps = self._options.steps_per_epoch
        epoch_metrics = agent.learner.epoch_metrics
        epoch_metrics.begin(epoch, self._first_step())
        first = epoch_metrics.first_step
        began = time.perf_counter()
        taken_before = schedule.env_steps
        limit = self._options.epoch_limit
        with agent.data.lock:
            schedule.plan(None if limit is None else first + (limit - epoch) * steps - schedule.env_steps)
        batches = BatchCallbacks(self._training.callbacks)
        with agent.learner.flat_state(not batches.read_variables, self._training.show):
            self._prepare()
            self._time_budget.begin_epoch()
            while self._goes_on(first + steps) and not (agent.stop_training or self._must_stop):
                batches.begin(schedule.env_steps - first)
                ended, logs = self._phase(first + steps)
                if not self._has_checked_observations:
                    self._check_observations()
                logs["env_steps"] = schedule.env_steps
                epoch_metrics.episodes += ended
                if ended:
                    logs["return"] = summarise(ended)["return"]
                batches.end(schedule.env_steps - first - 1, logs)
                self._training.measure()
        taken = schedule.env_steps - taken_before
        seconds = time.perf_counter() - began
        return (
            summarise(epoch_metrics.episodes, agent.spec.has_goals)
            | epoch_metrics.summary()
            | {"env_steps": schedule.env_steps, "steps_per_second": taken / seconds}
        )

    def _first_step(self) -> int:
        """The number of environment steps before an epoch that begins now."""
        return self._agent.data.schedule.env_steps

    def _goes_on(self, until: int) -> bool:
        """Whether the epoch goes on, which ends at this number of environment steps."""
        return self._agent.data.schedule.env_steps < until

    def _prepare(self) -> None:
        """Reset the environment, or continue the open episodes of an agent that was loaded."""
        if self._observation is None:
            self._observation = self._begin()

    def _phase(self, until: int) -> tuple[list[Episode], dict[str, float]]:
        """Step until updates are due, and make them; return the episodes that ended and the logs of the updates."""
        agent = self._agent
        ended = self._collect_timed(until) if self._time_budget.is_limited else self._collect(until)
        return ended, agent.learner.run_update_phase(agent.learner.due_updates(), may_hold=True)

    @property
    def _must_stop(self) -> bool:
        """Whether there was a signal, or the time is up."""
        return self._interrupted.is_set() or self._time_budget.is_up()

    def _begin(self) -> Any:
        """Return the first observations, after replaying the open episodes of an agent that was loaded.

        On a real machine, these episodes end at their last stored step instead, and new ones begin.
        """
        collector = self._agent.data.collector
        runner = self._runner
        episodes = collector.open_episodes()
        if len(episodes) != runner.num_envs or runner.is_real:
            collector.close_episodes()
            return runner.reset()
        observation, mismatches = runner.replay_episodes(episodes)
        for env_index, mismatch in mismatches.items():
            warnings.warn(
                f"Sub-environment {env_index} is not deterministic: repeating the steps of the episode that was open "
                f"when the agent was saved led to {mismatch}. The episode is closed, and a new one begins.",
                stacklevel=2,
            )
        lost = [env_index for env_index, episode in enumerate(episodes) if episode is None]
        if lost:
            warnings.warn(
                f"The replay buffer does not hold the complete episodes that were open in sub-environments {lost} when "
                "the agent was saved. They are closed, and new ones begin.",
                stacklevel=2,
            )
        collector.close_episodes(np.array([*mismatches, *lost], np.int64))
        return observation

    def _check_observations(self) -> None:
        """Warn if the newest observations are far outside their space."""
        self._has_checked_observations = True
        buffer = self._agent.replay
        newest = np.arange(max(0, buffer.added - 100), buffer.added) % buffer.replay_size
        warn_of_observations(self._agent.data.spec, buffer.observation(newest))

    def _restart(self, interruption: Interrupted) -> None:
        """Begin new episodes in the sub-environments that someone else has reset or stepped."""
        self._interruptions += 1
        if self._interruptions > MAX_INTERRUPTIONS:
            raise RuntimeError(
                f"The environment evaluates on itself in each of {MAX_INTERRUPTIONS} steps, so that no step can be "
                "stored. Evaluate on a separate environment."
            ) from interruption
        with self._agent.data.lock:
            self._agent.data.collector.close_interrupted(interruption.mask, self._watch)
        self._packed = None
        self._observation = self._runner.restart(interruption.mask)

    def _collect_timed(self, until: int) -> list[Episode]:
        """Call `_collect`, and measure its time, from which that of an evaluation is estimated."""
        before = self._agent.env_steps
        ended = self._collect(until)
        steps = (self._agent.env_steps - before) / self._runner.num_envs
        longest = max([self._runner.longest_open_episode, *(episode.length for episode in ended)])
        self._time_budget.end_collection(steps, longest)
        return ended

    def _collect(self, until: int) -> list[Episode]:
        """Step until updates are due, the epoch ends or training must stop; return the episodes that ended."""
        agent = self._agent
        runner = self._runner
        schedule = agent.data.schedule
        ended: list[Episode] = []
        while True:
            try:
                step, finished = runner.step(agent.data.collector.act(self._observation, True, self._packed))
            except Interrupted as interruption:
                self._restart(interruption)
                continue
            self._packed = agent.data.collector.observe(*step)
            self._interruptions = 0
            if finished:
                ended += finished
                self._observation = runner.reset_ended(step)
                self._packed = None
            else:
                self._observation = step.next_observation
            if schedule.is_due or schedule.has_released_updates or schedule.env_steps >= until or self._must_stop:
                return ended
