"""Whether an environment keeps a clock, and whether learning keeps up with it: `tfdpg check ENV --realtime HZ`."""

import copy
import gc
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.checking.report import Fact
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.findings import Finding, malformed_reset, malformed_step
from tfdpg.spec import Packed, Spec
from tfdpg.training.threads import freeze_objects, real_time_priority

SECONDS = 10.0
"""The duration of the steps at the given rate, unless their number is given."""
RESET_SECONDS = 60.0
"""The environment is not reset again after resets have taken this long."""
LATE = 0.01
"""The largest share of steps that may return more than a period late."""
TOLERANCE = 0.1
"""The part of a period by which the environment's own may differ from it, and beyond which a step counts as later."""
LEARNING = 0.8
"""The part of the updates that are possible on this machine alone that learning makes beside a control loop."""
UPDATES = 50
"""The number of updates that are timed together."""
ROWS = 4000
"""The size of the replay buffer of the agent whose updates are timed, which stays empty."""


def steps_of(hz: float, steps: int | None) -> int:
    """Return the largest number of steps that a check takes."""
    return steps or max(10, round(SECONDS * hz))


def real_time(env: gym.Env, hz: float, steps: int, seed: int) -> Iterator[Fact | Finding]:
    """Time the updates of an agent, then the steps and resets of an environment, and report both.

    The updates come first, so that a machine does not wait between its last step and the end of the check.

    Args:
        env: the environment. It is reset, and takes random steps.
        hz: the number of steps per second that it is to take.
        steps: the largest number of steps. Stepping ends when they have taken twice the time that they should.
        seed: seeds the resets and the actions.
    """
    name, seconds = _seconds_per_update(Spec(env.observation_space, env.action_space))
    yield from _report_updates(name, seconds, hz)
    freeze_objects()  # so that collecting the garbage of an environment does not search TensorFlow's objects
    try:
        with real_time_priority() as is_allowed:
            times, resets = _take_steps(env, steps, 2 * steps / hz, seed)
    finally:
        gc.unfreeze()
    refused = "real-time priority is not allowed, so other threads may delay actions by some milliseconds"
    yield Fact("priority", "real-time priority is allowed" if is_allowed else refused)
    yield from _report_steps(times, 1 / hz)
    spans = " to ".join(f"{each:.2g}" for each in (min(resets), max(resets)))
    yield Fact("resets", f"{len(resets)}; each takes {spans} s")


def _take_steps(env: gym.Env, steps: int, seconds: float, seed: int) -> tuple[np.ndarray, list[float]]:
    """Take random steps.

    Returns:
        When each step was called and when it returned, `[steps, 2]`, with a row of NaN for each reset between two
        steps; and the durations of all resets, at least two of them unless the first one was long. All in seconds.

    Raises:
        ValueError: the environment returned something else than Gymnasium's API says.
    """
    actions = copy.deepcopy(env.action_space)
    actions.seed(seed)
    times: list[tuple[float, float]] = []
    resets: list[float] = []

    def reset() -> None:
        began = time.perf_counter()
        result = env.reset(seed=seed + len(resets))
        resets.append(time.perf_counter() - began)
        _refuse(malformed_reset(result))

    reset()
    taken = 0
    until = time.perf_counter() + seconds
    while taken < steps and time.perf_counter() < until:
        action = actions.sample()
        called = time.perf_counter()
        result = env.step(action)
        times.append((called, time.perf_counter()))
        taken += 1
        _refuse(malformed_step(result))
        if result[2] or result[3]:
            if sum(resets) > RESET_SECONDS:
                break
            reset()
            until += resets[-1]
            times.append((np.nan, np.nan))
    if len(resets) < 2 and resets[0] <= RESET_SECONDS:
        reset()
    return np.array(times), resets


def _refuse(found: Finding | None) -> None:
    if found is not None:
        raise ValueError(str(found))


