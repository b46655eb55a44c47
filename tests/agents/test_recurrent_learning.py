"""Recurrent agents solve tasks that others cannot."""

import pytest

import tfdpg
from examples.recurrent import DelayedRecall

DELAY = 4
OPTIONS = {"hidden_units": (32,), "batch_size": 32, "start_steps": 500, "update_after": 500, "jit_compile": False}
OPTIONS |= {"pi_lr": 3e-3, "q_lr": 3e-3, "polyak": 0.98, "gamma": 0.9, "seed": 0}
RECURRENT_OPTIONS = {"recurrent_units": 16, "sequence_length": DELAY + 1, "burn_in": 0}
QUICK = tfdpg.TD3, {"policy_delay": 1, "recurrent": "gru"} | RECURRENT_OPTIONS
SLOW = {
    "ddpg-lstm": (tfdpg.DDPG, {"recurrent": "lstm"} | RECURRENT_OPTIONS),
    "d4pg-rnn": (
        tfdpg.D4PG,
        {"recurrent": "rnn", "v_min": -6, "v_max": 2, "target_update_every": 1} | RECURRENT_OPTIONS,
    ),
    "td3-burn-in": (
        tfdpg.TD3,
        {"policy_delay": 1, "recurrent": "gru", "n_step": 2, "stored_state": False, "replay": "prioritized"}
        | RECURRENT_OPTIONS
        | {"sequence_length": 4, "burn_in": 2},
    ),
}


def returns(kind, options, steps, delay=DELAY):
    env = DelayedRecall(delay)
    agent = kind(env, **OPTIONS | options)
    agent.fit(env, epochs=1, steps_per_epoch=steps, verbose=0)
    return agent.evaluate(DelayedRecall(delay), episodes=40)["return"]


@pytest.mark.slow
def test_a_recurrent_agent_repeats_an_earlier_observation():
    assert returns(*QUICK, steps=700, delay=2) > -0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind, options", SLOW.values(), ids=SLOW)
def test_all_recurrent_agents_repeat_an_earlier_observation(kind, options):
    """A few initial weights get stuck; which ones depends on rounding, which differs between processors."""
    assert any(returns(kind, options | {"seed": seed}, steps=4000) > -0.1 for seed in (0, 1))


@pytest.mark.slow
def test_other_agents_learn_the_middle_of_the_range():
    assert returns(tfdpg.TD3, {"policy_delay": 1}, steps=4000) < -0.8
