"""Errors and warnings of `fit` about environments."""

import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, vector

import tfdpg
from tests.agents.roster import SMALL, brief
from tests.broken import (
    ZOO,
    ArrayEnds,
    Beside,
    Mixed,
    NoOptions,
    NoSeed,
    OldReset,
    OldStep,
    Outside,
    Raising,
    ValidEnv,
    VectorReward,
)
from tfdpg.findings import normalizers, outside

pytestmark = brief


def untrained(env):
    return tfdpg.TD3(tfdpg.Spec.of(env), **SMALL | {"update_after": 1000})


@pytest.fixture(scope="module")
def agent():
    """Return an agent for environments that fail at the first step, so that it stores nothing."""
    return untrained(ValidEnv())


def fitted(env, agent=None, **options):
    return (agent or untrained(env)).fit(env, epochs=1, steps_per_epoch=20, verbose=0, **options)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 10)], ids=["bare", "limited"])
@pytest.mark.parametrize("broken", [OldReset, VectorReward], ids=lambda b: b.__name__)
def test_fit_says_what_to_change_in_old_environments(broken, wrap, agent):
    what, remedy = ZOO[broken]
    with pytest.raises(ValueError) as raised:
        fitted(wrap(broken()), agent)
    assert what in str(raised.value) and remedy in str(raised.value)


@pytest.mark.parametrize(
    "env, error",
    [
        (OldStep(), "`step` returns 4 values, not .*Return `terminated`"),
        (TimeLimit(OldStep(), 10), "not enough values to unpack .expected 5, got 4"),
        (NoSeed(), "NoSeed.reset.. got an unexpected keyword argument 'seed'"),
        (TimeLimit(NoSeed(), 10), "NoSeed.reset.. got an unexpected keyword argument 'seed'"),
    ],
    ids=["step", "wrapped step", "seed", "wrapped seed"],
)
def test_fit_says_what_an_old_environment_did_and_what_finds_the_reason(env, error, agent):
    with pytest.raises(ValueError, match=error) as raised:
        fitted(env, agent)
    assert "`reset` takes a seed and options" in str(raised.value) and "`tfdpg check` says" in str(raised.value)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("broken", [OldReset, OldStep, NoOptions], ids=lambda b: b.__name__)
def test_fit_says_what_to_change_in_old_sub_environments(kind, broken, agent):
    envs = kind([broken])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # AsyncVectorEnv warns about the error
        with pytest.raises(ValueError, match="`reset` returns|`step` returns|takes no"):
            fitted(envs, agent)
        envs.close(**{"terminate": True} if kind is AsyncVectorEnv else {})


def test_what_fails_for_another_reason_keeps_its_error(agent):
    with pytest.raises(ZeroDivisionError, match="the mass is 0"):
        fitted(Raising(), agent)


def test_fit_warns_once_of_observations_far_outside_their_space():
    with pytest.warns(UserWarning, match=r"x\[1\] = .*\[-1, 1\].*normalize_obs") as caught:
        fitted(Outside())
    assert sum("outside" in str(warning.message) for warning in caught) == 1
    fitted(Beside())  # no warning: it is not far outside


def test_fit_warns_of_the_part_that_is_outside():
    class Part(Mixed):
        def observation(self):
            return super().observation() | {"joints": np.array([0, -9], np.float32)}

    with pytest.warns(UserWarning, match=r"joints\[1\] = -9, outside"):
        fitted(Part())


def test_the_entry_furthest_outside_is_named():
    box = spaces.Box(np.array([0, -np.inf, 5]), np.array([1, 3, 5.5]), dtype=np.float64)
    assert outside(box, [[0.5, -1e9, 5.2], [1, 3, 5.5]], "x") is None
    assert outside(box, [1 + 1e-7, 3, 5.5], "x") is None  # rounding
    assert "x[1] = 4," in outside(box, [[0.5, 0, 5.2], [1.5, 4, 5]], "x").what
    assert outside(box, [1.9, 3, 5], "x", slack=1.0) is None and outside(box, [2.1, 3, 5], "x", slack=1.0)
    assert outside(spaces.Box(0.0, 1.0, ()), 7.0, "x").what.startswith("An observation has x = 7,")
    assert outside(spaces.Box(-np.inf, np.inf, (1,)), [np.inf], "x") is None


NORMALISED = {
    "single": (lambda: TimeLimit(NormalizeObservation(ValidEnv()), 9), 1),
    "reward": (lambda: NormalizeReward(TimeLimit(ValidEnv(), 9)), 1),
    "both": (lambda: NormalizeReward(NormalizeObservation(ValidEnv())), 2),
    "sync": (lambda: SyncVectorEnv([lambda: NormalizeObservation(ValidEnv())]), 1),
    "async": (lambda: AsyncVectorEnv([lambda: NormalizeReward(NormalizeObservation(ValidEnv()))]), 2),
    "vector": (lambda: vector.NormalizeReward(vector.NormalizeObservation(SyncVectorEnv([ValidEnv]))), 2),
    "vector async": (
        lambda: vector.RecordEpisodeStatistics(vector.NormalizeObservation(AsyncVectorEnv([ValidEnv]))),
        1,
    ),
    "none": (lambda: vector.RecordEpisodeStatistics(AsyncVectorEnv([lambda: TimeLimit(ValidEnv(), 9)])), 0),
}


@pytest.mark.parametrize("made", NORMALISED)
def test_normalising_wrappers_are_found_wherever_they_are(made):
    make, count = NORMALISED[made]
    env = make()
    found = list(normalizers(env))
    assert len(found) == count and len(set(found)) == count
    assert tfdpg.check(env, steps=30, verbose=0) == found
    env.close()


def test_fit_warns_of_normalising_wrappers_around_both_environments():
    with pytest.warns(UserWarning, match="`env`: NormalizeReward .*`reward_shaper`") as caught:
        fitted(NormalizeReward(ValidEnv()))
    assert sum("Normalize" in str(warning.message) for warning in caught) == 1
    training = TimeLimit(ValidEnv(), 5)
    training.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    validation = NormalizeObservation(TimeLimit(ValidEnv(), 5))
    with pytest.warns(UserWarning, match="`validation_env`: NormalizeObservation"):
        fitted(training, validation_env=validation, validation_episodes=1)


def test_ends_may_be_arrays(agent):
    fitted(ArrayEnds(), agent)
