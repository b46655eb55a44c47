"""All agents with small networks, for tests that every agent must pass."""

import functools
import warnings

import keras
import pytest

import tfdpg
from tests.environments import Counter

EACH = {"hidden_units": (8,), "batch_size": 8, "replay_size": 500, "jit_compile": False}

SMALL = EACH | {"start_steps": 10, "update_after": 10, "update_every": 5}

OWN = {name: value for name, value in SMALL.items() if name != "hidden_units"}
"""The same options for custom networks."""

EAGER = {"run_eagerly": True, "gradient_steps": 1}
"""Up to ten updates without compilation, for tests of other things: tracing takes as long as ten to fifteen updates."""

D4PG = {"v_min": -500, "v_max": 500, "replay": "uniform", "polyak": 0.995, "target_update_every": 2}
"""A fixed support and uniform sampling; the tests of D4PG use its defaults."""

TD7 = {"encoder_units": (6,), "embedding_units": 5, "keep_best_policy": False, "replay": "uniform"}
TD7 |= {"target_update_every": 2}
"""Small encoders, updates that are not deferred, and uniform sampling; the tests of TD7 use the defaults."""

ACER = EACH | {"n_steps": 5, "replay_start": 10, "on_policy": True}


def acer_options(changes):
    """Translate the options of the other agents for ACER.

    ACER takes no uniformly random actions, has `n_steps` in place of `update_after`, and is slow when it runs eagerly.
    """
    names = {"update_after": "n_steps", "update_every": "n_steps"}
    others = {"start_steps"} | (EAGER.keys() if EAGER.items() <= changes.items() else set())
    return {names.get(name, name): value for name, value in changes.items() if name not in others}


AGENTS = {
    "ACER": lambda env, **changes: tfdpg.ACER(env, **ACER | acer_options(changes)),
    "DDPG": lambda env, **changes: tfdpg.DDPG(env, **SMALL | changes),
    "D4PG": lambda env, **changes: tfdpg.D4PG(env, **SMALL | D4PG | changes),
    "TD3": lambda env, **changes: tfdpg.TD3(env, **SMALL | changes),
    "TD7": lambda env, **changes: tfdpg.TD7(env, **SMALL | TD7 | changes),
}


brief = pytest.mark.filterwarnings(
    "ignore:This training ends at", "ignore:No episode ended", "ignore:.* lie at their bounds"
)
"""Ignores the warnings of `fit` about very short training, which tests/training/test_training_warnings.py covers."""


def fit_briefly(agent, env, **options):
    """Call `fit` for a few steps, without its warnings about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This training ends at|No episode ended|.*actions lie at their bounds")
        return agent.fit(env, **{"verbose": 0} | options)


def parametrize_agents(*quick):
    """Parametrize a test with all agents; those that are not named in `quick` are slow tests."""
    slow = [pytest.mark.slow]
    params = [pytest.param(make, id=name, marks=[] if name in quick else slow) for name, make in AGENTS.items()]
    return pytest.mark.parametrize("make", params)


@functools.cache
def options_of(make):
    return frozenset(make(Counter()).options.values())


def needs(make, option):
    """Skip the test if the agent does not have the option."""
    if option not in options_of(make):
        pytest.skip(f"the agent has no option {option}")


def custom_networks(scale_layer, spec):
    """Return a policy and a critic that apply a layer to the observation first, or nothing for None."""
    x, a = keras.Input(spec.observation_space.shape), keras.Input((spec.act_dim,))
    scaled, also_scaled = (x if scale_layer is None else scale_layer()(x) for _ in range(2))
    pi = keras.layers.Dense(1, "tanh")(keras.layers.Dense(8, "relu")(scaled))
    q1 = keras.layers.Dense(1)(keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([also_scaled, a])))
    return {"pi": keras.Model(x, pi), "q1": keras.Model([x, a], q1)}
