"""The signature `action`, for clients of TF-Agents' `PolicySaver`.

Names, types and shapes are those that a `PolicySaver` of TF-Agents 0.19 wrote for the same spaces.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tensorflow_serving.apis import prediction_log_pb2

import tfdpg
from tests.agents.roster import ACER, SMALL
from tests.export.runtimes import verify
from tfdpg import export
from tfdpg.export.tf_agents import with_signatures_of

X = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
REWARD = np.array([0.5, -1, 2], np.float32)
DISCOUNT = np.ones(3, np.float32)
STEP = {"0/step_type": ("int32", [None]), "0/reward": ("float32", [None]), "0/discount": ("float32", [None])}
RECURRENT = SMALL | {"recurrent": "lstm", "recurrent_units": 4, "sequence_length": 4, "burn_in": 2}


class TimeStep(NamedTuple):
    """The class of a client, which is not TF-Agents' own."""

    step_type: Any
    reward: Any
    discount: Any
    observation: Any


def in_session(directory, name="action"):
    """Load a model as TensorFlow Serving does; return a function that runs a signature, and its inputs and outputs."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def[name]

    def run(inputs):
        feed = {signature.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: output.name for key, output in signature.outputs.items()}, feed)

    def described(tensors):
        shapes = {key: tf.TensorShape(tensor.tensor_shape).as_list() for key, tensor in tensors.items()}
        return {key: (tf.dtypes.as_dtype(tensor.dtype).name, shapes[key]) for key, tensor in tensors.items()}

    return run, described(signature.inputs), described(signature.outputs)


def time_steps(step_type, **observations):
    given = {"0/step_type": np.full(3, step_type, np.int32), "0/reward": REWARD, "0/discount": DISCOUNT}
    return given | {f"0/{name}": values for name, values in observations.items()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An agent and its export, for tests that do not change them."""
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **SMALL)
    return agent, agent.export(tmp_path_factory.mktemp("flat") / "model", signatures="tf-agents")


def test_a_flat_observation(exported):
    agent, directory = exported
    run, inputs, outputs = in_session(directory)
    assert inputs == STEP | {"0/observation": ("float32", [None, 3])} and outputs == {"action": ("float32", [None, 1])}
    for step_type in (0, 1, 2):
        found = run(time_steps(step_type, observation=X))["action"]
        np.testing.assert_allclose(found, agent.predict(X), rtol=1e-4, atol=1e-5)
    records = tf.data.TFRecordDataset(str(directory / "assets.extra/tf_serving_warmup_requests"))
    requests = [prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request for record in records]
    action_requests = [request for request in requests if request.model_spec.signature_name == "action"]
    assert [set(request.inputs) for request in action_requests] == [set(inputs)] * 2
    described = "action(0/discount: float32[batch], 0/observation: float32[batch, 3], 0/reward: float32[batch], "
    assert described in export.describe(directory)
    np.testing.assert_allclose(tfdpg.load(directory)(X), agent.predict(X), rtol=1e-4, atol=1e-5)


def test_a_dict_observation_and_actions_of_two_axes(tmp_path):
    space = spaces.Dict(
        {
            "kind": spaces.Discrete(4),
            "eye": spaces.Box(0, 255, (2, 2), np.uint8),
            "x": spaces.Tuple([spaces.Box(-1, 1), spaces.Dict(on=spaces.MultiBinary(2))]),
        }
    )
    agent = tfdpg.DDPG(tfdpg.Spec(space, spaces.Box(-1, 3, (2, 3))), **SMALL)
    run, inputs, outputs = in_session(agent.export(tmp_path / "model", signatures="tf-agents"))
    observations = {"kind": ("int64", [None]), "eye": ("uint8", [None, 2, 2]), "x/0": ("float32", [None, 1])}
    observations |= {"x/1/on": ("float32", [None, 2])}
    assert inputs == STEP | {f"0/observation/{name}": tensor for name, tensor in observations.items()}
    assert outputs == {"action": ("float32", [None, 2, 3])}
    on = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    given = {"kind": np.array([0, 3, 1]), "eye": np.full((3, 2, 2), 7, np.uint8), "x": (X[:, :1], {"on": on})}
    sent = {"kind": given["kind"], "eye": given["eye"], "x/0": X[:, :1], "x/1/on": on}
    found = run(time_steps(1, **{f"observation/{name}": values for name, values in sent.items()}))["action"]
    np.testing.assert_allclose(found, agent.predict(given), rtol=1e-4, atol=1e-5)
    module: Any = tf.saved_model.load(str(tmp_path / "model/1"))
    tensors = tf.nest.map_structure(tf.constant, given)
    step = module.action(TimeStep(tf.ones(3, tf.int32), tf.constant(REWARD), tf.constant(DISCOUNT), tensors))
    np.testing.assert_array_equal(step.action, found)