def _report_steps(times: np.ndarray, wanted: float) -> Iterator[Fact | Finding]:
    """Report the times of steps, where the period should be `wanted` seconds."""
    durations = times[:, 1] - times[:, 0]
    durations = 1000 * durations[np.isfinite(durations)]
    periods = 1000 * np.diff(times[:, 1])
    periods = periods[np.isfinite(periods)] if np.isfinite(periods).any() else durations
    wanted *= 1000
    period = float(np.median(periods))
    p50, p99 = np.percentile(durations, (50, 99))
    what = f"p50 {_short(p50)}, p99 {_short(p99)}, max {_short(durations.max())} ms"
    yield Fact("step time", f"{what}, in {len(durations):,} steps")
    hz = f"{_short(1000 / wanted)} Hz"
    if period < TOLERANCE * wanted:
        yield Fact("period", f"none: `step` returns at once, after {_short(p50)} ms")
        yield Finding(
            f"`step` returns at once, after {_short(p50)} ms: the environment does not wait for a clock of {hz}.",
            f"Let `step` send the action, sleep until the next tick of a clock, {_short(wanted)} ms after the last "
            "one, and then read the observation.",
        )
    else:
        yield Fact(
            "period",
            f"{_short(period)} ms between the returns of steps, which is {_short(1000 / period)} Hz",
        )
        jitter = np.abs(periods - period)
        later = 100 * np.mean(periods > (1 + TOLERANCE) * period)
        what = f"p99 {_short(np.percentile(jitter, 99))}, max {_short(jitter.max())} ms"
        yield Fact(
            "jitter",
            f"{what}; {_short(later)} % of the steps are late by more than {100 * TOLERANCE:.0f} % of it",
        )
        if abs(period - wanted) > TOLERANCE * wanted:
            yield Finding(
                f"The period of the environment is {_short(period)} ms, not the {_short(wanted)} ms of {hz}.",
                f"Check it at the rate that it keeps, `--realtime {1000 / period:.3g}`, or change its clock. If "
                "`step` takes longer than a period, find out what it waits for.",
            )
    late = np.mean(periods > period + max(period, wanted))
    if late > LATE:
        yield Finding(
            f"{_short(100 * late)} % of the steps return more than a period late, the latest by "
            f"{_short(periods.max() - period)} ms.",
            "Find out what `step` waits for, such as a driver, a network or another program on this machine; or choose "
            "a lower rate.",
        )


def _report_updates(name: str, seconds: float, hz: float) -> Iterator[Fact | Finding]:
    """Report whether learning can make an update per step, where an update takes this many seconds."""
    busy = seconds * hz
    ratio = LEARNING / busy
    is_possible = ratio >= 1
    yield Fact("updates", f"{_short(1000 * seconds)} ms each, for {name} with its default options and nothing else")
    needed = f"one update per step takes {_short(100 * busy)} % of the time of one core"
    largest = f"the largest ratio is about {ratio:.2g} updates per step"
    yield Fact("ratio", f"at {_short(hz)} Hz, {needed}: {'possible' if is_possible else 'not possible'}; {largest}")
    if not is_possible:
        yield Finding(
            f"Learning is too slow for one update per step at {_short(hz)} Hz: {largest}.",
            "Make fewer updates per step (`gradient_steps` updates after every `update_every` steps) or smaller ones "
            "(`batch_size`, `hidden_units`), or choose a lower rate.",
        )


def _seconds_per_update(spec: Spec) -> tuple[str, float]:
    """Return the name of an agent that supports the spaces, and how long one of its updates takes, in seconds."""
    import_tensorflow()
    from tfdpg.agents import agent_class

    name = "TD3" if spec.actions is None else "ACER"
    build: Any = agent_class(name)
    agent = build(spec, replay_size=ROWS)
    learner = agent.learner
    learner.remote_replay = _Examples(agent.data.example(UPDATES))
    seconds = []
    with learner.flat_state(True):
        learner.compile()
        for _ in range(6):
            began = time.perf_counter()
            learner.run_update_phase(UPDATES)
            seconds.append((time.perf_counter() - began) / UPDATES)
    return name, float(np.median(seconds[1:]))


class _Examples:
    """The same minibatches for all updates, see `tfdpg.training.learning.learner.Minibatches`."""

    def __init__(self, packed: Packed):
        self._packed = packed

    def update_statistics(self) -> None:
        pass

    def sample(self, update: int, count: int) -> Packed:
        return tuple(part[:count] for part in self._packed)

    def update_priorities(self, errors: np.ndarray) -> None:
        pass

    def return_range(self) -> tuple[float, float]:
        return 0.0, 0.0


def _short(value: Any) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"
