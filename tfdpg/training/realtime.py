"""Training on a real machine: the control loop in the main thread, and learning in another one."""

import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from tfdpg.arguments import reject, warn
from tfdpg.environments import close
from tfdpg.spec import Spec
from tfdpg.training.environment.env_runner import Episode, Interrupted, Step
from tfdpg.training.evaluation import run_episodes, summarise
from tfdpg.training.lateness import Lateness
from tfdpg.training.learning.updates import SHARED_CHUNK
from tfdpg.training.step_loop import StepLoop
from tfdpg.training.threads import Follower, freeze_objects, lower_priority, real_time_priority, short_switch_interval
from tfdpg.training.trained_agent import AgentCallback

LARGEST_LAG = 1000
"""The most updates that are made later, if learning is slower than its schedule; further ones are not made. Updates
that become due together are never dropped."""
RESET_SECONDS = 1.0
"""The number of seconds after which the progress bar says that the environment is being reset."""
SHORT_STEP = 1e-3
"""A machine whose steps take fewer seconds on average is one without a clock, if learning has no time beside it."""
LOGS = (
    *("updates_per_step_wanted", "updates_per_step"),
    *("overhead_ms_p99", "overhead_ms_max", "late_steps", "held_steps", "interventions"),
)
"""The logs of an epoch, in addition to those of `StepLoop`."""


def check_safe_action(spec: Spec, given: Sequence[float] | None) -> np.ndarray | None:
    """Return the option `safe_action` as an array `[act_dim]`; None if there is none.

    Raises:
        ValueError: it is not an action of the action space.
    """
    if given is None:
        return None
    values = np.array(given, np.float32)
    if values.shape != (spec.act_dim,) or not ((values >= spec.low) & (values <= spec.high)).all():
        raise reject("safe_action", f"a sequence of length {spec.act_dim}, from {spec.low} to {spec.high}", given)
    return values


