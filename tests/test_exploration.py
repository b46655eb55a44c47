import numpy as np
import pytest
from gymnasium import spaces

from tfdpg import Spec, exploration

SPEC = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32)))


def test_gaussian_scales_with_the_half_range_and_is_independent(rng):
    noise = exploration.Gaussian(SPEC, 0.2).sample(50_000, rng)
    assert noise.shape == (50_000, 2) and noise.dtype == np.float32
    np.testing.assert_allclose(noise.std(axis=0), [0.4, 0.1], rtol=0.02)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.01)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 0.02


def test_gaussian_refuses_a_negative_scale():
    with pytest.raises(ValueError, match="`scale`"):
        exploration.Gaussian(SPEC, -0.1)


def test_uniform_actions_fill_the_box(rng):
    actions = exploration.uniform_actions(SPEC, 20_000, rng)
    assert (actions >= SPEC.low).all() and (actions <= SPEC.high).all()
    np.testing.assert_allclose(actions.mean(axis=0), SPEC.center, atol=0.05)
    np.testing.assert_allclose(actions.std(axis=0), 2 * SPEC.half_range / np.sqrt(12), rtol=0.03)
