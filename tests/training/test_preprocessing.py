"""Missing numbers of observations, stacked frames and names of numbers, from the environment to every export."""

import json
import warnings
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import AGENTS, EAGER, SMALL, brief, fit_briefly
from tests.environments import Counter
from tests.serve.conftest import serving
from tfdpg.acting.preprocessing import Preprocessing, hold, stack
from tfdpg.export import ExportError
from tfdpg.formats.verifying import verify

pytestmark = brief
NAN = np.nan


class Sensors(gym.Env):
    """Three sensors, of which the first two fail now and then; episodes have seven steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fails=True):
        self.fails = fails

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        return self._observation(), float(-np.abs(action).sum()), False, self.t >= 7, {}

    def _observation(self):
        x = self.np_random.normal(size=3).astype(np.float32)
        if self.fails and self.np_random.random() < 0.4:
            x[self.np_random.integers(2)] = self.np_random.choice([NAN, np.inf])
        return x


class Seconds(Sensors):
    """The same with Discrete actions."""

    action_space = spaces.Discrete(3)


def observations(steps=20, seed=5):
    env = Sensors()
    env.reset(seed=seed)
    return np.stack([env._observation() for _ in range(steps)])


def test_a_missing_number_keeps_its_last_value_and_has_a_flag():
    flags = np.ones(2, np.float32)
    first = hold(np.array([[NAN, 5.0]], np.float32), np.zeros((1, 2), np.float32), flags)
    np.testing.assert_array_equal(first, [[0, 5, 1, 0]])
    second = hold(np.array([[3.0, -np.inf]], np.float32), first[:, :2], flags)
    np.testing.assert_array_equal(second, [[3, 5, 0, 1]])
    unknown = hold(np.array([[3.0, NAN]], np.float32), first[:, :2], np.array([1, 0], np.float32))
    np.testing.assert_array_equal(unknown, [[3, 5, 0, 0]])


def test_frames_are_stacked_from_the_newest_and_the_first_one_is_repeated():
    state = np.zeros((1, 3), np.float32)
    found = []
    for x in (1.0, 2.0, 3.0, 4.0):
        outputs = stack(np.array([[x]], np.float32), state, 3)
        found.append(outputs[0, :3])
        state = outputs[:, 3:]
    np.testing.assert_array_equal(found, [[1, 1, 1], [2, 1, 1], [3, 2, 1], [4, 3, 2]])


def test_both_together():
    made = Preprocessing(tfdpg.Spec(spaces.Box(-1, 1, (1,)), Sensors.action_space, missing="hold"), 2)
    features, state = made.step((np.array([[1.0]], np.float32),), made.initial_state(1))
    np.testing.assert_array_equal(features, [[1, 0, 1, 0]])
    features, state = made.step((np.array([[NAN]], np.float32),), state)
    np.testing.assert_array_equal(features, [[1, 1, 1, 0]])
    np.testing.assert_array_equal(made.newest(features), [[NAN]])
    np.testing.assert_array_equal(state, [[1, 1, 1, 1]])


KINDS = {
    "hold": {"missing": "hold"},
    "frames": {"frame_stack": 3},
    "both": {"missing": "hold", "frame_stack": 2, "normalize_observations": True},
}


def trained(name, kind, env=None):
    agent = AGENTS[name](
        env or Sensors(fails="missing" in KINDS[kind]), **KINDS[kind] | EAGER, observation_names=list("abc")
    )
    fit_briefly(agent, env or Sensors(fails="missing" in KINDS[kind]), epochs=1, steps_per_epoch=30, verbose=0)
    return agent


def flagged(agent):
    return agent.data.preprocessing.flagged.tolist()


def acted(policy, episode):
    policy.reset()
    return np.array([policy(x) for x in episode]).reshape(len(episode), -1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) != ("TD3", "both")))
        for name in AGENTS
        for kind in KINDS
    ],
)
def test_every_form_of_a_policy_acts_as_the_agent(name, kind, tmp_path):
    agent = trained(name, kind)
    episode = observations()
    if "missing" not in KINDS[kind]:
        episode = np.nan_to_num(episode, posinf=1.0)
    model = tfdpg.load(agent.export(tmp_path / "model").parent)
    expected = agent.predict(episode).reshape(len(episode), -1)
    assert np.isfinite(expected).all() and len(np.unique(expected)) == len(expected)
    for policy in (agent.policy(), model, model.numpy()):
        np.testing.assert_allclose(acted(policy, episode), expected, rtol=1e-4, atol=1e-5)
    features = agent.data.preprocessing.transitions((episode,), (np.roll(episode, -1, axis=0),), np.arange(20) == 19)[0]
    plain = AGENTS[name](agent.data.spec, **{"normalize_observations": agent.options.normalize_observations})
    plain.set_weights(agent.get_weights())  # an agent that knows only features
    inputs = {"x": features, "a": expected.astype(np.float32)}
    values = plain.signatures["q1"].reference(agent.data.spec)(inputs)["q1"]
    np.testing.assert_allclose(model.q1(episode, inputs["a"]), values, rtol=1e-3, atol=1e-4)
    assert model.spec.observation_names == ("a", "b", "c") and model.spec.missing == KINDS[kind].get("missing", "error")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["c", "onnx", "litert"])
def test_other_formats_hold_the_state(kind, form, tmp_path):
    agent = trained("TD3", kind)
    agent.export(tmp_path / "model")
    agent.export(tmp_path / form, format=form)  # which compares episodes, and with missing numbers
    report = verify(tmp_path / "model", [tmp_path / form], [], trusted=True)
    assert report.status == 0, report.text()
    assert json.loads((tmp_path / form / "tfdpg.json").read_text())["state"]


@pytest.mark.slow
def test_discrete_actions(tmp_path):
    agent = AGENTS["ACER"](Seconds(), missing="hold", frame_stack=2)
    fit_briefly(agent, Seconds(), epochs=1, steps_per_epoch=30, verbose=0)
    model = tfdpg.load(agent.export(tmp_path / "model").parent)
    episode = observations()
    assert acted(model, episode).ravel().tolist() == agent.predict(episode).tolist()
    assert acted(model.numpy(), episode).ravel().tolist() == agent.predict(episode).tolist()
    agent.export(tmp_path / "c", format="c")
    report = verify(tmp_path / "model", [tmp_path / "c"], [], trusted=True)
    assert report.status == 0, report.text()


def test_a_number_that_was_never_missing_has_no_flag(tmp_path):
    agent = trained("TD3", "hold")
    model = tfdpg.load(agent.export(tmp_path / "model").parent)
    episode = np.nan_to_num(observations(), posinf=1.0)
    lost, held = episode.copy(), episode.copy()
    lost[10:, 2] = NAN
    held[10:, 2] = held[9, 2]
    np.testing.assert_array_equal(acted(model, lost), acted(model, held))
    first = episode.copy()
    first[10:, 0] = NAN
    assert (acted(model, first)[10:] != acted(model, np.where(np.isfinite(first), first, first[9]))[10:]).any()


def test_a_loop_of_the_user_stores_what_fit_stores():
    def agent():
        return AGENTS["TD3"](Sensors(), **KINDS["both"] | EAGER, update_after=1000)

    by_fit, by_hand = agent(), agent()
    fit_briefly(by_fit, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)
    env = Sensors()
    observation, _ = env.reset(seed=by_hand.next_reset_seed(0))
    for _ in range(30):
        action = by_hand.act(observation)
        assert action.shape == (1,)
        observation, reward, terminated, truncated, _ = env.step(action)
        by_hand.observe(reward, observation, terminated, truncated)
        if truncated:
            observation, _ = env.reset(seed=by_hand.next_reset_seed(0))
    for name, values in by_fit.replay.transitions().items():
        np.testing.assert_array_equal(values, by_hand.replay.transitions()[name], err_msg=name)
    assert flagged(by_fit) == flagged(by_hand) == [True, True, False]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("by_hand", [False, True])
def test_frames_do_not_cross_episodes_in_vector_environments(mode, by_hand):
    env = SyncVectorEnv([lambda n=n: Counter(n) for n in (3, 5)], autoreset_mode=mode)
    agent = AGENTS["TD3"](env, update_after=1000, frame_stack=2)
    if by_hand:
        if mode == AutoresetMode.DISABLED:
            pytest.skip("a loop by hand would reset the environments itself")
        observation, _ = env.reset()
        for _ in range(20):
            observation, reward, terminated, truncated, info = env.step(agent.act(observation))
            agent.observe(reward, observation, terminated, truncated, info.get("final_obs"))
    else:
        fit_briefly(agent, env, epochs=1, steps_per_epoch=40, verbose=0)
    rows = agent.replay.transitions()
    assert len(rows["rewards"]) >= 30
    for features, after in zip(rows["observations"], rows["next_observations"], strict=True):
        (episode, t), (episode_before, t_before) = features.reshape(2, 2)
        assert (episode_before, t_before) == (episode, max(t - 1, 0))
        assert after.tolist() == [episode, t + 1, episode, t]
    assert rows["terminations"].any()


@pytest.mark.parametrize("kind", ["both", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != "both")])
def test_a_resumed_run_is_bit_identical(kind, tmp_path):
    def run(agent, epochs, **options):
        env = Sensors(fails="missing" in KINDS[kind])
        fit_briefly(agent, env, epochs=epochs, steps_per_epoch=24, verbose=0, **options)
        return agent

    def new():
        return AGENTS["TD3"](Sensors(), **KINDS[kind] | EAGER)

    whole = run(new(), 2)
    run(new(), 1).save(tmp_path / "agent")
    resumed = run(tfdpg.load_agent(tmp_path / "agent"), 2, initial_epoch=1)
    for mine, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(
        whole.replay.transitions()["observations"], resumed.replay.transitions()["observations"]
    )
    assert flagged(whole) == flagged(resumed)


def data_of(episodes=3):
    x = observations(8 * episodes).reshape(episodes, 8, 3)
    return {
        "observations": x[:, :-1].reshape(-1, 3),
        "next_observations": x[:, 1:].reshape(-1, 3),
        "actions": np.linspace(-1, 1, 7 * episodes)[:, None],
        "rewards": np.arange(7.0 * episodes),
        "terminations": np.zeros(7 * episodes),
        "truncations": np.tile(np.arange(7) == 6, episodes),
    }


def test_stored_data_is_preprocessed_episode_by_episode():
    agent = AGENTS["TD3"](Sensors(), **KINDS["both"] | EAGER)
    data = data_of()
    agent.fit_offline(data, epochs=1, steps_per_epoch=1, verbose=0)
    rows = agent.replay.transitions()
    newest = rows["observations"][:, :3]
    missing = ~np.isfinite(data["observations"])
    assert missing.any() and np.isfinite(rows["observations"]).all()
    np.testing.assert_array_equal(newest[~missing], data["observations"][~missing])
    np.testing.assert_array_equal(rows["observations"][:, 3:6], missing)
    np.testing.assert_array_equal(rows["observations"][::7, :6], rows["observations"][::7, 6:])
    np.testing.assert_array_equal(rows["observations"][1::7, 6:], rows["observations"][::7, :6])
    assert flagged(agent) == [True, True, False]
    with pytest.raises(ValueError, match="must hold finite numbers"):
        AGENTS["TD3"](Sensors(), frame_stack=2).fit_offline(data, epochs=1, steps_per_epoch=1, verbose=0)


def test_demonstrations_are_preprocessed():
    agent = AGENTS["TD3"](Sensors(), **KINDS["both"] | EAGER)
    fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=20, verbose=0, demonstrations=data_of())
    assert agent.updates


def test_a_real_time_run_holds_missing_numbers():
    agent = AGENTS["TD3"](Sensors(), **KINDS["hold"])
    history = fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=40, realtime=True, verbose=0).history
    assert history["held_steps"] == [0]  # they are the policy's, and `hold_steps` is for rewards
    assert agent.replay.transitions()["truncations"].sum() >= 3
    assert (agent.replay.transitions()["observations"][:, 3:] > 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("replay_shards", [0, 1])
def test_workers_preprocess(replay_shards):
    from tfdpg import distributed

    agent = tfdpg.TD3(Sensors(), **SMALL, **KINDS["both"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.fit(agent, Sensors, actors=1, epochs=1, steps_per_epoch=40, verbose=0, replay_shards=replay_shards)
    rows = agent.replay.transitions()["observations"]
    assert len(rows) and rows.shape[1] == 12 and np.isfinite(rows).all()
    assert flagged(agent) == [True, True, False]


def test_messages_name_the_numbers():
    agent = AGENTS["TD3"](Sensors(), observation_names=["temperature", "pressure", "level"])
    with pytest.raises(ValueError, match="(temperature|pressure) = (nan|inf)"):
        fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)
    stacked = AGENTS["TD3"](Sensors(), observation_names=["temperature", "pressure", "level"], frame_stack=2)
    with pytest.raises(ValueError, match="(temperature|pressure) = (nan|inf)"):
        fit_briefly(stacked, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)
    names = stacked.data.spec.observation_names
    assert names == ("temperature", "pressure", "level", *(f"{name}, 1 step before" for name in names[:3]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation_names": ["a", "b"]}, "3 different names"),
        ({"observation_names": ["a", "b", "a"]}, "3 different names"),
        ({"observation_names": "abc"}, "observation_names"),
        ({"missing": "hold", "recurrent": "lstm"}, "cannot be combined with `recurrent"),
        ({"frame_stack": 2, "recorders": ["somewhere"]}, "cannot be combined with `recorders"),
        ({"missing": "zero"}, "`missing` must be"),
        ({"frame_stack": 0}, "`frame_stack` must be"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        AGENTS["TD3"](Sensors(), **options)


def test_images_and_integers_are_refused():
    for space in (spaces.Box(0, 255, (4, 4, 1), np.uint8), spaces.Discrete(4)):
        spec = tfdpg.Spec(space, Sensors.action_space)
        with pytest.raises(ValueError, match="needs observations of floats. Received: 'x'"):
            AGENTS["TD3"](spec, frame_stack=2)


def test_the_parts_of_a_dict_are_held(tmp_path):
    space = spaces.Dict(arm=spaces.Box(-1, 1, (2,)), load=spaces.Box(-1, 1, ()))
    agent = AGENTS["DDPG"](tfdpg.Spec(space, Sensors.action_space), missing="hold", frame_stack=2)
    model = tfdpg.load(agent.export(tmp_path / "model").parent)
    seen = {"arm": np.array([NAN, 0.5], np.float32), "load": np.array(0.25, np.float32)}
    np.testing.assert_allclose(model(seen), agent.policy()(seen), rtol=1e-5)
    np.testing.assert_allclose(model.numpy()(seen), agent.policy()(seen), rtol=1e-5)


@pytest.mark.slow
def test_a_server_takes_missing_numbers(tmp_path):
    agent = trained("TD3", "hold")
    agent.export(tmp_path / "model")
    policy = agent.policy()
    with serving(tmp_path / "model") as client:
        state = {"held": [0.0, 0.0, 0.0]}
        for x in observations(8):
            status, content = client.post({"signature_name": "pi", "instances": [{"x": x.tolist(), **state}]})
            assert status == 200, content
            (answer,) = content["predictions"]
            np.testing.assert_allclose(answer["pi"], policy(x), rtol=1e-4, atol=1e-5)
            state = {"held": answer["held"]}
        grpc = f"grpc://127.0.0.1:{client.ports.grpc}/model"
        report = verify(tmp_path / "model", [], [client.url, grpc], trusted=False)
        assert report.status == 0, report.text()


def test_statistics_are_those_of_the_environment(tmp_path):
    agent = trained("TD3", "both")
    agent.export(tmp_path / "model")
    (found,) = tmp_path.glob("model/1/statistics.json")
    components = json.loads(found.read_text())["observations"]
    assert list(components) == ["a", "b", "c"]
    assert 0 < components["a"]["missing"] < 0.5 and components["c"]["missing"] == 0


def test_an_agent_from_an_export_knows_which_numbers_were_missing(tmp_path):
    agent = trained("TD3", "both")
    directory = agent.export(tmp_path / "model")
    continued = tfdpg.TD3.from_export(directory, Sensors())
    assert flagged(continued) == flagged(agent) == [True, True, False]
    np.testing.assert_allclose(continued.predict(observations()), agent.predict(observations()), rtol=1e-6, atol=1e-6)
    assert continued.spec.observation_names == ("a", "b", "c")


def converted(x):
    """In NumPy: the first number in other units, and the difference of the others."""
    return np.stack([2 * x[:, 0] + 1, x[:, 1] - x[:, 2]], axis=1)


def units():
    """The same as a Keras model."""
    x: Any = keras.Input((3,))
    y = [keras.layers.Rescaling(2.0, offset=1.0)(x[:, :1]), keras.layers.Subtract()([x[:, 1:2], x[:, 2:]])]
    return keras.Model(x, keras.layers.Concatenate()(y))


def learned():
    """A model with weights, in which NumPy does not know an activation."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "gelu")])


