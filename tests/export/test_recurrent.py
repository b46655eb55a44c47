"""Exports of recurrent policies: pure functions, whose caller keeps the recurrent state."""

import functools
import json
import pickle

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tensorflow_serving.apis import prediction_log_pb2

import tfdpg
from tests.agents.roster import EACH, EAGER, fit_briefly
from tfdpg import export

SMALL = EACH | {"start_steps": 10, "update_after": 10, "update_every": 5, "recurrent_units": 4}
SMALL |= {"sequence_length": 4, "burn_in": 2} | EAGER
ALL = ("observation", "action", "reward")
NUM_ENVS, TIME = 3, 6
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(NUM_ENVS, TIME, 3)).astype(np.float32)
R = DRAW.normal(size=(NUM_ENVS, TIME)).astype(np.float32)
A = DRAW.uniform(-3, 3, size=(NUM_ENVS, TIME, 1)).astype(np.float32)  # some of them outside of the box

KINDS = {
    "lstm": lambda env: tfdpg.TD3(env, recurrent="lstm", remembers=ALL, **SMALL),
    "gru": lambda env: tfdpg.DDPG(env, recurrent="gru", **SMALL),
    "stacked": lambda env: tfdpg.D4PG(
        env, recurrent="lstm", remembers=("observation",), v_min=-200, v_max=0, **SMALL | {"recurrent_units": (4, 3)}
    ),
    "own cell": lambda env: tfdpg.TD3(
        env,
        recurrent=keras.layers.GRUCell(4, reset_after=False),
        **{name: value for name, value in SMALL.items() if name != "recurrent_units"},
    ),
}
STATES = {"lstm": ["h", "c"], "gru": ["h"], "stacked": ["h_0", "c_0", "h_1", "c_1"], "own cell": ["h"]}
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in ("gru", "own cell", "stacked") else []) for k in KINDS]
)


class Lopsided(gym.ActionWrapper):
    """Pendulum with torques from -1 to 3 instead of -2 to 2, so that the initial previous action is 1."""

    def __init__(self, **options):
        super().__init__(gym.make("Pendulum-v1", **options))
        self.action_space = spaces.Box(-1.0, 3.0, (1,))

    def action(self, action):
        return action - 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A trained agent of each kind and its export, for tests that do not change them."""

    @functools.cache
    def of(kind):
        agent = KINDS[kind](Lopsided())
        fit_briefly(agent, Lopsided(), epochs=1, steps_per_epoch=30)
        return agent, agent.export(tmp_path_factory.mktemp(kind) / "model")

    return of


def in_session(directory):
    """Load a model as TensorFlow Serving does; return a function that runs a signature, and its tensors' names."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def

    def run(name, **inputs):
        feed = {signatures[name].inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: output.name for key, output in signatures[name].outputs.items()}, feed)

    names = {name: (set(s.inputs), set(s.outputs)) for name, s in signatures.items() if not name.startswith("__")}
    return run, names


def episodes(policy, rewards):
    """Return the actions of a policy for the observations X, one step at a time."""
    actions = []
    for t in range(TIME):
        actions.append(policy(X[:, t]))
        if rewards:
            policy.received(R[:, t])
    return np.stack(actions, axis=1)


