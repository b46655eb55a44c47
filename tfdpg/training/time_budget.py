"""A time budget: training ends when only the time for the last evaluation and the callbacks after it is left."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from tfdpg.training.options import FitOptions, TrainingOptions

FIRST_CALLBACKS = 5.0
"""Seconds that callbacks are expected to take at the end of an epoch, before it was measured: an export takes most."""
FIRST_EVALUATION_SHARE = 0.1
"""The share of a budget that is kept for an evaluation before its time was measured or estimated."""
WARM_UP = 10.0
"""Seconds of updates from which the speed is measured."""
WARM_UP_SHARE = 0.05
"""The largest share of a short budget that is used to measure the speed, or expected for the first callbacks."""


class TimeBudget:
    """Ends a training run on time, and estimates how long it will be.

    The clock decides only after which step training ends, never what is learned before it. The time that is kept for
    the end is that of the longest evaluation so far, and twice that of the longest callbacks at the end of an epoch:
    once for the last epoch, and once for the end of training, where a final policy may be exported. Before the first
    evaluation, its duration is estimated from the steps that `fit` has taken so far; `fit_offline` and
    `tfdpg.distributed.fit` keep a tenth of the budget. At least half of the budget is for training.

    Args:
        options: the options of `fit` or `fit_offline`.
        unit: what is counted: environment steps or updates.
        count: returns the number of steps or updates so far.

    Attributes:
        is_limited: whether there is a budget.
        has_ended: whether the time was up, so that the last epoch may be incomplete.
    """

    def __init__(self, options: TrainingOptions, unit: str, count: Callable[[], int]):
        self._options = options
        self._unit = unit
        self._count = count
        self._first = count()
        limit = options.epoch_limit
        first_epoch = options.initial_epoch if isinstance(options, FitOptions) else 0
        self._most = math.inf if limit is None else (limit - first_epoch) * options.steps_per_epoch
        self.is_limited = options.minutes is not None
        self._seconds = 60 * (options.minutes or math.inf)
        self._began = self.now()
        self.has_ended = False
        self._evaluation = 0.0
        self._is_known = options.validation_env is None  # whether `_evaluation` was measured or estimated
        self._callbacks = min(FIRST_CALLBACKS, WARM_UP_SHARE * self._seconds)
        self._is_measured = False
        self._longest_episode = 0
        self._collected = 0.0, 0.0  # seconds and steps of each sub-environment
        self._longest_phases = [0.0, 0.0]  # in the previous epoch and in this one
        self._phase_began = self._began
        self._since: tuple[float, int] | None = None  # the time and the step from which the speed is measured
        self._excluded = 0.0  # seconds of evaluations and callbacks since then
        self._has_plan = False

    def now(self) -> float:
        """Return the time of a clock in seconds."""
        return time.monotonic()

    def is_up(self) -> bool:
        """Return whether training must end now. At least one step is taken."""
        if self.is_limited and not self.has_ended:
            is_over = self.now() >= self._last_step_at() - max(self._longest_phases)
            self.has_ended = is_over and self._count() > self._first
        return self.has_ended

    def _last_step_at(self) -> float:
        evaluation = self._evaluation if self._is_known else FIRST_EVALUATION_SHARE * self._seconds
        at_end = min(evaluation + 2 * self._callbacks, self._seconds / 2)
        return self._began + self._seconds - at_end

    def begin_epoch(self) -> None:
        """Begin the first phase of an epoch."""
        self._phase_began = self.now()
        self._longest_phases = [self._longest_phases[1], 0.0]

    def end_phase(self, has_updates: bool) -> str:
        """Measure the time of an update phase, with that of the steps before it unless `end_collection` was called.

        Args:
            has_updates: whether there was an update.

        Returns:
            How long training will be, as a line of text, the first time that it is known; otherwise "".
        """
        now = self.now()
        seconds = now - self._phase_began
        self._phase_began = now
        if has_updates and self._since is None:  # the first update was compiled in this phase
            self._since = now, self._count()
            self._excluded = 0.0
            return ""
        self._longest_phases[1] = max(self._longest_phases[1], seconds)
        return "" if self._since is None or self._has_plan else self._plan(now, *self._since)

    def _plan(self, now: float, began: float, first: int) -> str:
        """Return the plan, from the speed since the time `began` and the step `first`; "" if that is too short."""
        steps = self._count()
        seconds = now - began - self._excluded
        if steps == first or seconds < min(WARM_UP, WARM_UP_SHARE * self._seconds):
            return ""
        self._has_plan = True
        seconds_per_step = seconds / (steps - first)
        seconds_per_step += (self._evaluation + self._callbacks) / self._options.steps_per_epoch
        planned = steps - self._first + max(0.0, self._last_step_at() - now) / seconds_per_step
        minutes = f"{self._seconds / 60:.3g} minutes"
        if planned >= self._most:
            return f"Plan: {self._most:,} {self._unit} in less than {minutes}"
        return f"Plan: about {int(float(f'{planned:.2g}')):,} {self._unit} in {minutes}"

    def end_collection(self, steps: float, episode_length: int) -> None:
        """Measure the time of the steps before an update phase, and estimate that of an evaluation from it.

        Args:
            steps: the number of steps of each sub-environment.
            episode_length: the number of steps of the longest episode among the newest.
        """
        now = self.now()
        if not self._is_measured and self._options.validation_env is not None:
            self._longest_episode = max(self._longest_episode, episode_length)
            self._collected = self._collected[0] + now - self._phase_began, self._collected[1] + steps
            seconds_per_step = self._collected[0] / self._collected[1]
            self._evaluation = self._options.validation_episodes * self._longest_episode * seconds_per_step
            self._is_known = True
        self._phase_began = now  # collection can end at each step, and only an update phase cannot be interrupted

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Measure the time of an evaluation."""
        began = self.now()
        yield
        self._evaluation = max(self._evaluation * self._is_measured, self._measured(began))
        self._is_known = True

    @contextlib.contextmanager
    def callbacks(self) -> Iterator[None]:
        """Measure the time of the callbacks at the end of an epoch, after its evaluation."""
        began = self.now()
        yield
        self._callbacks = max(self._callbacks * self._is_measured, self._measured(began))
        self._is_measured = True

    def _measured(self, began: float) -> float:
        seconds = self.now() - began
        self._excluded += seconds
        return seconds
