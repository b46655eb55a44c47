"""Quantiles and conditional values at risk against numbers by hand and against samples."""

import numpy as np
import pytest

from tfdpg import losses

ATOMS = np.array([-2.0, 0.0, 1.0, 5.0])
PROBS = np.array([[0.1, 0.2, 0.3, 0.4]])


def test_categorical_by_hand():
    levels = np.array([0.05, 0.1, 0.25, 0.6, 0.61, 1.0])
    np.testing.assert_allclose(
        losses.categorical_quantiles(ATOMS, PROBS, levels).numpy()[0, [0, 2, 4, 5]], [-2, 0, 5, 5]
    )
    cvar = losses.categorical_cvar(ATOMS, PROBS, levels)
    mean = PROBS[0] @ ATOMS
    expected = [-2, -2, -0.2 / 0.25, (-0.2 + 0.3) / 0.6, (-0.2 + 0.3 + 0.05) / 0.61, mean]
    np.testing.assert_allclose(cvar, [expected], rtol=1e-4)


@pytest.mark.parametrize("stddevs", [[0.5, 2.0, 0.01], [1e-3, 1e-3, 1e-3]])
def test_mixtures_equal_large_samples(stddevs):
    rng = np.random.default_rng(0)
    weights = np.array([0.2, 0.5, 0.3])
    means = np.array([-10.0, 0.0, 4.0])
    chosen = rng.choice(3, 400_000, p=weights)
    samples = np.sort(rng.normal(means[chosen], np.array(stddevs)[chosen]))
    levels = np.array([0.05, 0.1, 0.35, 0.5, 0.9])
    given = [np.array([values]) for values in (weights, means, stddevs)]
    quantiles = losses.mixture_quantiles(*given, levels).numpy()[0]
    np.testing.assert_allclose(quantiles, np.quantile(samples, levels), atol=0.05)
    tails = [samples[: int(level * len(samples))].mean() for level in levels]
    np.testing.assert_allclose(losses.mixture_cvar(*given, levels).numpy()[0], tails, atol=0.03)


def test_one_gaussian_has_the_textbook_s_values():
    given = [np.array([[1.0]]), np.array([[3.0]]), np.array([[2.0]])]
    np.testing.assert_allclose(losses.mixture_quantiles(*given, np.array([0.05])), [[3 - 2 * 1.6448536]], rtol=1e-6)
    np.testing.assert_allclose(losses.mixture_cvar(*given, np.array([0.05])), [[3 - 2 * 2.0627128]], rtol=1e-5)


def test_each_element_may_have_levels_of_its_own():
    probs = np.tile(PROBS, (2, 1))
    quantiles = losses.categorical_quantiles(ATOMS, probs, np.array([[0.05], [0.99]]))
    np.testing.assert_array_equal(quantiles, [[-2.0], [5.0]])