@pytest.mark.parametrize(
    "kind", ["alone", "both", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("hold", "frames"))]
)
def test_a_model_of_the_user_preprocesses(kind, tmp_path):
    options = KINDS.get(kind, {})
    agent = AGENTS["TD3"](Sensors(), preprocess=units(), **options | EAGER)
    env = Sensors(fails="missing" in options)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=30, verbose=0)
    rows = agent.replay.transitions()["observations"]
    assert rows.shape[1] == {"alone": 2, "hold": 5, "frames": 6, "both": 10}[kind]
    episode = np.nan_to_num(observations(), posinf=1.0)
    expected = agent.predict(episode)
    model = tfdpg.load(agent.export(tmp_path / "model").parent)
    agent.save(tmp_path / "agent")
    for policy in (agent.policy(), model, model.numpy(), tfdpg.load_agent(tmp_path / "agent").policy()):
        np.testing.assert_allclose(acted(policy, episode), expected, rtol=1e-4, atol=1e-5)
    if kind == "alone":
        plain = AGENTS["TD3"](agent.data.spec)  # an agent that knows only features
        plain.set_weights(agent.get_weights())
        np.testing.assert_allclose(plain.predict(converted(episode)), expected, rtol=1e-5)
        values = plain.signatures["q1"].reference(agent.data.spec)({"x": converted(episode), "a": expected})["q1"]
        np.testing.assert_allclose(model.q1(episode, expected), values, rtol=1e-4, atol=1e-5)


