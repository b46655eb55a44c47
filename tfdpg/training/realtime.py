"""Training on a real machine: the control loop in the main thread, and learning in another one."""

import contextlib
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tfdpg.training.environment.env_runner import Episode, Interrupted
from tfdpg.training.lateness import Lateness
from tfdpg.training.learning.updates import LARGEST_CHUNK
from tfdpg.training.step_loop import StepLoop

SWITCH_INTERVAL = 2e-4
"""Seconds after which a thread that runs Python code lets another one run. Python's default of 5 ms would delay each
action by as much."""
NICENESS = 10
"""How much lower the priority of the learner's thread is, so that it does not delay actions on a single core."""
LARGEST_LAG = 1000
"""The most updates that are made later, if learning is slower than its schedule; further ones are not made."""
LOGS = (
    *("updates_per_step_wanted", "updates_per_step"),
    *("overhead_ms_p99", "overhead_ms_max", "late_steps", "interventions"),
)
"""The logs of an epoch, in addition to those of `StepLoop`."""


class RealTimeLoop(StepLoop):
    """Steps the environment in this thread, while another thread makes updates, evaluates and calls callbacks.

    The epochs are those of the learner's thread: an epoch ends when the learner finds that its steps were taken. The
    two threads share the agent's data. Its `lock` is held while a step is stored and the next action is chosen, while a
    minibatch is sampled, while the policy's weights are replaced, and while a checkpoint copies what may change.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._training.before_end = self._wait_until_parked
        self._is_ready = threading.Event()  # the updates are compiled
        self._is_ending = threading.Event()  # the control loop must end
        self._is_parked = threading.Event()  # the control loop has ended
        self._has_news = threading.Event()  # a step was taken
        self._ended: deque[Episode] = deque()
        self._reported: deque[tuple[Episode, int]] = deque()  # episodes, for the agent's functions after an episode
        self._failure: BaseException | None = None  # of the control loop
        self._error: BaseException | None = None  # of the learner's thread
        self._agent.data.lateness = self._lateness = Lateness()
        self._lag = 0  # updates that are due, and not made yet
        self._wanted = self._made = 0  # updates in this epoch
        self._next_first: int | None = None  # the first step of the next epoch

    def run(self) -> None:
        """Step the environment until training ends, and raise what ended it early."""
        thread = threading.Thread(target=self._learn, name="tfdpg learner", daemon=True)
        with self._agent.data.shared(), _short_switch_interval(), self._episodes_reported():
            thread.start()
            try:
                self._is_ready.wait()
                self._control()
            except BaseException as error:
                self._failure = error
            finally:
                self._park()
            thread.join()
        if error := self._error or self._failure:
            raise error

    @contextlib.contextmanager
    def _episodes_reported(self) -> Iterator[None]:
        """Inside the context, the learner's thread calls the agent's functions after an episode."""
        collector, learner = self._agent.data.collector, self._agent.learner
        learner.acting_updates = learner.updates
        with collector.reporting_to(lambda *report: self._reported.append(report), lambda: learner.acting_updates):
            yield

    def _control(self) -> None:
        """Step the environment until training ends."""
        collector, lock = self._agent.data.collector, self._agent.data.lock
        action = None
        while not self._is_over:
            if action is None:
                observation = self._begin() if self._observation is None else self._observation
                with lock:
                    action = collector.act(observation, True)
            called = time.perf_counter()
            try:
                step, finished = self._runner.step(action)
            except Interrupted as interruption:
                with lock:
                    self._restart(interruption)
                action = None
                continue
            returned = time.perf_counter()
            self._interruptions = 0
            with lock:
                packed = collector.observe(*step)
                action = None if finished else collector.act(step.next_observation, True, packed)
            self._lateness.add(called, returned)
            self._ended += finished
            self._has_news.set()
            if finished:
                self._lateness.pause()
                self._observation = self._runner.reset_ended(step)

    @property
    def _is_over(self) -> bool:
        """Whether the control loop must end."""
        schedule = self._agent.data.schedule
        has_all = schedule.total_steps is not None and schedule.env_steps >= schedule.total_steps
        return has_all or self._is_ending.is_set() or self._interrupted.is_set()

    def _begin(self) -> Any:
        """Return the first observations. Open episodes of an agent that was loaded end at their last stored step."""
        with self._agent.data.lock:
            self._agent.data.collector.close_episodes()
        return self._runner.reset()

    def _park(self) -> None:
        """Send the safe action; close the environment after an error or a signal. Their errors become notes."""
        is_early = self._failure or self._is_ending.is_set() or self._interrupted.is_set()
        try:
            self._runner.park(self._options.safe_action, closes=bool(is_early))
        except Exception as error:
            if self._failure is None:
                self._failure = error
            else:
                self._failure.add_note(f"The environment could not be stopped: {error}")
        self._is_parked.set()
        self._has_news.set()

    def _learn(self) -> None:
        """Train in all epochs, in the learner's thread."""
        try:
            _lower_priority()
            self._training.run(self._interrupted, self._options.initial_epoch, self.epoch)
        except BaseException as error:
            self._error = error
        finally:
            self._is_ending.set()
            self._is_ready.set()

    def _wait_until_parked(self) -> None:
        """Let the control loop end, before the callbacks at the end of training take their time."""
        self._is_ending.set()
        self._is_ready.set()
        self._is_parked.wait()

    def _prepare(self) -> None:
        """Compile the updates before the first step."""
        if not self._is_ready.is_set():
            self._agent.learner.compile()
            gc.collect()
            self._is_ready.set()

    def epoch(self, epoch: int) -> dict[str, float]:
        """Make the updates of an epoch; return its logs."""
        self._wanted = self._made = 0
        before, by_operator = self._agent.env_steps, self._runner.interventions
        logs = super().epoch(epoch)
        steps = max(1, self._agent.env_steps - before)
        shares = (count / steps for count in (self._wanted, self._made, self._runner.interventions - by_operator))
        wanted, made, interventions = shares
        return logs | dict(zip(LOGS, (wanted, made, *self._lateness.end_epoch(), interventions), strict=True))

    def _first_step(self) -> int:
        """The number of environment steps before this epoch: some of its steps are taken while the last one ends."""
        first = super()._first_step() if self._next_first is None else self._next_first
        self._next_first = first + self._options.steps_per_epoch
        return first

    def _goes_on(self, until: int) -> bool:
        """Whether the epoch goes on: after the last step of training, until all updates are made."""
        schedule = self._agent.data.schedule
        has_updates = self._lag > 0 or schedule.is_due or schedule.has_released_updates
        return schedule.env_steps < until or (schedule.env_steps == schedule.total_steps and has_updates)

    def _phase(self, until: int) -> tuple[list[Episode], dict[str, float]]:
        """Wait until updates are due, and make them; return the episodes that ended and the logs of the updates."""
        agent = self._agent
        while True:
            self._has_news.clear()
            while self._reported:
                agent.learner.end_episode(*self._reported.popleft())
            with agent.data.lock:
                is_due = agent.data.schedule.is_due or agent.data.schedule.has_released_updates
                due = agent.data.due_updates()
            self._wanted += due
            self._lag = min(self._lag + due, LARGEST_LAG)
            if is_due or self._lag or self._failure or self._must_stop or not self._goes_on(until):
                break
            self._has_news.wait(0.1)
        if self._failure is not None:
            raise self._failure
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        updates = min(self._lag, LARGEST_CHUNK)
        logs = agent.learner.run_update_phase(updates)
        self._lag -= updates
        self._made += updates
        return ended, logs


@contextlib.contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let Python's threads take turns often, and collect garbage only among new objects, inside the context."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


def _lower_priority() -> None:
    """Lower the priority of the calling thread, on systems where threads have one."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
