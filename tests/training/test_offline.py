"""Training on stored transitions."""

import contextlib
import os
import signal

import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL, fit_briefly
from tests.environments import Counter
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.segments import as_one_segment
from tfdpg.replay.transitions import gather_transitions
from tfdpg.training.data.datasets import load_into

SPEC = tfdpg.Spec.of(Counter())


def data(with_next=True):
    """Two episodes of three and two steps, terminated and truncated, and an open one of two."""
    observations = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1]], np.float32)
    arrays = {"observations": observations, "actions": np.linspace(-1, 1, 7)[:, None], "rewards": np.arange(7.0)}
    arrays |= {"terminations": np.eye(7, dtype=bool)[2], "truncations": np.eye(7, dtype=bool)[4]}
    return arrays | ({"next_observations": observations + [0, 1]} if with_next else {})


def transitions(buffer, n_step=1):
    return gather_transitions(buffer, buffer.transition_slots(), n_step, 0.5)[0]


def test_rows_by_hand():
    buffer = ReplayBuffer(SPEC, 50)
    load_into(buffer, data())
    assert buffer.size == 10 and len(buffer) == 7
    packed = transitions(buffer, n_step=2)
    expected_reward = [0 + 0.5, 1 + 1, 2, 3 + 2, 4, 5 + 3, 6]
    expected_discount = [0.25, 0, 0, 0.25, 0.5, 0.25, 0.5]
    np.testing.assert_allclose(packed[:, 3], expected_reward)
    np.testing.assert_allclose(packed[:, 4], expected_discount)
    np.testing.assert_array_equal(packed[:, -2:], [[0, 2], [0, 3], [0, 3], [1, 2], [1, 2], [2, 2], [2, 2]])


def test_without_next_observations_cut_transitions_only_bootstrap():
    buffer = ReplayBuffer(SPEC, 50)
    load_into(buffer, data(with_next=False))
    packed = transitions(buffer)
    np.testing.assert_array_equal(packed[:, 3], [0, 1, 2, 3, 5])
    np.testing.assert_array_equal(packed[:, 4], [0.5, 0.5, 0, 0.5, 0.5])


def test_appending_keeps_the_newest():
    buffer = ReplayBuffer(SPEC, 12)
    load_into(buffer, data())
    load_into(buffer, data())
    packed = transitions(buffer)
    assert buffer.added == 20 and buffer.size == 12
    np.testing.assert_array_equal(packed[np.argsort(packed[:, 3], kind="stable"), 3], [0, 1, 2, 3, 4, 5, 6, 6])


def test_states_that_data_does_not_have_are_those_of_an_episode_s_start():
    buffer = ReplayBuffer(SPEC, 50, step_width=SPEC.act_dim + 3, has_predecessors=True)
    plain = ReplayBuffer(SPEC, 50)
    load_into(buffer, data())
    load_into(plain, data())
    held = buffer.transitions()
    assert (held.pop("states") == 0).all()
    for name, values in plain.transitions().items():
        np.testing.assert_array_equal(held[name], values)
    segment = as_one_segment(buffer)
    segment["rows"][:, 3:6] = 7.0
    again = ReplayBuffer(SPEC, 50, step_width=SPEC.act_dim + 3, has_predecessors=True)
    load_into(again, segment)
    np.testing.assert_array_equal(again.transitions()["states"], np.full((7, 3), 7.0))
    for other in (
        plain,
        ReplayBuffer(SPEC, 50, step_width=SPEC.act_dim + 4, has_predecessors=True),
    ):  # another memory's, or none's
        load_into(other, segment)
        stored = other.transitions()
        for name, values in held.items():
            np.testing.assert_array_equal(stored[name][-7:], values)
        assert (stored.get("states", np.zeros((0, 0))) == 0).all()
        assert stored.get("states", np.zeros((0, 0))).shape[1] == other.state_width
    with pytest.raises(ValueError, match="with the distribution that drew each"):
        load_into(ReplayBuffer(SPEC, 50, step_width=SPEC.act_dim + 3, has_windows=True), data())


def test_every_form_of_data_trains(tmp_path):
    np.savez(tmp_path / "data.npz", **data())
    source = tfdpg.TD3(SPEC, **SMALL, run_eagerly=True)
    source.fit_offline(data(), epochs=1, steps_per_epoch=1, verbose=0)
    source.save(tmp_path / "agent")
    agent = tfdpg.DDPG(SPEC, **SMALL | {"replay_size": 12}, pi_lr=1e-5)  # too slow to come to its bounds
    forms = (data(), tmp_path / "data.npz", tmp_path / "agent", tmp_path / "agent/replay.npz")
    for number, given in enumerate(forms, start=1):
        history = agent.fit_offline(
            given, epochs=2, steps_per_epoch=60, validation_env=Counter(), validation_episodes=1, verbose=0
        )
        assert agent.updates == 120 * number and agent.replay.added == 10 * number and agent.env_steps == 0
        assert history.history["val_return"] == [15, 15] and np.isfinite(history.history["loss"]).all()
    agent.fit(Counter(), epochs=1, steps_per_epoch=20, verbose=0)
    assert agent.env_steps == 20 and agent.updates == 120 * len(forms) + 10