def test_an_export_is_continued_with_the_same_model_of_the_user(tmp_path):
    agent = AGENTS["TD3"](Sensors(), preprocess=units())
    directory = agent.export(tmp_path / "model")
    continued = tfdpg.TD3.from_export(directory, Sensors(), preprocess=units())
    x = np.nan_to_num(observations(), posinf=1.0)
    np.testing.assert_allclose(continued.predict(x), agent.predict(x), rtol=1e-6, atol=1e-6)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(100.0), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`preprocess` must be the model of the exported agent"):
        tfdpg.TD3.from_export(directory, Sensors(), preprocess=other)


def test_a_model_of_the_user_does_not_hide_missing_numbers():
    x: Any = keras.Input((3,))
    agent = AGENTS["TD3"](Sensors(), preprocess=keras.Model(x, keras.ops.nan_to_num(x, posinf=0.0)))
    with pytest.raises(ValueError, match=r"observation is not finite: x\[[01]\] = (nan|inf)"):
        fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)


def test_an_agent_for_a_spec_that_holds_is_continued(tmp_path):
    spec = tfdpg.Spec(
        Sensors.observation_space, Sensors.action_space, missing="hold", observation_names=["a", "b", "c"]
    )
    continued = tfdpg.TD3.from_export(AGENTS["TD3"](spec).export(tmp_path / "model"), Sensors())
    assert continued.spec.missing == "hold" and continued.spec.observation_names == ("a", "b", "c")