class RealTimeLoop(StepLoop):
    """Steps the environment in this thread, while another thread makes updates, evaluates and calls callbacks.

    The epochs are those of the learner's thread: an epoch ends when the learner finds that its steps were taken. The
    two threads share the agent's data. Its `lock` is held while a step is stored and the next action is chosen, while
    the rows of minibatches are sampled, while the policy's weights are replaced, and while a checkpoint copies what may
    change.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        safe_action = check_safe_action(self._agent.spec, self._options.safe_action)
        repeated = None if safe_action is None else np.repeat(safe_action[None], self._runner.num_envs, axis=0)
        self._safe_action = None if repeated is None else self._agent.spec.to_env(repeated)
        self._evaluates_itself = self._options.validation_env is self._runner.env
        if self._evaluates_itself:
            self._training.evaluate = self._request_evaluation
        self._is_requested = threading.Event()  # the learner's thread waits for an evaluation
        self._has_scores = threading.Event()
        self._scores: dict[str, float] = {}
        self._evaluation: dict[str, Any] = {}
        self._resets_since: float | None = None
        self._largest_lag = math.inf if self._options.max_lag is None else self._options.max_lag
        self._training.before_end = self._wait_until_parked
        self._is_ready = threading.Event()  # the updates are compiled
        self._is_ending = threading.Event()  # the control loop must end
        self._has_halted = threading.Event()  # the control loop has ended
        self._is_parked = threading.Event()  # the machine has stopped
        self._has_failed = False  # whether the learner's thread ends training early
        self._has_news = threading.Event()  # a step was taken
        self._ended: deque[Episode] = deque()
        self._reported: deque[tuple[Episode, int]] = deque()  # episodes, for the agent's functions after an episode
        self._failure: BaseException | None = None  # of the control loop
        self._error: BaseException | None = None  # of the learner's thread
        self._agent.data.lateness = self._lateness = Lateness()
        self._owed = 0  # the value of `_made` before which this epoch does not end
        self._seconds = 0.0  # in `step` of the environment
        self._has_warned = False
        self._is_safe = True  # whether the last action was the safe one
        self._is_due = False  # whether an update phase is due, which may have no updates
        self._follower: Follower | None = None  # of the control loop's thread, if this has real-time priority
        self._wanted = self._made = 0  # updates of this training run
        self._first = self._agent.env_steps
        self._last_counts = self._counts(self._first)  # at the end of the last epoch

    def run(self) -> None:
        """Step the environment until training ends, and raise what ended it early."""
        with (
            self._agent.data.shared(),
            short_switch_interval(),
            self._episodes_reported(),
            real_time_priority() as is_allowed,
        ):
            self._follower = Follower(threading.get_native_id()) if is_allowed else None
            thread = threading.Thread(target=self._learn, name="tfdpg learner", daemon=True)
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
                self._is_safe = False
                self._wait_for_updates()
                with lock:
                    action = collector.act(observation, True)
            called = time.perf_counter()
            try:
                step, finished = self._runner.step(action)
            except Interrupted as interruption:
                self._restart(interruption)
                action = None
                continue
            returned = time.perf_counter()
            self._interruptions = 0
            with lock:
                packed = collector.observe(*step)
                self._release()
                self._ended += finished
                continues = not (finished or self._must_wait)
                action = collector.act(step.next_observation, True, packed) if continues else None
            self._lateness.add(called, returned)
            self._seconds += returned - called
            self._has_news.set()
            if action is None:
                self._lateness.pause()
                self._observation = self._next_observation(step) if finished else step.next_observation
        while self._evaluates_itself and not self._is_stopped:
            self._send_safe_action()
            if self._is_requested.wait(0.1):
                self._evaluate()

    def _next_observation(self, step: Step) -> Any:
        """Evaluate between two episodes, if it is time, and reset the environment; return its observations.

        After the last step, the environment is not reset.
        """
        if self._is_over:
            return None
        if not self._is_requested.is_set():
            return self._reset(lambda: self._runner.reset_ended(step))
        self._evaluate()
        return None if self._is_over else self._begin()

    def _reset(self, reset: Callable[[], Any]) -> Any:
        """Call a function that resets the environment, which may take long."""
        self._resets_since = time.monotonic()
        try:
            return reset()
        finally:
            self._resets_since = None

    def _wait_for_updates(self) -> None:
        """Wait until no more updates than `max_lag` are due and not made."""
        while self._must_wait and not self._is_stopped:
            time.sleep(0.001)

    @property
    def _must_wait(self) -> bool:
        """Whether too many updates are due; not while the learner's thread waits for the end of an episode."""
        return self._agent.data.schedule.late > self._largest_lag and not self._is_requested.is_set()

    def _release(self) -> None:
        """Count the updates that have become due. The lock is held."""
        data = self._agent.data
        schedule = data.schedule
        if schedule.is_due or schedule.has_released_updates:
            late = schedule.late
            updates = data.due_updates()
            self._is_due = True
            self._wanted += updates - late
            schedule.late = max(late, min(updates, max(LARGEST_LAG, updates - late)))

    def _request_evaluation(self, env: Any, episodes: int, **options: Any) -> dict[str, float]:
        """Let the control loop evaluate, in the learner's thread; return the scores, NaN if training ends before it."""
        self._evaluation = {"env": env, "episodes": episodes, **options}
        self._scores = summarise([], self._agent.spec.has_goals)
        self._has_scores.clear()
        self._is_requested.set()
        while not self._has_scores.wait(0.1):
            if self._has_halted.is_set() or self._time_budget.is_up():
                break
        self._is_requested.clear()
        return self._scores

    def _evaluate(self) -> None:
        """Evaluate in the environment of training, between two episodes; a signal ends it between two steps."""
        agent = cast(Any, self._agent)
        options = {"hold_steps": self._options.hold_steps, "is_stopped": lambda: self._is_stopped}
        self._is_safe = False
        try:
            episodes = list(run_episodes(agent.policy(), seed=agent.seed, **self._evaluation, **options))
            if not self._is_stopped:
                self._scores = summarise(episodes, agent.spec.has_goals)
        finally:
            self._is_requested.clear()
            self._has_scores.set()

    @property
    def _is_stopped(self) -> bool:
        """Whether the learner's thread or a signal ends training."""
        return self._is_ending.is_set() or self._interrupted.is_set()

    @property
    def _is_over(self) -> bool:
        """Whether the control loop must end."""
        schedule = self._agent.data.schedule
        has_all = schedule.total_steps is not None and schedule.env_steps >= schedule.total_steps
        return has_all or self._is_stopped

    def _begin(self) -> Any:
        """Return the first observations. Open episodes of an agent that was loaded end at their last stored step."""
        with self._agent.data.lock:
            self._agent.data.collector.close_episodes()
        return self._reset(self._runner.reset)

    def _park(self) -> None:
        """Send the safe action; close the environment after an error or a signal, also one of the learner's thread."""
        self._try(self._send_safe_action, "The safe action could not be sent")
        self._has_halted.set()
        self._has_news.set()
        if not self._is_early:
            self._is_ending.wait()
        if self._is_early:
            self._try(functools.partial(close, self._runner.env), "The environment could not be closed")
        self._is_parked.set()

    def _send_safe_action(self) -> None:
        """Send the safe action, if there is one, to an environment that has received other ones."""
        if self._safe_action is not None and not self._is_safe:
            self._is_safe = True
            self._runner.send(self._safe_action)

    @property
    def _is_early(self) -> bool:
        """Whether an error or a signal ends training."""
        failed = self._failure is not None or self._error is not None or self._has_failed
        return failed or self._interrupted.is_set()

    def _try(self, call: Callable[[], Any], what: str) -> None:
        """Call a function that stops the environment. Its error ends training, or is a note of the error that does."""
        try:
            call()
        except Exception as error:
            message = f"{what}: {type(error).__name__}: {error}"
            if self._failure is None:
                self._failure = error
                error.add_note(message)
            else:
                self._failure.add_note(message)

    def _learn(self) -> None:
        """Train in all epochs, in the learner's thread."""
        try:
            if self._follower is None:
                lower_priority()
            self._training.run(self._interrupted, self._options.initial_epoch, self.epoch)
        except BaseException as error:
            self._error = error
        finally:
            self._is_ending.set()
            self._is_ready.set()

    def _wait_until_parked(self, has_failed: bool) -> None:
        """Let the control loop end, before the callbacks at the end of training take their time."""
        self._has_failed = has_failed
        self._is_ending.set()
        self._is_ready.set()
        self._is_parked.wait()

    def _prepare(self) -> None:
        """Compile the updates and provide memory before the first step."""
        schedule, first = self._agent.data.schedule, self._agent.learner.epoch_metrics.first_step
        if not self._is_ready.is_set():
            self._agent.learner.compile()
            total = schedule.total_steps
            rows = math.inf if total is None else 2 * (total - schedule.env_steps) + self._runner.num_envs
            self._agent.replay.touch(rows)
            for callback in self._training.callbacks.callbacks:
                if isinstance(callback, AgentCallback):
                    callback.rehearse()
            freeze_objects()
            self._is_ready.set()
        begins_late = schedule.env_steps >= first + self._options.steps_per_epoch
        self._owed = self._made + schedule.late if begins_late else 0

    def epoch(self, epoch: int) -> dict[str, float]:
        """Make the updates of an epoch; return its logs."""
        logs = super().epoch(epoch)
        self._training.next_first = self._agent.learner.epoch_metrics.first_step + self._options.steps_per_epoch
        before, self._last_counts = self._last_counts, self._counts(int(logs["env_steps"]))
        taken, wanted, made, held, by_operator = np.subtract(self._last_counts, before)
        steps = max(1, taken)
        self._warn_of_clock(made / max(1, wanted))
        values = wanted / steps, made / steps, *self._lateness.end_epoch(), held, by_operator / steps
        return logs | dict(zip(LOGS, map(float, values), strict=True))

    def _warn_of_clock(self, made: float) -> None:
        """Warn, once, of a machine that does not wait, if the share of the updates that were made is small."""
        mean = self._seconds / max(1, self._agent.env_steps - self._first)
        if made < 0.5 and mean < SHORT_STEP and self._wanted and not self._has_warned:
            self._has_warned = True
            warn(
                f"The environment does not seem to wait for a clock: `step` takes {1000 * mean:.2g} ms on average, and "
                "learning has no time beside it. In real time, `step` must sleep until the next tick."
            )

    def _counts(self, steps: int) -> list[Any]:
        """Return the numbers of steps (as given: more may be taken now), updates that were due, and so on, so far."""
        runner = self._runner
        return [steps, self._wanted, self._made, runner.held_steps, runner.interventions]

    def _first_step(self) -> int:
        """The number of environment steps before this epoch: some of its steps are taken while the last one ends."""
        return super()._first_step() if self._training.next_first is None else self._training.next_first

    def _goes_on(self, until: int) -> bool:
        """Whether the epoch goes on: after the last step of training, until all updates are made.

        Evaluation and callbacks may take longer than the steps of the next epoch. That epoch ends when the updates that
        became due in the meantime are made.
        """
        schedule = self._agent.data.schedule
        with self._agent.data.lock:
            if schedule.env_steps < until:
                return True
            is_last = schedule.env_steps == schedule.total_steps
            is_open = schedule.is_due or schedule.has_released_updates or bool(self._ended or self._reported)
        return (is_last and is_open) or (self._made < self._owed and schedule.late > 0)

    def _phase(self, until: int) -> tuple[list[Episode], dict[str, float]]:
        """Wait until updates are due, and make them; return the episodes that ended and the logs of the updates."""
        agent = self._agent
        if self._follower is not None:
            self._follower.follow()
        while True:
            self._has_news.clear()
            while self._reported:
                agent.learner.end_episode(*self._reported.popleft())
            with agent.data.lock:
                self._release()
                is_due, self._is_due = self._is_due, False
            self._remark()
            has_work = is_due or agent.data.schedule.late > 0 or len(self._ended) > 0
            if has_work or self._failure or self._must_stop or not self._goes_on(until):
                break
            self._has_news.wait(0.1)
        if self._failure is not None:
            raise self._failure
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        agent.data.collector.flush(agent.data.lock, is_early=True)
        updates = min(agent.data.schedule.late, SHARED_CHUNK)
        logs = agent.learner.run_update_phase(updates)
        with agent.data.lock:
            agent.data.schedule.late -= updates
        self._made += updates
        return ended, logs

    def _remark(self) -> None:
        """Say in the progress bar that the environment is being reset, if this takes long."""
        since = self._resets_since
        is_long = since is not None and time.monotonic() - since > RESET_SECONDS
        self._training.remark("waiting for reset" if is_long else "")