def test_steps_with_the_distribution_that_drew_them_are_for_their_own_kind(tmp_path):
    source = tfdpg.ACER(SPEC)
    source.save(tmp_path / "agent")
    with pytest.raises(ValueError, match="and without the distribution that drew"):
        tfdpg.DDPG(SPEC, **SMALL).fit_offline(tmp_path / "agent", epochs=1, steps_per_epoch=1, verbose=0)


def test_checkpoints_follow_the_updates(tmp_path):
    agent = tfdpg.DDPG(SPEC, **SMALL)
    options = {"steps_per_epoch": 5, "callbacks": [tfdpg.callbacks.Checkpoint(tmp_path)], "verbose": 0}
    agent.fit_offline(data(), epochs=3, **options)
    agent.fit_offline(None, epochs=1, **options)
    assert tfdpg.load_agent(tmp_path / "0").updates == 20
    with pytest.raises(ValueError, match="another training run"):
        tfdpg.DDPG(SPEC, **SMALL).fit_offline(data(), epochs=1, **options)


def test_a_dict_space(tmp_path):
    env = Counter(as_dict=True)
    spec = tfdpg.Spec.of(env)
    agent = tfdpg.DDPG(env, **SMALL | {"update_after": 1000}, recorders=[tmp_path / "run"])
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    buffer = ReplayBuffer(spec, 100)
    load_into(buffer, tmp_path / "run")
    stored = agent.replay.transitions()
    for name, values in buffer.transitions().items():
        for part, expected in zip(*map(keras.tree.flatten, (values, stored[name])), strict=True):
            np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"actions": np.zeros((7, 2))}, r"actions of shape \(n, 1\)"),
        ({"rewards": np.zeros(6)}, "a row for each transition"),
        ({"observations": np.zeros((7, 3))}, "must have shape"),
    ],
)
def test_data_of_other_shapes_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        load_into(ReplayBuffer(SPEC, 50), data() | change)


BAD = [
    ("observations", (4, 1), np.nan, "'observations' of `data` .*nan in row 4"),
    ("next_observations", (6, 0), np.inf, r"next_observations' of `data` .*6.*x\[0\]"),
    ("actions", (3, 0), np.nan, "'actions' of `data` .*row 3, .*; 1 of 7"),
    ("rewards", slice(2, 4), -np.inf, "'rewards' of `data` .*-inf .* 2; 2 of 7"),
    ("rewards", 5, 1e39, r"'rewards' of `data` .* 1e\+39 in row 5;"),  # beyond float32
    ("terminations", 2, np.nan, "'terminations' of `data` .*nan in row 2;"),
    ("truncations", 1, np.nan, "'truncations' of `data` .* nan in row 1;"),
]


@pytest.mark.parametrize("name, place, value, message", BAD)
def test_numbers_that_are_not_finite_are_named_by_array_row_and_column(name, place, value, message, tmp_path):
    arrays = {key: np.array(values, np.float64) for key, values in data().items()}
    arrays[name][place] = value
    buffer = ReplayBuffer(SPEC, 50)
    with pytest.raises(ValueError, match=message):
        load_into(buffer, arrays)
    np.savez(tmp_path / "0.npz", **arrays)
    with pytest.raises(ValueError, match=message.replace("`data`", str(tmp_path / "0.npz"))):
        load_into(buffer, tmp_path)
    with pytest.raises(ValueError, match=message.replace("`data`", "client 1 in `data`")):
        load_into(buffer, arrays | {"client_ids": [1] * 7})
    assert buffer.added == 0


def test_the_array_of_a_dict_observation_is_named():
    spec = tfdpg.Spec.of(Counter(as_dict=True))
    observations = {"position": np.zeros((3, 2)), "phase": np.ones(3)}
    observations["position"][1, 1] = np.nan
    arrays = {
        "actions": np.zeros((3, 1)),
        "rewards": np.zeros(3),
        "terminations": np.zeros(3),
        "observations": observations,
    }
    observations["phase"][2] = np.nan
    with pytest.raises(ValueError, match="`phase` .* be integers .*nan in row 2$"):
        load_into(ReplayBuffer(spec, 50), arrays)
    observations["phase"][2] = 1
    with pytest.raises(ValueError, match=r"'observations' .* row 1.*\(position\[1\]"):
        load_into(ReplayBuffer(spec, 50), arrays)


@pytest.mark.parametrize(
    "column, name, place",
    [(1, "observations", r"row 5, column 1 \(x\[1\]\)"), (2, "actions", "row 5, column 0"), (-1, "rewards", "row 5")],
)
def test_stored_rows_that_are_not_finite_are_named(column, name, place):
    buffer = ReplayBuffer(SPEC, 50)
    load_into(buffer, data())
    segment = as_one_segment(buffer)
    segment["rows"][5, column] = np.nan
    other = ReplayBuffer(SPEC, 50)
    with pytest.raises(ValueError, match=f"'{name}' of the stored rows .*nan in {place};"):
        load_into(other, segment)
    assert other.added == 0


