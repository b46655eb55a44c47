"""D4PG's options and custom critics."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.by_hand import BATCH, SPEC, linear
from tests.agents.test_d4pg import KERNEL, categorical_agent, critic
from tfdpg.networks import Categorical, Mixture, Value


@pytest.mark.parametrize(
    "options, message",
    [
        ({"critic": "quantile"}, '`critic` must be .*"mixture" or "scalar"'),
        ({"critic": "mixture", "atoms": 21}, "`atoms` does .*`critic` is 'mixture'"),
        ({"components": 3}, "`components` .*`critic` is 'categorical'"),
        ({"v_min": 0.0}, "`v_min` and `v_max` go together"),
        ({"v_min": 1.0, "v_max": 1.0}, "`v_min` must be less than `v_max`"),
        ({"v_min": 0.0, "v_max": 1.0, "v_range": "auto"}, "chooses `v_min` and `v_max` itself"),
        ({"v_range": "wide"}, '`v_range` must be "auto" or "running"'),
        ({"v_min": 0.0, "v_max": 1.0, "atoms": 1}, "`atoms` must be an integer of at least 2"),
        ({"v_min": 1e8, "v_max": 1e8 + 1}, "that differ in float32"),
        ({"critic": "mixture", "min_stddev": 0.0}, "`min_stddev` must be a number above 0"),
        ({"beta_steps": 10}, "`beta_steps` does .*where `beta` is 1"),
        ({"critics": 0}, "`critics` must be a positive integer"),
        ({"clip_action_gradient": 0.0}, "`clip_action_gradient` must .*above 0"),
        ({"torso": "resnet"}, '`torso` must be "mlp", .* "two_branch"'),
        ({"torso": "two_branch"}, "needs a Dict space with at least two"),
        ({"torso": "control", "hidden_units": (8,)}, "`hidden_units` .*`torso` is 'control'"),
        ({"replay": "uniform", "beta": 0.5}, "`beta` does .*`replay` is 'uniform'"),
        ({"replay": "uniform", "normalize_weights": True}, "`normalize_weights` does .*`replay`"),
    ],
)
def test_options_out_of_range_or_without_effect_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        tfdpg.D4PG(gym.make("Pendulum-v1"), **options)


def test_custom_critics_must_end_in_the_layer_of_their_kind():
    plain = linear([keras.Input((1,)), keras.Input((1,))], [0.1, 0.2])
    with pytest.raises(ValueError, match="`q1` must end in a .*Categorical layer"):
        tfdpg.D4PG(SPEC, q1=plain)
    with pytest.raises(ValueError, match="`v_min` does .*`q1` is your own"):
        tfdpg.D4PG(SPEC, q1=critic(Categorical(-2, 2, 5), KERNEL), v_min=0, v_max=1)
    for kind, layer, width in (("mixture", Mixture(2), 6), ("scalar", Value(), 1)):
        agent = tfdpg.D4PG(SPEC, q1=critic(layer, np.full((2, width), 0.1)), critic=kind, batch_size=2)
        assert np.isfinite(agent.update(BATCH, tf.constant(1, tf.int64))["loss_q"]).all()


def test_custom_critics_are_saved_and_loaded(tmp_path):
    agent = categorical_agent()
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    for a, b in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
