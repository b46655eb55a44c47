import numpy as np
import pytest
from gymnasium import spaces

from tfdpg import Spec, exploration
from tfdpg.acting import BehaviourPolicy

SPEC = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32)))


def test_gaussian_scales_with_the_action_scale_and_is_independent(rng):
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
    actions = BehaviourPolicy(SPEC, lambda packed: packed[0], None).act_uniformly(
        (np.zeros((20_000, 1), np.float32),), rng
    )
    assert (actions >= SPEC.low).all() and (actions <= SPEC.high).all()
    np.testing.assert_allclose(actions.mean(axis=0), SPEC.center, atol=0.05)
    np.testing.assert_allclose(actions.std(axis=0), 2 * SPEC.action_scale / np.sqrt(12), rtol=0.03)


def test_ornstein_uhlenbeck_by_hand_forgets_at_the_end_of_an_episode():
    noise = exploration.OrnsteinUhlenbeck(SPEC, (0.3, 0.1), theta=0.25)
    rng = np.random.default_rng(1)
    again = np.random.default_rng(1)
    std = np.array([0.3 * 2, 0.1 * 0.5], np.float32)
    x = np.zeros((2, 2), np.float32)
    for ended in ([False, False], [False, True], [False, False]):
        x = 0.75 * x + std * again.standard_normal((2, 2), np.float32)
        np.testing.assert_allclose(noise.sample(2, rng), x, rtol=1e-6)
        noise.end(np.array(ended))
        x[ended] = 0
    assert noise.sample(3, rng).shape == (3, 2)


def test_ornstein_uhlenbeck_is_correlated_in_time():
    noise = exploration.OrnsteinUhlenbeck(SPEC, 0.2, theta=0.1)
    rng = np.random.default_rng(0)
    x = np.array([noise.sample(1, rng)[0, 0] for _ in range(20_000)])
    assert np.corrcoef(x[:-1], x[1:])[0, 1] == pytest.approx(0.9, abs=0.01)
    assert x.std() == pytest.approx(0.4 / np.sqrt(1 - 0.9**2), rel=0.05)


def test_schedules_by_hand():
    linear = exploration.Linear(1.0, 0.2, steps=100)
    assert [linear(step) for step in (0, 50, 100, 101)] == pytest.approx([1.0, 0.6, 0.2, 0.0])
    decay = exploration.Decay(0.1, minimum=0.5)
    assert [decay(step) for step in (0, 1, 2, 100)] == pytest.approx([1.0, 0.9, 0.81, 0.5])
    with pytest.raises(ValueError, match="`rate`"):
        exploration.Decay(1.5)


def test_the_schedule_scales_the_noise_and_is_checked():
    noisy = exploration.NoisyActions(SPEC, exploration.Gaussian(SPEC, 0.1), lambda step: 1.0 if step < 10 else 0.0)
    greedy = np.tile(SPEC.center, (1000, 1))
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(noisy.explore(greedy, noisy.factor(9), rng).std(axis=0), [0.2, 0.05], rtol=0.1)
    np.testing.assert_array_equal(noisy.explore(greedy, noisy.factor(10), rng), greedy)
    beyond = noisy.explore(greedy + 5 * SPEC.action_scale, 1.0, rng)
    assert 0.4 < (beyond < SPEC.high).mean() < 0.6  # noise begins at the border, however far beyond a policy is
    with pytest.raises(ValueError, match="`act_noise_schedule` must be a finite"):
        exploration.NoisyActions(SPEC, exploration.Gaussian(SPEC, 0.1), lambda step: float("nan")).factor(0)
    with pytest.raises(ValueError, match="`act_noise` must be a number, or a seq"):
        exploration.noisy_actions(SPEC, "gaussian", (0.1, 0.1, 0.1), 0.15, None)


def test_theta_is_checked():
    with pytest.raises(ValueError, match="`ou_theta` must be a finite number in"):
        exploration.noisy_actions(SPEC, "ou", 0.1, 2.0, None)


def test_random_actions_replace_noisy_ones_with_a_probability(rng):
    noise = exploration.Gaussian(SPEC, 0.01)
    output = np.tile(np.float32([[2.9, 0.9]]), (20_000, 1))
    actions = exploration.NoisyActions(SPEC, noise, random_eps=0.3).explore(output, 1.0, rng)
    assert actions.dtype == np.float32 and (actions >= SPEC.low).all() and (actions <= SPEC.high).all()
    is_random = np.abs(actions - output) > 0.1
    np.testing.assert_allclose(is_random.mean(axis=0), 0.3 * np.array([1 - 0.2 / 4, 1 - 0.2 / 1]), atol=0.01)
    np.testing.assert_allclose(actions.mean(axis=0), 0.7 * output[0] + 0.3 * SPEC.center, atol=0.03)
    assert (is_random.all(axis=1).mean()) > 0.3 * 0.95 * 0.8 - 0.01  # all elements of an action are replaced together
    again = exploration.NoisyActions(SPEC, noise, random_eps=0.3).at_scale(0.02).explore(output, 1.0, rng)
    assert (np.abs(again - output).max(axis=1) > 0.1).mean() == pytest.approx(0.3, abs=0.02)


def test_without_random_actions_no_random_numbers_are_drawn_for_them():
    output = np.zeros((3, 2), np.float32)
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    exploration.NoisyActions(SPEC, exploration.Gaussian(SPEC, 0.1)).explore(output, 1.0, one)
    exploration.Gaussian(SPEC, 0.1).sample(3, other)
    assert one.bit_generator.state == other.bit_generator.state
    with pytest.raises(ValueError, match="`random_eps` must be"):
        exploration.NoisyActions(SPEC, exploration.Gaussian(SPEC, 0.1), random_eps=1.5)
