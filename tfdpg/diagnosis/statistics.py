"""The arithmetic of the diagnosis: returns, ranks of features, and regressions on the replay buffer. NumPy only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DORMANT = 0.025
"""A unit is dormant if its mean activation is at most this fraction of the mean of its layer (Sokar et al. 2023)."""
RANK_LOSS = 0.01
"""The effective rank leaves out singular values that sum up to this fraction of all (Kumar et al. 2021)."""
RANDOM_FEATURES = 300
"""The number of random Fourier features of a regression."""
RIDGE = 1e-6
"""The ridge penalty of a regression, as a fraction of the number of rows."""


def discounted_returns(rewards: np.ndarray, gamma: float, last_value: float = 0.0) -> np.ndarray:
    """Return G_t = r_t + γ G_{t+1} for each step of an episode, `[steps]`.

    Args:
        rewards: the rewards, `[steps]`.
        gamma: γ.
        last_value: the value of the state after the last step; 0 if it is terminal.
    """
    returns = np.empty(len(rewards))
    following = last_value
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + gamma * following
        returns[t] = following
    return returns


def overestimation(values: np.ndarray, rewards: np.ndarray, gamma: float, terminated: bool) -> float | None:
    """Estimate by how much a critic overestimates the returns of an episode, on average.

    The returns after a truncation are unknown. The critic's own value of the last step takes their place, so that an
    error b of all values appears as b (1 − γᵏ) at k steps before the last one. The sum of the differences is therefore
    divided by the sum of 1 − γᵏ. Only steps at which γᵏ is below one half are counted.

    Args:
        values: the action values of the episode, `[steps]`.
        rewards: the rewards, `[steps]`, in the unit of the values.
        gamma: γ.
        terminated: whether the last state is terminal.

    Returns:
        The mean error; None if the episode is truncated and too short.
    """
    if terminated:
        return float(np.mean(values - discounted_returns(rewards, gamma)))
    steps = len(rewards) - 1
    own_share = gamma ** np.arange(steps, 0, -1.0)
    counted = own_share < 0.5
    if not counted.any():
        return None
    errors = values[:-1] - discounted_returns(rewards[:-1], gamma, values[-1])
    return float(errors[counted].sum() / (1 - own_share[counted]).sum())


def dormant_share(activations: np.ndarray) -> float:
    """Return the share of dormant units of a layer: mean |h_i| / mean_j |h_j| ≤ 0.025, over the rows.

    Args:
        activations: `[rows, units]`.

    Source: Sokar et al. 2023, "The Dormant Neuron Phenomenon in Deep Reinforcement Learning", definition 3.1.
    """
    sizes = np.abs(activations).mean(axis=0)
    return float(np.mean(sizes <= DORMANT * sizes.mean()))


def effective_rank(features: np.ndarray) -> int:
    """Return srank: the number of the largest singular values that sum up to 99 % of the sum of all.

    Args:
        features: `[rows, units]`.

    Source: Kumar et al. 2021, "Implicit Under-Parameterization Inhibits Data-Efficient Deep Reinforcement Learning".
    """
    singular = np.linalg.svd(features.astype(np.float64), compute_uv=False)
    if singular.sum() == 0:
        return 0
    return int(np.searchsorted(np.cumsum(singular) / singular.sum(), 1 - RANK_LOSS) + 1)


def correlation_time(series: Sequence[np.ndarray]) -> int:
    """Return the number of steps after which the correlation of values within an episode is below one half.

    Args:
        series: the values of each episode, `[steps]` each.

    Returns:
        The first such lag, at least 1; if there is none, the length of the longest episode; 0 for constant values.
    """
    mean = np.concatenate(series).mean()
    centred = [values - mean for values in series]
    variance = np.mean(np.concatenate(centred) ** 2)
    longest = max(map(len, series))
    if variance <= 1e-12 * max(mean**2, 1e-30):
        return 0
    for lag in range(1, longest):
        products = [values[lag:] * values[:-lag] for values in centred if len(values) > lag]
        if np.mean(np.concatenate(products)) < 0.5 * variance:
            return lag
    return longest


class Interval(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values and its standard error, which is infinite for a single value."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return Interval(float(np.mean(values)), float(error))


def standardized(columns: np.ndarray) -> np.ndarray:
    """Return columns `[rows, n]` with mean 0 and variance 1; constant columns become 0."""
    columns = columns.astype(np.float64)
    centred = columns - columns.mean(axis=0)
    deviation = centred.std(axis=0)
    varies = deviation > 1e-7 * (1e-30 + np.abs(columns).max(axis=0))
    return np.where(varies, centred / np.where(varies, deviation, 1), 0.0)


def smooth_basis(inputs: np.ndarray) -> np.ndarray:
    """Return functions of the rows: 1, the standardised inputs, their squares and random Fourier features.

    Args:
        inputs: `[rows, n]`.

    Source: Rahimi, Recht 2007, "Random Features for Large-Scale Kernel Machines".
    """
    x = standardized(inputs)
    x = x[:, np.any(x != 0, axis=0)]
    rng = np.random.default_rng(0)
    widths = rng.choice([1.0, 2.0, 4.0], RANDOM_FEATURES) * np.sqrt(max(x.shape[1], 1))
    frequencies = rng.standard_normal((x.shape[1], RANDOM_FEATURES)) / widths
    waves = np.cos(x @ frequencies + rng.uniform(0, 2 * np.pi, RANDOM_FEATURES))
    return np.concatenate([np.ones((len(x), 1)), x, x**2, waves], axis=1)


def residuals(basis: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return what ridge regression on a basis leaves of the targets, `[rows, n]`."""
    return targets - basis @ _fit(basis, targets)