@pytest.mark.slow
@kinds
def test_a_client_keeps_the_state(kind, exported):
    agent, directory = exported(kind)
    run, names = in_session(directory)
    states = set(STATES[kind])
    before = {"a_before": kind != "stacked", "r_before": kind == "lstm"}
    recurrent_inputs = states | {name for name, is_used in before.items() if is_used}
    assert names["pi"] == names["serving_default"] == ({"x"} | recurrent_inputs, {"pi"} | states)
    assert names["initial_state"] == ({"batch"}, recurrent_inputs)
    given = run("initial_state", batch=NUM_ENVS)
    actions = []
    for name, start in (("a_before", np.ones((NUM_ENVS, 1))), ("r_before", np.zeros(NUM_ENVS))):
        if before[name]:
            np.testing.assert_array_equal(given[name], start)
    assert all(
        given[name].shape == (NUM_ENVS, width) and not given[name].any()
        for name, width in agent.data.recurrent_spec.parts
    )
    for t in range(TIME):
        outputs = run("pi", x=X[:, t], **given)
        actions.append(outputs["pi"])
        given = {name: outputs[name] for name in states}
        given |= {"a_before": outputs["pi"]} if before["a_before"] else {}
        given |= {"r_before": R[:, t]} if before["r_before"] else {}
    expected = episodes(agent.policy(), before["r_before"])  # in NumPy, except for custom cells
    np.testing.assert_allclose(np.stack(actions, axis=1), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(episodes(tfdpg.load(directory), before["r_before"]), expected, rtol=1e-4, atol=1e-5)


@kinds
def test_critics_evaluate_episodes(kind, exported):
    """The values equal those of single steps, with the previous action and reward assembled by hand."""
    agent, directory = exported(kind)
    run, names = in_session(directory)
    rewards = {"r": R} if kind == "lstm" else {}
    for name in ("q1", "q2"):
        critic = agent.networks.get(name, agent.networks["q1"])
        state = np.zeros((NUM_ENVS, critic.rnn.state_width), np.float32)
        expected = []
        before = []
        for t in range(TIME):
            previous_inputs = (
                [np.clip(A[:, t - 1], -1, 3) if t else np.ones((NUM_ENVS, 1))] if kind != "stacked" else []
            )
            previous_inputs += [R[:, t - 1 : t] if t else np.zeros((NUM_ENVS, 1))] if rewards else []
            before = np.concatenate([np.zeros((NUM_ENVS, 0)), *previous_inputs], axis=1).astype(np.float32)
            rnn_output, state = critic.unroll(X[:, t : t + 1], before[:, None], np.ones((NUM_ENVS, 1), bool), state)
            output = critic.apply_torso(rnn_output[:, 0], tf.constant(A[:, t]))
            expected.append(agent.head.mean(output) if kind == "stacked" else tf.reshape(output, [-1]))
        assert names[name] == ({"x", "a", *rewards}, {name})
        found = run(name, x=X, a=A, **rewards)[name]
        np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-4, atol=1e-5)
    policy = tfdpg.load(directory)
    more = {"reward": R} if rewards else {}
    in_box = np.clip(A, -1, 3)
    one = {"reward": R[1]} if rewards else {}
    values = run("q1", x=X, a=in_box, **rewards)["q1"]
    np.testing.assert_allclose(policy.q1(X, in_box, **more), values, rtol=1e-5)
    np.testing.assert_allclose(policy.q1(X[1], in_box[1], **one), values[1], rtol=1e-4, atol=1e-5)
    assert policy.q2(X[1, :2], in_box[1, :2], **{key: value[:2] for key, value in one.items()}).shape == (2,)


