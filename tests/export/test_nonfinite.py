"""Non-finite observations in every runtime: their rows are NaN, the recurrent state and other rows are unaffected."""

import functools
import importlib.util

import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import ACER, D4PG, SMALL
from tfdpg.export import ExportError, convert
from tfdpg.export.source import Source
from tfdpg.export.verify import check_nonfinite, in_session
from tfdpg.formats.convert import FORMATS
from tfdpg.spec import Spec

BAD = (np.nan, np.inf, -np.inf)
MIXED = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Box(-np.inf, np.inf, (2,))})
RECURRENT = {
    "recurrent": "lstm",
    "recurrent_units": (4, 3),
    "remembers": ("observation", "action", "reward"),
    "seed": 1,
}


def custom():
    """Return an agent with a policy whose layers only TensorFlow can compute."""
    layers = keras.layers.Dense(8, "gelu"), keras.layers.Dense(1, "tanh"), keras.layers.Rescaling(2.0)
    pi = keras.Sequential([keras.Input([3]), *layers])
    return tfdpg.TD3("Pendulum-v1", **{key: SMALL[key] for key in SMALL if key != "hidden_units"}, pi=pi)


KINDS = {
    "dict": lambda: tfdpg.TD3(Spec(MIXED, spaces.Box(-1, 3, (2,))), **SMALL, normalize_observations=True, seed=1),
    "categorical": lambda: tfdpg.D4PG("Pendulum-v1", **SMALL | D4PG, seed=1),
    "mixture": lambda: tfdpg.D4PG("Pendulum-v1", **SMALL, critic="mixture", seed=1),
    "custom": custom,
    "discrete": lambda: tfdpg.ACER("CartPole-v1", **ACER, seed=1),
    "gaussian": lambda: tfdpg.ACER("Pendulum-v1", **ACER, seed=1),
}