def _fit(basis: np.ndarray, targets: np.ndarray) -> np.ndarray:
    penalty = RIDGE * len(basis) * np.eye(basis.shape[1])
    return np.linalg.solve(basis.T @ basis + penalty, basis.T @ targets)


def unexplained_share(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the share of the targets' variance that a smooth function of the inputs cannot predict on unseen rows.

    Args:
        inputs: `[rows, n]`; every second row is for fitting, the others for testing.
        targets: `[rows, m]`.

    Returns:
        `[m]`; NaN for constant targets. It is 1 at most, which is what the mean leaves: a fit that predicts worse was
        misled by rare, extreme rows, and tells nothing.
    """
    basis = smooth_basis(inputs)
    wanted = standardized(targets)
    weights = _fit(basis[::2], wanted[::2])
    tested = wanted[1::2]
    variance = tested.var(axis=0)
    share = np.mean((tested - basis[1::2] @ weights) ** 2, axis=0) / np.where(variance > 0, variance, 1)
    return np.where(variance > 0, np.minimum(share, 1), np.nan)


class Slopes(NamedTuple):
    """Coefficients of a least-squares fit, and their standard errors, `[n, m]` each."""

    values: np.ndarray
    errors: np.ndarray


def partial_slopes(basis: np.ndarray, columns: np.ndarray, targets: np.ndarray) -> Slopes:
    """Return the coefficients of columns in a regression of targets on a basis and these columns.

    The basis is removed from both first (Frisch, Waugh, Lovell). Standard errors are robust to unequal variances.

    Args:
        basis: `[rows, k]`.
        columns: `[rows, n]`.
        targets: `[rows, m]`.
    """
    both = residuals(basis, np.concatenate([columns, targets], axis=1))
    x, y = both[:, : columns.shape[1]], both[:, columns.shape[1] :]
    inverse = np.linalg.pinv(x.T @ x)
    slopes = inverse @ x.T @ y
    left = y - x @ slopes
    influence = x @ inverse  # [rows, n]
    scale = len(x) / max(len(x) - basis.shape[1] - columns.shape[1], 1)
    return Slopes(slopes, np.sqrt(scale * (influence**2).T @ left**2))


class Clipping(NamedTuple):
    """Where the effect of an action ends.

    Attributes:
        bound: the size beyond which it has no further effect, as a fraction of the action scale.
        inside: the effect of an action below that, per action scale.
        outside: the effect beyond.
    """

    bound: float
    inside: float
    outside: float


CLIPS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""The bounds at which `find_clipping` looks for an end of the effect, as fractions of the action scale."""


def find_clipping(basis: np.ndarray, action: np.ndarray, others: np.ndarray, targets: np.ndarray) -> Clipping | None:
    """Find the bound beyond which an action has no effect.

    Of all bounds, the one that fits best is tested on the target on which the action has the clearest effect.

    Args:
        basis: functions of the observations, `[rows, k]`.
        action: one component of the actions, scaled to [-1, 1], `[rows]`.
        others: the other components, `[rows, n]`.
        targets: the changes of the observations, `[rows, m]`.

    Returns:
        The bound; None if the effect continues to the bounds of the action, or is not known well enough.
    """
    basis = np.concatenate([basis, others], axis=1)
    bounds = [bound for bound in CLIPS if np.mean(np.abs(action) > bound) > 0.1]
    inner = np.stack([action, *(np.clip(action, -bound, bound) for bound in bounds)], axis=1)
    both = residuals(basis, np.concatenate([inner, targets], axis=1))
    x, y = both[:, : inner.shape[1]], both[:, inner.shape[1] :]
    sizes = np.sum(x**2, axis=0)
    if not bounds or sizes.min() < 1e-9 * len(x):
        return None
    left = np.sum(y**2, axis=0) - (x.T @ y) ** 2 / sizes[:, None]  # [bounds + 1, m]
    best, column = np.unravel_index(np.argmin(left / left[:1].clip(1e-300)), left.shape)
    if best == 0 or left[best, column] > 0.5 * left[0, column]:
        return None
    within = np.clip(action, -bounds[best - 1], bounds[best - 1])
    columns = np.stack([within, action - within], axis=1)
    slopes, errors = partial_slopes(basis, columns, targets[:, column : column + 1])
    inside, outside = slopes[:, 0]
    if abs(inside) > 10 * errors[0, 0] and abs(outside) + 3 * errors[1, 0] < 0.1 * abs(inside):
        return Clipping(bounds[best - 1], float(inside), float(outside))
    return None


def nearest(points: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest points of each query.

    Args:
        points: `[n, d]`.
        queries: `[m, d]`.
        count: the number of points.

    Returns:
        The indices of the points and their distances, `[m, count]` each, not sorted.
    """
    indices, distances = [], []
    squares = np.sum(points**2, axis=1)
    for part in np.array_split(queries, max(1, len(queries) * len(points) // 1_000_000)):
        squared = np.maximum(squares - 2 * part @ points.T + np.sum(part**2, axis=1, keepdims=True), 0)
        found = np.argpartition(squared, count - 1, axis=1)[:, :count]
        indices.append(found)
        distances.append(np.sqrt(np.take_along_axis(squared, found, axis=1)))
    return np.concatenate(indices), np.concatenate(distances)


def local_rows(coefficients: int) -> int:
    """Return the number of neighbours from which `local_slope` computes a number of coefficients."""
    return 2 * coefficients + 10


def local_slope(inputs: np.ndarray, linear: np.ndarray, column: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Return the coefficient of a column in a regression that is linear only among neighbours.

    Among the nearest neighbours of each row, a linear function of the inputs and of `linear` is removed from the column
    and from the target. Rows where much of the target is left, because it has a kink there, are not counted.

    Args:
        inputs: `[rows, n]`.
        linear: further columns, which neighbours need not share, `[rows, m]`.
        column: `[rows]`.
        target: `[rows]`; there are at least `local_rows(n + m + 1)` rows.

    Returns:
        The coefficient, and its value divided by its standard error.
    """
    x = standardized(inputs)
    free = x.shape[1] + linear.shape[1] + 1
    neighbours, _ = nearest(x, x, local_rows(free))
    penalty = 1e-9 * neighbours.shape[1] * np.eye(free)
    both = np.stack([column, target], axis=1)
    left = np.empty_like(both)
    for rows in np.array_split(np.arange(len(x)), max(1, neighbours.size * free // 1_000_000)):
        near = neighbours[rows]
        basis = np.concatenate([np.ones((*near.shape, 1)), x[near] - x[rows, None], linear[near]], axis=2)
        transposed = np.swapaxes(basis, 1, 2)
        weights = np.linalg.solve(transposed @ basis + penalty, transposed @ both[near])
        own = np.concatenate([np.ones((len(rows), 1)), np.zeros((len(rows), x.shape[1])), linear[rows]], axis=1)
        left[rows] = both[rows] - np.einsum("rk,rkt->rt", own, weights)
    sizes = np.abs(left[:, 1])
    left = left[sizes <= 5 * np.median(sizes)]
    total = np.sum(left[:, 0] ** 2)
    if total < 1e-12 * len(x):
        return 0.0, 0.0
    slope = float(left[:, 0] @ left[:, 1] / total)
    error = np.sqrt(np.sum((left[:, 0] * (left[:, 1] - slope * left[:, 0])) ** 2)) / total
    return slope, slope / max(float(error), 1e-300)