@pytest.mark.slow
def test_discrete_actions(tmp_path):
    agent = tfdpg.ACER("CartPole-v1", **ACER)
    run, _, outputs = in_session(agent.export(tmp_path / "model", signatures="tf-agents"))
    assert outputs == {"action": ("int64", [None])}
    observation = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    found = run(time_steps(0, observation=observation))["action"]
    np.testing.assert_array_equal(found, agent.predict(observation))


def test_the_object_of_a_policy_saver_acts(exported):
    """The methods that TF-Agents' `SavedModelPyTFEagerPolicy` calls."""
    agent, directory = exported
    module: Any = tf.saved_model.load(str(directory))
    state = module.get_initial_state(batch_size=3)
    assert state == ()
    time_step = TimeStep(tf.zeros(3, tf.int32), tf.constant(REWARD), tf.constant(DISCOUNT), tf.constant(X))
    for step in (module.action(time_step, state), module.action(time_step)):
        np.testing.assert_allclose(step.action, agent.predict(X), rtol=1e-4, atol=1e-5)
        assert step.state == step.info == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "remembers, carried",
    [
        (("observation",), [4, 4]),
        (("observation", "action", "reward"), [4, 4, 1]),
    ],
    ids=["observation", "all"],
)
def test_a_recurrent_policy(remembers, carried, tmp_path):
    """The names are those of an LSTM of TF-Agents: 1/0 and 1/1, state/0 and state/1, and 0 and 1 initially."""
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **RECURRENT, remembers=remembers)
    directory = agent.export(tmp_path / "model", signatures="tf-agents")
    run, inputs, outputs = in_session(directory)
    begin, _, begun = in_session(directory, "get_initial_state")
    parts = {str(i): ("float32", [None, width]) for i, width in enumerate(carried)}
    state = {f"1/{name}": tensor for name, tensor in parts.items()}
    assert inputs == STEP | {"0/observation": ("float32", [None, 3])} | state and begun == parts
    assert outputs == {"action": ("float32", [None, 1])} | {f"state/{name}": tensor for name, tensor in parts.items()}
    module: Any = tf.saved_model.load(str(directory))
    policy = agent.policy()  # in another episode
    held = [tf.ones((3, width)) for width in carried]
    expected = []
    stepped = []
    called = []
    given = begin({"batch_size": 3})
    given = {f"1/{name}": values + 1 for name, values in given.items()}
    for t in range(4):
        observation = np.roll(X, t, axis=0)
        expected.append(policy(observation))
        policy.received(REWARD)
        step = run(time_steps(min(t, 1), observation=observation) | given)
        given = {name.replace("state", "1"): values for name, values in step.items() if name != "action"}
        stepped.append(step["action"])
        time_step = TimeStep(tf.fill(3, min(t, 1)), tf.constant(REWARD), tf.constant(DISCOUNT), observation)
        action, held, _ = module.action(time_step, held)
        called.append(action.numpy())
    assert np.ptp(expected, axis=0).min() > 1e-4
    np.testing.assert_allclose(stepped, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(called, expected, rtol=1e-4, atol=1e-5)


def test_verification_compares_it(exported):
    agent, directory = exported
    signature = with_signatures_of("tf-agents", agent.spec, agent.signatures)["action"]
    inputs = time_steps(1, observation=X)
    right = signature.reference(agent.spec)
    references = {"pi": right, "action": right}
    verify(directory, references, {"action": [inputs]})
    references["action"] = lambda inputs: {"action": right(inputs)["action"] + 0.01}
    with pytest.raises(export.ExportError, match="'action' differs from the agent"):
        verify(directory, references, {"action": [inputs]})


def test_other_libraries_are_refused_and_nothing_is_added_by_default(exported, on_pendulum, tmp_path):
    agent, _ = exported
    with pytest.raises(ValueError, match="\"tf-agents\" or None. .*signatures='acme'"):
        agent.export(tmp_path / "model", signatures="acme")
    assert not list(tmp_path.iterdir())
    module: Any = tf.saved_model.load(str(on_pendulum))
    assert "action" not in module.signatures and not hasattr(module, "action")