@pytest.mark.slow
def test_the_distribution_of_the_return_is_one_for_each_step(exported):
    agent, directory = exported("stacked")
    policy = tfdpg.load(directory)
    run = in_session(directory)[0]
    z = policy.z(X, A, [0.1, 1.0])
    np.testing.assert_allclose((z["probs"] * z["atoms"]).sum(axis=2), policy.q1(X, A), rtol=1e-4, atol=1e-3)
    assert z["cvar"].shape == z["quantiles"].shape == (NUM_ENVS, TIME, 2)
    np.testing.assert_allclose(policy.z(X[1], A[1], 0.1)["cvar"], z["cvar"][1, :, :1], rtol=1e-4, atol=1e-3)
    levels = np.array([[0.1], [0.5], [1.0]], np.float32)  # each request its own
    found = run("z", x=X, a=A, levels=levels)["cvar"]
    np.testing.assert_allclose(
        found[::2, :, 0], np.stack([z["cvar"][0, :, 0], z["cvar"][2, :, 1]]), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("wrong", ["start", *(pytest.param(w, marks=pytest.mark.slow) for w in ("state", "feedback"))])
def test_signatures_that_do_not_fit_together_are_not_exported(wrong, tmp_path):
    """Each signature equals its reference, but stepping through an episode gives other actions."""
    agent = tfdpg.DDPG(Lopsided(), recurrent="lstm", **SMALL)
    pi = agent.signatures["pi"]
    begin = agent.signatures["initial_state"]
    if wrong == "start":
        agent.signatures["initial_state"] = begin._replace(
            compute=lambda _, batch: begin.compute(_, batch) | {"a_before": tf.zeros([batch, 1])}
        )
    else:
        change = (lambda out: {"h": out["c"], "c": out["h"]}) if wrong == "state" else lambda out: {"pi": -out["pi"]}
        agent.signatures["pi"] = pi._replace(compute=lambda x, **given: (out := pi.compute(x, **given)) | change(out))
    with pytest.raises(export.ExportError, match="'pi, stepped from initial_state' differs"):
        agent.export(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_verification_uses_states_other_than_the_initial_one(exported):
    agent, _ = exported("lstm")
    given = agent.signatures["pi"].examples({"x": X[:, 0]})
    assert given["h"].all() and given["c"].all() and given["r_before"].any()
    assert {name: values.shape for name, values in given.items()} == {
        "a_before": (NUM_ENVS, 1),
        "r_before": (NUM_ENVS,),
        "h": (NUM_ENVS, 4),
        "c": (NUM_ENVS, 4),
    }


def test_a_single_step_has_no_value(exported):
    with pytest.raises(ValueError, match="no signature `pi_and_q`, which needs"):
        tfdpg.load(exported("lstm")[1]).pi_and_q(X[0, 0])


def test_warm_up_requests_and_metadata(exported):
    _, directory = exported("lstm")
    records = tf.data.TFRecordDataset(str(directory / "assets.extra/tf_serving_warmup_requests"))
    requests = [prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request for record in records]
    signatures = tf.saved_model.load(str(directory)).signatures
    requested = set()
    for request in requests:
        inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
        signatures[request.model_spec.signature_name](**inputs)
        requested.add(request.model_spec.signature_name)
    assert requested == {"pi", "serving_default", "initial_state", "q1", "q2"}
    metadata = json.loads((directory / "tfdpg.json").read_text())
    assert metadata["remembers"] == list(ALL)
    assert metadata["state"] == [{"name": "h", "shape": [4]}, {"name": "c", "shape": [4]}]
    text = export.describe(directory)
    step = "x: float32[batch, 3], a_before: float32[batch, 1], r_before: float32[batch], h: float32[batch, 4], c:"
    assert f"pi({step} float32[batch, 4]) -> pi: float32[batch, 1], h: float32[batch, 4], c:" in text
    assert "initial_state(batch: int32[]) -> a_before: float32[batch, 1], r_before: float32[batch], h:" in text
    assert "q1(x: float32[batch, time, 3], a: float32[batch, time, 1], r: float32[batch, time]) -> q1:" in text


@kinds
def test_an_evaluation_keeps_the_state(kind, exported):
    agent, directory = exported(kind)
    envs = gym.vector.SyncVectorEnv([lambda n=n: Lopsided(max_episode_steps=n) for n in (20, 30)])
    policy = tfdpg.load(directory)
    expected, found = (
        scores(envs, 4, per_episode=True) for scores in (agent.evaluate, functools.partial(tfdpg.evaluate, policy))
    )
    np.testing.assert_allclose(found["returns"], expected["returns"], rtol=1e-3)
    again = [tfdpg.evaluate(policy, Lopsided(max_episode_steps=20), 2)["return"] for _ in range(2)]
    assert again[0] == again[1]  # the state is reset


@pytest.mark.slow
def test_each_sub_environment_is_reset_separately(exported):
    policy = tfdpg.load(exported("gru")[1])
    first = policy(X[:, 0])
    second = policy(X[:, 0])
    assert (np.abs(first - second) > 1e-6).all()

    def which_are_reset(reset):
        policy.reset()
        policy(X[:, 0])
        reset()
        return (policy(X[:, 0]) == first)[:, 0].tolist()

    assert which_are_reset(lambda: None) == [False, False, False]
    assert which_are_reset(lambda: policy.reset([1])) == [False, True, False]
    assert which_are_reset(lambda: policy.end(np.array([True, False, True]))) == [True, False, True]
    assert which_are_reset(policy.reset) == [True, True, True]
    np.testing.assert_allclose(policy(X[1, 0]), first[1], rtol=1e-5)  # another batch size
    np.testing.assert_allclose(policy(X[1:2, 0])[0], second[1], rtol=1e-5)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(policy))(X[1, 0]), first[1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"must be .*below 1.*env_indices=\[3\]"):
        policy.reset([3])


@pytest.mark.slow
def test_the_executed_action_is_the_previous_action(exported):
    policy = tfdpg.load(exported("gru")[1])

    def second(action_before, ended=()):
        policy.reset()
        policy(X[:, 0])
        policy.reset(list(ended))
        return policy(X[:, 1], action_before)

    policy.reset()
    said = policy(X[:, 0])
    own = second(None)
    np.testing.assert_array_equal(second(said), own)
    executed = second(np.full((NUM_ENVS, 1), 2.5))
    assert (np.abs(executed - own) > 1e-6).all()
    np.testing.assert_array_equal(second(np.full((NUM_ENVS, 1), 9.0)), second(np.full((NUM_ENVS, 1), 3.0)))  # clipped
    mixed = second(np.full((NUM_ENVS, 1), 2.5), ended=[1])  # row 1 begins an episode
    np.testing.assert_array_equal(mixed[[0, 2]], executed[[0, 2]])
    policy.reset()
    np.testing.assert_allclose(mixed[1], policy(X[:, 1], np.full((NUM_ENVS, 1), 2.5))[1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"`action_before` must .*shape \(3, 1\)"):
        policy(X[:, 0], np.zeros((2, 1)))
    with pytest.raises(ValueError, match="`action_before` must be None"):
        tfdpg.load(exported("stacked")[1])(X[:, 0], A[:, 0])


@pytest.mark.slow
def test_rewards_are_required_by_policies_that_receive_them(exported):
    lstm, gru = (tfdpg.load(exported(kind)[1]) for kind in ("lstm", "gru"))
    with pytest.raises(ValueError, match=r"`reward` must .*shape \(3, 6\), one "):
        lstm.q1(X, A)
    with pytest.raises(ValueError, match="`reward` is for policies that receive"):
        gru.q1(X, A, R)
    lstm(X[:, 0])
    with pytest.raises(ValueError, match=r"`reward` must .*\(3,\), as the last"):
        lstm.received(R)
    with pytest.raises(ValueError, match=r"`x` .*shape \(time, 3\), or \(batch"):
        gru.q1(X[0, 0], A[0, 0])
    with pytest.raises(ValueError, match=r"`action` must .*shape \(3, 6, 1\)"):
        gru.q1(X, A[:, :2])


@kinds
def test_predict_uses_its_own_actions_as_previous_actions(kind, exported):
    agent, _ = exported(kind)
    if kind == "lstm":
        with pytest.raises(ValueError, match="recurrent policy also receives rewards"):
            agent.predict(X)
        return
    expected = episodes(agent.policy(), False)
    np.testing.assert_allclose(agent.predict(X), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent(X[1]), expected[1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="A recurrent agent predicts for sequences"):
        agent.predict(X[0, 0])


@pytest.mark.slow
def test_dict_observations_have_an_input_for_each_key(tmp_path):
    space = spaces.Dict(
        image=spaces.Box(0, 255, (2, 2, 1), np.uint8), mode=spaces.Discrete(3), c=spaces.Box(-1, 1, (2,))
    )
    spec = tfdpg.Spec(space, spaces.Box(-1, 1, (2, 2)))
    agent = tfdpg.DDPG(spec, recurrent="gru", **SMALL)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    episode = {key: np.stack([row[key] for row in rows]) for key in space}
    actions = agent.predict(episode)
    np.testing.assert_allclose([policy(row) for row in rows], actions, rtol=1e-4, atol=1e-5)
    assert actions.shape == (4, 2, 2) and policy.q1(episode, actions).shape == (4,)
    with pytest.raises(ValueError, match=r"`mode` .*shape \(time,\), or \(batch"):
        agent.predict(episode | {"mode": episode["mode"][:2]})


@pytest.mark.parametrize(
    "key, recurrent", [("a_before", "gru"), ("r_before", "gru"), ("c", "lstm"), ("h_1", (3, 3)), ("r", "gru")]
)
def test_keys_that_name_inputs_are_refused(key, recurrent):
    spec = tfdpg.Spec(spaces.Dict({key: spaces.Box(-1, 1, (2,))}), spaces.Box(-1, 1, (1,)))
    units = {} if isinstance(recurrent, str) else {"recurrent_units": recurrent}
    cells = {"recurrent": recurrent if isinstance(recurrent, str) else "gru", "remembers": ALL}
    with pytest.raises(ValueError, match=f"key '{key}' of .*is an input of the"):
        tfdpg.DDPG(spec, **cells, **SMALL | units)
    tfdpg.DDPG(spec, **EACH)


def test_policies_without_recurrent_layers_ignore_rewards_and_resets(on_pendulum):
    policy = tfdpg.load(on_pendulum)
    expected = policy(X[:, 0])
    policy.received(R[:, 0])
    policy.end(np.array([True, False, True]))
    policy.reset()
    np.testing.assert_array_equal(policy(X[:, 0]), expected)
    with pytest.raises(ValueError, match="`action_before` must be None"):
        policy(X[:, 0], A[:, 0])
    with pytest.raises(ValueError, match="`reward` is for policies that receive"):
        policy.q1(X[:, 0], A[:, 0], R[:, 0])