def kinds(*quick):
    """Parametrize a test with all kinds; those that are not in `quick` are slow."""
    params = [pytest.param(kind, marks=() if kind in quick else pytest.mark.slow) for kind in KINDS]
    return pytest.mark.parametrize("kind", params)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An agent of each kind, and its export."""

    @functools.cache
    def make(kind):
        agent = (KINDS | {"lstm": lambda: tfdpg.TD3("Pendulum-v1", **SMALL | RECURRENT)})[kind]()
        return agent, agent.export(tmp_path_factory.mktemp(kind) / "model")

    return make


def observations(spec, count, bad=None):
    """Return a batch of observations, and the same with non-finite numbers in rows 1, 2, ..."""
    space = spec.observation_space
    space.seed(0)
    packed = [spec.pack(space.sample()) for _ in range(count)]
    finite = tuple(np.concatenate(parts) for parts in zip(*packed, strict=True))
    finite = tuple(np.clip(part, -3, 3) if part.dtype == np.float32 else part for part in finite)
    nonfinite = tuple(part.copy() for part in finite)
    for row, number in enumerate(BAD, start=1):
        nonfinite[0][row, row % 2] = number
    given = [spec.unpack(part) for part in (finite, nonfinite)]
    return given if spec.is_dict else [part["x"] for part in given]


@kinds("dict", "discrete")
def test_every_policy_answers_non_finite_rows_with_no_action(made, kind):
    agent, version = made(kind)
    finite, nonfinite = observations(agent.spec, 6)
    policy = tfdpg.load(version)
    policies = {"predict": agent.predict, "load": policy, "policy": agent.policy()}
    if kind != "custom":
        policies["numpy"] = policy.numpy()
    for name, act in policies.items():
        expected = act(finite)
        found = act(nonfinite)
        assert found.dtype == expected.dtype and found.shape == expected.shape, name
        np.testing.assert_array_equal(found[[0, 4, 5]], expected[[0, 4, 5]], err_msg=name)
        if kind == "discrete":
            np.testing.assert_array_equal(found[1:4], -1, err_msg=name)
        else:
            assert np.isnan(found[1:4]).all(), name
    one = {key: part[1] for key, part in nonfinite.items()} if agent.spec.is_dict else nonfinite[1]
    np.testing.assert_array_equal(policy(one), policy(nonfinite)[1])


@kinds("dict", "discrete")
def test_critics_answer_nan(made, kind):
    agent, version = made(kind)
    finite, nonfinite = observations(agent.spec, 6)
    policy = tfdpg.load(version)
    action = policy(finite)
    given = {"q1": (action,), "q2": (action,)}
    given |= {"v": (), "distribution": ()} if "v" in agent.signatures else {}
    given |= {"z": (action,)} if "z" in agent.signatures else {}
    for name, others in given.items():
        for x, nan in ((finite, []), (nonfinite, [1, 2, 3])):
            outputs = getattr(policy, name)(x, *others)
            for values in outputs.values() if isinstance(outputs, dict) else [outputs]:
                assert np.flatnonzero(np.isnan(values.reshape(6, -1)).all(axis=1)).tolist() == nan
                assert np.flatnonzero(np.isnan(values.reshape(6, -1)).any(axis=1)).tolist() == nan
    if agent.spec.actions is None:
        action = action.copy()
        action[4, 0] = np.nan
        assert np.flatnonzero(np.isnan(policy.q1(finite, action))).tolist() == [4]
    best, *values = policy.pi_and_q(nonfinite)
    np.testing.assert_array_equal(best, policy(nonfinite))
    assert all(np.flatnonzero(np.isnan(value)).tolist() == [1, 2, 3] for value in values)


@pytest.mark.parametrize("which", [pytest.param("load", marks=pytest.mark.slow), "numpy", "policy"])
@pytest.mark.parametrize("bad", [BAD[0], *(pytest.param(bad, marks=pytest.mark.slow) for bad in BAD[1:])])
def test_a_non_finite_observation_does_not_change_the_recurrent_state(made, which, bad):
    agent, version = made("lstm")
    make = {
        "load": lambda: tfdpg.load(version),
        "numpy": lambda: tfdpg.load(version).numpy(),
        "policy": agent.policy,
    }[which]
    rows = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
    nonfinite = rows[1].copy()
    policy = make()
    other = make()
    nonfinite[1, 2] = bad
    expected = []
    found = []
    for observation in (rows[0], rows[1], nonfinite, rows[2], rows[3]):
        action = policy(observation)
        if observation is nonfinite:
            assert np.isnan(action[1]).all() and np.isfinite(action[[0, 2]]).all()
        else:
            found.append(action[1])
            policy.received(np.full(3, 0.5))
    for observation in rows:
        expected.append(other(observation)[1])
        other.received(np.full(3, 0.5))
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(np.round(expected, 6))) == 4


def test_the_executed_action_replaces_the_previous_action_and_nan_does_not(made):
    _, version = made("lstm")
    rows = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    policies = [tfdpg.load(version).numpy() for _ in range(3)]
    for policy in policies:
        policy(rows[0])
    assert np.isnan(policies[0](np.full(3, np.nan))).all() and np.isnan(policies[1](np.full(3, np.nan))).all()
    default_action = policies[0](rows[1], action_before=[np.nan])
    corrected_action = policies[1](rows[1], action_before=[2.0])
    np.testing.assert_array_equal(default_action, policies[2](rows[1]))
    assert not np.allclose(corrected_action, default_action)


def test_a_non_finite_step_of_a_sequence_does_not_change_the_others(made):
    agent, version = made("lstm")
    policy = tfdpg.load(version)
    rng = np.random.default_rng(2)
    x, a, r = (rng.normal(size=size).astype(np.float32) for size in ((6, 3), (6, 1), (6,)))
    a = np.clip(a, -2, 2)
    for bad in BAD:
        with_step = np.insert(x, 3, x[3], axis=0)
        acts = np.insert(a, 3, bad, axis=0)
        rewards = np.insert(r, 3, r[2])
        with_step[3, 1] = bad
        found = policy.q1(with_step, acts, rewards)
        assert np.isnan(found[3])
        np.testing.assert_allclose(np.delete(found, 3), policy.q1(x, a, r), rtol=1e-6, atol=1e-7)
        changed = a.copy()
        changed[2] = bad  # the observation was seen
        assert np.flatnonzero(np.isnan(policy.q1(x, changed, r))).tolist() == [2]
        rewards = r.copy()
        rewards[2] = bad
        assert np.flatnonzero(np.isnan(policy.q1(x, a, rewards))).tolist() == [3]


@pytest.mark.slow
def test_an_agent_predicts_sequences_with_a_non_finite_step():
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | RECURRENT | {"remembers": ("observation", "action")})
    x = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
    with_step = np.insert(x, 2, np.nan, axis=0)
    found = agent.predict(with_step)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), agent.predict(x))


@pytest.mark.parametrize("bad", BAD)
def test_the_session_keeps_the_state(made, bad):
    _, version = made("lstm")
    source = Source(version)
    inputs = {name: values.copy() for name, values in source.cases["pi"][-1].items()}
    with in_session(version) as run:
        expected = run("pi", inputs)
        for name in ("x", "a_before", "r_before", "h_0", "c_1"):
            nonfinite = {key: values.copy() for key, values in inputs.items()}
            nonfinite[name][2, ...] = bad
            found = run("pi", nonfinite)
            for output, values in found.items():
                np.testing.assert_array_equal(np.delete(values, 2, 0), np.delete(expected[output], 2, 0))
                np.testing.assert_array_equal(
                    values[2], nonfinite[output][2] if output in inputs else np.full(1, np.nan)
                )


@pytest.mark.parametrize("format", ["c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("litert", "onnx"))])
@pytest.mark.parametrize(
    "kind", ["lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dict", "discrete"))]
)
def test_other_formats_do_as_the_saved_model_does(made, tmp_path, format, kind):
    missing = [name for name in FORMATS[format].modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        pytest.skip(f"{missing} are not installed")
    agent, version = made(kind)
    directory = convert(version, tmp_path / "model", format)
    source = Source(version)
    inputs = {name: values.copy() for name, values in source.cases["pi"][-1].items()}
    leaf = next(leaf.name for leaf in agent.spec.leaves if leaf.dtype == "float32")
    inputs[leaf][1] = np.nan
    inputs[leaf][4, 0] = np.inf
    with FORMATS[format].run(source, directory) as run, in_session(version) as in_tensorflow:
        expected = in_tensorflow("pi", inputs)
        found = run("pi", inputs)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert (expected["pi"][[1, 4]] == -1).all() or np.isnan(expected["pi"][[1, 4]]).all()


def test_an_export_that_breaks_the_rule_is_refused(made):
    _, version = made("dict")
    source = Source(version)
    inputs = source.cases["pi"][-1]

    def frozen(name, inputs):
        return {"pi": np.zeros((len(inputs["speed"]), 2), np.float32)}

    def mixing(name, inputs):
        bad = np.isnan(inputs["speed"]).any(axis=1)
        return {"pi": np.where(bad[:, None], np.nan, np.full((len(bad), 2), bad.any(), np.float32))}

    for run, message in (
        (frozen, "must answer .*not finite with NaN"),
        (mixing, "beside an obser"),
    ):
        with pytest.raises(ExportError, match=message):
            check_nonfinite("pi", inputs, source.spec, run)
    with in_session(version) as run:
        check_nonfinite("pi", inputs, source.spec, run)


@pytest.mark.slow
def test_tf_agents_keeps_what_came_before(tmp_path):
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | RECURRENT)
    version = agent.export(tmp_path / "model", signatures="tf-agents")
    with in_session(version) as run:
        state = run("get_initial_state", {"batch_size": np.array(2, np.int32)})
        step = {"0/step_type": np.ones(2, np.int32), "0/reward": np.ones(2, np.float32)}
        step |= {"0/discount": np.ones(2, np.float32), "0/observation": np.float32([[1, 0, 0.5], [0, 1, np.nan]])}
        state = {name: values + np.float32(0.25) for name, values in state.items()}
        found = run("action", step | {f"1/{name}": values for name, values in state.items()})
    assert np.isnan(found["action"][1]).all() and np.isfinite(found["action"][0]).all()
    for name, values in state.items():
        np.testing.assert_array_equal(found[f"state/{name}"][1], values[1])
        assert np.isfinite(found[f"state/{name}"]).all() and (found[f"state/{name}"][0] != values[0]).any()
