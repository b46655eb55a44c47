"""Custom networks with layers of the user's own: few warnings, and errors that say what to do."""

import copy
import warnings

import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import EAGER, OWN, fit_briefly
from tests.environments import Counter
from tfdpg.training.checkpoints.checkpoint import CheckpointError


@keras.saving.register_keras_serializable("tests")
class Unbuilt(keras.layers.Layer):
    """A layer that contains another one, and has no method `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(4)

    def call(self, x):
        return self.inner(x)


@keras.saving.register_keras_serializable("tests")
class Built(Unbuilt):
    def build(self, input_shape):
        self.inner.build(input_shape)


def networks(layer, width=2):
    x, a = keras.Input((width,)), keras.Input((1,))
    pi = keras.Model(x, keras.layers.Dense(1, "tanh")(layer()(layer()(x))))
    q1, q2 = (keras.Model([x, a], keras.layers.Dense(1)(layer()(keras.layers.Concatenate()([x, a])))) for _ in range(2))
    return {"pi": pi, "q1": q1, "q2": q2}


def caught(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        result = function()
    return result, [str(warning.message) for warning in found if issubclass(warning.category, UserWarning)]


def test_layers_without_build_are_told_once(tmp_path):
    agent, (told,) = caught(lambda: tfdpg.TD3(Counter(), **OWN, **networks(Unbuilt)))
    assert "no method `build`" in told and "Unbuilt. Write `build(self, input_shape)`" in told
    for network, target in agent.targets.items():
        for weight, copied in zip(agent.networks[network].weights, target.weights, strict=True):
            np.testing.assert_array_equal(weight, copied)
    agent.save(tmp_path / "agent")
    for again in (lambda: tfdpg.load_agent(tmp_path / "agent"), lambda: copy.deepcopy(agent)):
        other, (repeated,) = caught(again)
        assert repeated == told
        for weight, restored in zip(agent.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, restored)
    assert caught(lambda: tfdpg.TD3(Counter(), **OWN, **networks(Built)))[1] == []


def test_a_layer_that_is_not_registered_is_named_with_its_module(tmp_path):
    agent = tfdpg.TD3(Counter(), **OWN, **networks(Built))
    agent.save(tmp_path / "agent")
    registered = keras.saving.get_custom_objects()
    kind = registered.pop("tests>Built")
    try:
        with pytest.raises(CheckpointError) as raised:
            tfdpg.load_agent(tmp_path / "agent")
    finally:
        registered["tests>Built"] = kind
    first, second = str(raised.value).splitlines()
    assert f"'Built' from the module '{__name__}'" in first and second.endswith(f"import {__name__}")
    assert tfdpg.load_agent(tmp_path / "agent").get_weights()[0].shape == agent.get_weights()[0].shape


def test_a_policy_that_takes_some_parts_of_the_observation_is_told_once(tmp_path):
    env = Counter(as_dict=True)
    position, phase, a = keras.Input((2,), name="position"), keras.Input((), name="phase"), keras.Input((1,))
    critic_input = keras.layers.Concatenate()([position, keras.layers.Reshape((1,))(phase), a])
    critic = keras.Model([{"position": position, "phase": phase}, a], keras.layers.Dense(1)(critic_input))
    policy = keras.Model({"position": position}, keras.layers.Dense(1, "tanh")(position))
    agent, (told,) = caught(lambda: tfdpg.DDPG(env, **OWN | EAGER, pi=policy, q1=critic))
    assert told == "`pi` does not take all parts of the observation. Without it: phase"

    def use():
        fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
        agent.save(tmp_path / "agent")
        agent.export(tmp_path / "model")
        return agent.predict({"position": np.ones(2, np.float32), "phase": 1})

    action, others = caught(use)
    assert others == []
    kernel, bias = agent.networks["pi"].get_weights()
    np.testing.assert_allclose(action, np.tanh(kernel.sum(axis=0) + bias), rtol=1e-5)
    loaded, again = caught(lambda: tfdpg.load_agent(tmp_path / "agent"))
    assert again == [told]
    np.testing.assert_allclose(loaded.predict({"position": np.ones(2, np.float32), "phase": 2}), action, rtol=1e-6)


def test_parts_of_equal_shape_are_not_confused():
    box = spaces.Box(-1, 1, (2,), np.float32)
    spec = tfdpg.Spec(spaces.Dict(left=box, right=box), spaces.Box(-1, 1, (1,), np.float32))
    left, right, a = keras.Input((2,), name="left"), keras.Input((2,), name="right"), keras.Input((1,))
    policy = keras.Model({"right": right}, keras.layers.Dense(1, "tanh")(right))
    joined = keras.layers.Concatenate()([left, right, a])
    critic = keras.Model([{"left": left, "right": right}, a], keras.layers.Dense(1)(joined))
    agent, _ = caught(lambda: tfdpg.DDPG(spec, **OWN, pi=policy, q1=critic))
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    for right_value, expected in ((zero, 0.0), (one, np.tanh(policy.get_weights()[0].sum()))):
        action = agent.predict({"left": 1 - right_value, "right": right_value})
        np.testing.assert_allclose(action, [expected], rtol=1e-5, atol=1e-7)
        batch = {"left": 1 - right_value[None], "right": right_value[None]}
        np.testing.assert_allclose(agent.targets["pi"](batch), [[expected]], rtol=1e-5, atol=1e-7)