def test_integers_beyond_numpy_s_are_numbers_and_objects_are_not():
    buffer = ReplayBuffer(SPEC, 50)
    load_into(buffer, data() | {"rewards": [2**70, 1, 2, 3, 4, 5, 6]})
    assert buffer.transitions()["rewards"][0] == np.float32(2.0**70)
    for rewards in (["1"] * 7, [{}] * 7, [10**400] * 7):
        with pytest.raises(ValueError, match="'rewards' of `data` must hold real"):
            load_into(buffer, data() | {"rewards": rewards})


def test_missing_and_unknown_data(tmp_path):
    agent = tfdpg.DDPG(SPEC, **SMALL)
    with pytest.raises(ValueError, match="must have the array 'rewards'"):
        agent.fit_offline({name: values for name, values in data().items() if name != "rewards"}, verbose=0)
    with pytest.raises(ValueError, match="`data` must be a dict .*Minari data set"):
        agent.fit_offline(3, verbose=0)
    with pytest.raises(FileNotFoundError):
        agent.fit_offline(tmp_path, verbose=0)
    with pytest.raises(ValueError, match="no transition"):
        agent.fit_offline(None, verbose=0)
    np.savez(tmp_path / "0.npz", **data())
    whole = (tmp_path / "0.npz").read_bytes()
    single = tmp_path / "0.npy"
    objects = np.array([{}, None])
    np.save(single, np.zeros(3))
    np.savez(tmp_path / "objects.npz", **data() | {"rewards": objects})
    for content in (b"", whole[:-100], b"text", single.read_bytes()):
        (tmp_path / "0.npz").write_bytes(content)
        with pytest.raises(ValueError, match="`data` must be .*/0.npz, which is none"):
            agent.fit_offline(tmp_path / "0.npz", verbose=0)
    with pytest.raises(ValueError, match="objects.npz, which is none"):
        agent.fit_offline(tmp_path / "objects.npz", verbose=0)


def test_ctrl_c_ends_between_two_rounds():
    agent = tfdpg.DDPG(SPEC, **SMALL)

    class Interrupt(keras.callbacks.Callback):
        ended = False

        def on_train_batch_end(self, batch, logs=None):
            if batch >= 99:
                os.kill(os.getpid(), signal.SIGINT)

        def on_train_end(self, logs=None):
            self.ended = True

    callback = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        agent.fit_offline(data(), epochs=1, steps_per_epoch=1000, callbacks=[callback], verbose=0)
    assert agent.updates == 100 and callback.ended


@pytest.mark.slow
def test_behaviour_cloning_pulls_the_policy_to_the_data():
    rng = np.random.default_rng(0)
    spec = tfdpg.Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0], np.float32), np.array([3.0], np.float32)))
    observations = rng.uniform(-1, 1, (500, 1))
    wanted = 1 + observations
    given = {"observations": observations, "actions": wanted, "rewards": -observations[:, 0]}
    given |= {"terminations": np.ones(500, bool), "next_observations": observations}
    errors = {}
    for bc_weight in (0.0, 10.0):
        agent = tfdpg.TD3(spec, hidden_units=(32,), batch_size=64, pi_lr=3e-3, bc_weight=bc_weight, jit_compile=False)
        saturated = pytest.warns(UserWarning, match="actions_at_bounds")  # the rewards say nothing of actions
        with contextlib.nullcontext() if bc_weight else saturated:
            agent.fit_offline(given, epochs=1, steps_per_epoch=500, verbose=0)
        errors[bc_weight] = np.abs(agent.predict(observations) - wanted).mean()
    assert errors[10.0] < 0.1 < errors[0.0] / 2


@pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:.*eval_env")
def test_a_minari_data_set(tmp_path, monkeypatch):
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    env.action_space.seed(0)
    buffers = []
    for seed in range(3):
        observations = [env.reset(seed=seed)[0]]
        steps = []
        for _ in range(10):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            steps.append((action, reward, terminated, truncated))
        actions, rewards, terminations, truncations = zip(*steps, strict=True)
        parts = {"observations": np.array(observations), "actions": np.array(actions), "rewards": list(rewards)}
        buffers.append(EpisodeBuffer(seed, **parts, terminations=list(terminations), truncations=list(truncations)))
    data_set = minari.create_dataset_from_buffers("tfdpg-test/pendulum-v0", buffer=buffers, env=env)
    agent = tfdpg.DDPG(env, **SMALL, run_eagerly=True)
    agent.fit_offline(data_set, epochs=1, steps_per_epoch=2, verbose=0)
    stored = agent.replay.transitions()
    assert agent.replay.size == 33 and len(agent.replay) == 30
    np.testing.assert_allclose(stored["rewards"], np.concatenate([b.rewards for b in buffers]), rtol=1e-6)
    assert not stored["terminations"].any()
    wider = tfdpg.Spec(agent.spec.observation_space, gym.spaces.Box(-3, 3, (1,), np.float32))
    with pytest.raises(ValueError, match="The action_space of `data` must be the agent's"):
        load_into(ReplayBuffer(wider, 100), data_set)