def test_the_model_of_the_user_is_not_trained(tmp_path):
    model = learned()
    before = [weight.copy() for weight in model.get_weights()]
    agent = AGENTS["TD3"](Sensors(), preprocess=model, missing="hold", **EAGER)
    fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)
    assert agent.updates
    for mine, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    exported = tfdpg.load(agent.export(tmp_path / "model").parent)
    np.testing.assert_allclose(acted(exported, observations()), agent.predict(observations()), rtol=1e-4, atol=1e-5)
    agent.save(tmp_path / "agent")
    loaded = tfdpg.load_agent(tmp_path / "agent")
    np.testing.assert_array_equal(loaded.predict(observations()), agent.predict(observations()))


def test_a_model_with_other_outputs_is_refused():
    x = keras.Input((3,))
    with pytest.raises(ValueError, match="`preprocess` must return float32"):
        AGENTS["TD3"](Sensors(), preprocess=keras.Model(x, keras.layers.Reshape((3, 1))(x)))


@pytest.mark.slow
def test_c_and_onnx_contain_the_model_of_the_user(tmp_path):
    agent = AGENTS["TD3"](Sensors(), preprocess=units(), missing="hold", frame_stack=2, **EAGER)
    fit_briefly(agent, Sensors(), epochs=1, steps_per_epoch=30, verbose=0)
    for form in ("c", "onnx"):
        agent.export(tmp_path / form, format=form)


def test_an_export_that_does_not_hold_is_refused(tmp_path):
    agent = trained("TD3", "hold")
    inner = agent.signatures["pi"]
    agent.signatures["pi"] = inner._replace(compute=forgetful(inner.compute))
    with pytest.raises(ExportError, match="pi, stepped from initial_state"):
        agent.export(tmp_path / "model")


def forgetful(compute):
    """A step that forgets what it held."""
    return lambda observation, held: compute(observation, held=held * 0)
