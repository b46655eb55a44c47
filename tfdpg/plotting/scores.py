"""Compare returns between environments and runs: a common scale, robust means, and confidence intervals."""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

RANDOM_AND_TD3 = {
    "Ant": (-70.0, 3942.0),
    "HalfCheetah": (-289.0, 10574.0),
    "Hopper": (18.0, 3226.0),
    "Humanoid": (123.0, 5165.0),
    "Walker2d": (3.0, 3946.0),
}
"""Published returns of random actions, and of TD3 after 1,000,000 steps, on the v4 of Gymnasium's MuJoCo tasks."""

Statistic = Callable[[np.ndarray], np.ndarray]


def task(env_id: str) -> str:
    """Return the id of an environment without its version."""
    return re.sub(r"-v\d+$", "", env_id)


def parse_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parse texts such as `Hopper-v5=18:3226`: the returns that become 0 and 1 in an environment.

    Raises:
        ValueError: a text has another form, or its range is empty or infinite.
    """
    ranges = {}
    for text in texts:
        env, _, numbers = text.rpartition("=")
        try:
            low, high = map(float, numbers.split(":"))
        except ValueError:
            low = high = math.nan
        if not (env and -math.inf < low < high < math.inf):
            raise ValueError(f"`--normalize` must be ENV=LOW:HIGH, with LOW < HIGH. Received: {text}")
        ranges[env] = low, high
    return ranges


def ranges_of(envs: Sequence[str], given: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the returns that become 0 and 1 in each environment: those given, or those of random actions and of TD3.

    The result is empty if nothing is given and all environments are dm_control tasks, whose returns share the scale 0
    to 1000.

    Raises:
        ValueError: the range of an environment is not known, or a given range is for an environment without runs.
    """
    if unused := sorted(set(given) - set(envs)):
        raise ValueError(f"`--normalize` names {unused[0]}, and the runs are of {', '.join(sorted(set(envs)))}")
    if not given and all(env.startswith("dm_control/") for env in envs):
        return {}
    known = {env: RANDOM_AND_TD3[task(env)] for env in envs if task(env) in RANDOM_AND_TD3} | dict(given)
    if missing := sorted(set(envs) - set(known)):
        wanted = " ".join(f"{env}=LOW:HIGH" for env in missing)
        raise ValueError(
            f"Returns of {', '.join(sorted(set(envs)))} have no scale in common. Give the returns that become 0 and 1, "
            f"such as those of random actions and of a known agent: --normalize {wanted}"
        )
    return known


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis without the lowest and the highest quarter, `[runs, ...]` to `[...]`.

    Of n runs, floor(n / 4) are left out at each end (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of
    the Statistical Precipice", section 4.3).
    """
    trimmed = len(values) // 4
    return np.sort(values, axis=0)[trimmed : len(values) - trimmed].mean(axis=0)


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis, `[runs, ...]` to `[...]`."""
    return values.mean(axis=0)


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % confidence interval of the mean over the first axis, by Student's t distribution.

    For the returns of n seeds with mean m and sample standard deviation s, the interval is m ± t s / √n, where t is the
    97.5 % quantile of Student's t distribution with n − 1 degrees of freedom. (A bootstrap interval of three seeds
    contains the true mean in only three of four cases.)

    Args:
        values: shape `[runs, ...]`, at least two runs.

    Returns:
        The two ends, of shape `[...]` each.
    """
    from scipy import stats

    runs = len(values)
    half = stats.t.ppf(0.975, runs - 1) * values.std(axis=0, ddof=1) / math.sqrt(runs)
    return mean(values) - half, mean(values) + half


def bootstrap_interval(
    values: np.ndarray, tasks: Sequence[Hashable], statistic: Statistic, resamples: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % bootstrap interval of a statistic over runs, stratified by task and widened for few runs.

    Each resample draws as many runs of each task as there are. With few runs, the percentile interval of the resamples
    is too narrow for two reasons: the standard deviation of the resamples is too small by a factor √((n − 1) / n), and
    the 97.5 % quantile of a normal distribution, 1.96, takes the place of t, that of Student's t distribution with
    k (n − 1) degrees of freedom, for k tasks. Here n is the number of runs of the task with the fewest. The distances
    of the ends from the statistic are therefore multiplied by √(n / (n − 1)) t / 1.96, following Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap" (arXiv 1411.5279).

    Args:
        values: shape `[runs, ...]`, at least two runs of each task.
        tasks: the task of each run.
        statistic: a function from `[runs, ...]` to `[...]`.
        resamples: number of resamples.

    Returns:
        The two ends, of shape `[...]` each.
    """
    from scipy import stats

    rng = np.random.default_rng(0)
    strata = [np.flatnonzero([each == one for each in tasks]) for one in dict.fromkeys(tasks)]
    drawn = np.concatenate([rng.choice(rows, (resamples, len(rows))) for rows in strata], axis=1)
    low, high = np.percentile([statistic(values[rows]) for rows in drawn], [2.5, 97.5], axis=0)
    fewest = min(map(len, strata))
    t_over_normal = stats.t.ppf(0.975, len(values) - len(strata)) / stats.norm.ppf(0.975)
    widening = math.sqrt(fewest / (fewest - 1)) * t_over_normal
    centre = statistic(values)
    return centre + widening * (low - centre), centre + widening * (high - centre)


def score(x: np.ndarray, y: np.ndarray, steps: float) -> float | None:
    """Return the mean of the last three evaluation returns within the first `steps` steps.

    Args:
        x: environment steps, ascending, of shape `[points]`.
        y: evaluation returns, of shape `[points]`.
        steps: the length of training at which to score.

    Returns:
        None if the curve ends before `steps`, or has no evaluation until then.
    """
    made = y[x <= steps]
    return float(made[-3:].mean()) if x[-1] >= steps and made.size else None
