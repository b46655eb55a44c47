"""The replay buffer as users reach it: its length, named samples, and saving and loading on its own."""

import functools
import json
import shutil
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.roster import ACER, EAGER, SMALL, brief, fit_briefly
from tfdpg import files
from tfdpg.replay import ReplayBuffer, segments

pytestmark = brief
GAMMA = 0.9
NO_UPDATE = SMALL | EAGER | {"update_after": 10_000, "gamma": GAMMA}


class Seen(gym.Env):
    """Records what happened, by the number of the environment step that each observation shows.

    Episodes of 4 steps; odd ones terminate, even ones are truncated.
    """

    action_space = spaces.Box(np.float32([[-1, -2]]), np.float32([[1, 2]]))  # shape (1, 2)

    def __init__(self, start=0, kind="box"):
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        image = spaces.Box(0, 255, (2, 3), np.uint8)
        parts = {"box": box, "image": image, "dict": spaces.Dict(camera=image, phase=spaces.Discrete(3), place=box)}
        self.observation_space = parts[kind]
        self.kind = kind
        self.number = start
        self.episode = -1
        self.steps = {}

    def reset(self, *, seed=None, options=None):
        self.episode = self.episode + 1
        self.t = 0
        self.number += 1
        return self.observation(self.number), {}

    def observation(self, number):
        parts = {"place": np.float32([number, -number]), "camera": np.full((2, 3), number, np.uint8)}
        if self.kind == "dict":
            return parts | {"phase": number % 3}
        return parts["camera" if self.kind == "image" else "place"]

    def step(self, action):
        self.t += 1
        reward = float(self.number % 7)
        ends = self.t == 4
        terminated = ends and self.episode % 2 == 1
        truncated = ends and self.episode % 2 == 0
        self.steps[self.number] = (np.array(action), reward, self.number + 1, terminated, truncated)
        self.number += 1
        return self.observation(self.number), reward, terminated, truncated, {}


def number_of(observation):
    """The step numbers that a batch of observations shows."""
    if isinstance(observation, dict):
        np.testing.assert_array_equal(observation["camera"][:, 1, 2], observation["place"][:, 0])
        np.testing.assert_array_equal(observation["phase"], observation["place"][:, 0] % 3)
        return observation["place"][:, 0].astype(int)
    return observation.reshape(len(observation), -1)[:, 0].astype(int)


def expected(env, number, n_step):
    """A transition over n steps by hand: action, reward, discount, next number, terminated, truncated."""
    action = env.steps[number][0]
    total = 0.0
    discount = 1.0
    now = number
    for _ in range(n_step):
        _, reward, now, terminated, truncated = env.steps[now]
        total = total + discount * reward
        discount = discount * GAMMA
        if terminated or truncated or now not in env.steps:
            break
    return action, total, discount * (not terminated), now, terminated, truncated


SAMPLED = [(1, None, 1), (3, None, 2), (3, "lstm", 2), (1, "gru", 1)]
QUICK = {("box", 1), ("image", 3), ("dict", 3), ("dict", "lstm"), ("box", "gru")}


@pytest.mark.parametrize(
    "kind, n_step, recurrent, envs",
    [
        pytest.param(kind, *case, marks=[] if (kind, case[1] or case[0]) in QUICK else pytest.mark.slow)
        for kind in ("box", "image", "dict")
        for case in SAMPLED
    ],
)
def test_samples_are_what_happened(kind, n_step, recurrent, envs):
    made = [Seen(100 * i, kind) for i in range(envs)]
    env = SyncVectorEnv([lambda each=each: each for each in made]) if envs > 1 else made[0]
    memory = {} if recurrent is None else {"recurrent": recurrent, "recurrent_units": 3}
    agent = tfdpg.DDPG(env, **NO_UPDATE, n_step=n_step, **memory)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=46)
    steps = {number: each for each in made for number in each.steps}
    assert len(agent.replay) == len(steps) == 46
    batch = agent.replay.sample(500, seed=0)
    names = ["observations", "actions", "rewards", "discounts", "next_observations"]
    names += ["terminations", "truncations"]
    assert list(batch) == names + ([] if recurrent is None else ["states"])
    numbers = number_of(batch["observations"])
    assert set(numbers) == set(steps)  # each transition can be sampled
    wanted = [expected(steps[number], number, n_step) for number in numbers]
    action, reward, discount, following, terminated, truncated = (np.array(part) for part in zip(*wanted, strict=True))
    assert batch["actions"].shape == (500, 1, 2)
    np.testing.assert_array_equal(np.clip(batch["actions"], [-1, -2], [1, 2]), action)
    np.testing.assert_allclose(batch["rewards"], reward, rtol=1e-6)
    np.testing.assert_allclose(batch["discounts"], discount, rtol=1e-6)
    np.testing.assert_array_equal(number_of(batch["next_observations"]), following)
    np.testing.assert_array_equal(batch["terminations"], terminated)
    np.testing.assert_array_equal(batch["truncations"], truncated)
    assert batch["terminations"].any() and batch["truncations"].any()
    assert batch["rewards"].dtype == batch["discounts"].dtype == np.float32 and batch["terminations"].dtype == bool
    if kind == "image":
        assert batch["observations"].dtype == np.uint8 and batch["observations"].shape == (500, 2, 3)
    if recurrent is not None:
        first = (numbers % 100 - 1) % 5 == 0  # the state at an episode's start is 0
        assert not batch["states"][first].any() and batch["states"][~first].any(axis=1).all()


@pytest.mark.parametrize("kind", ["box", "image", "dict"])
@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("replay_size", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_transitions_are_single_steps_in_the_order_of_their_episodes(kind, envs, replay_size):
    made = [Seen(100 * i, kind) for i in range(envs)]
    env = SyncVectorEnv([lambda each=each: each for each in made]) if envs > 1 else made[0]
    agent = tfdpg.TD3(env, **NO_UPDATE | {"replay_size": replay_size}, n_step=3)
    empty = agent.replay.transitions()
    fit_briefly(agent, env, epochs=1, steps_per_epoch=46)
    stored = agent.replay.transitions()
    assert list(stored) == list(empty) == list(agent.replay.sample(1)) and len(empty["rewards"]) == 0
    numbers = number_of(stored["observations"])
    assert len(numbers) == len(agent.replay) and (len(numbers) == 46 or replay_size == 40)
    for i, each in enumerate(made):  # the steps of a sub-environment follow each other, up to the newest one
        own = numbers[numbers // 100 == i]
        assert own.tolist() == sorted(each.steps)[-len(own) :]
    ended = stored["terminations"] | stored["truncations"] | np.isin(numbers, [max(each.steps) for each in made])
    assert ((np.diff(numbers) == 1) | ended[:-1]).all()  # the steps of an episode follow one another
    steps = {number: each for each in made for number in each.steps}
    wanted = [expected(steps[number], number, 1) for number in numbers]
    action, reward, discount, following, terminated, truncated = (np.array(part) for part in zip(*wanted, strict=True))
    np.testing.assert_array_equal(np.clip(stored["actions"], [-1, -2], [1, 2]), action)
    np.testing.assert_allclose(stored["rewards"], reward)
    np.testing.assert_allclose(stored["discounts"], discount, rtol=1e-6)
    np.testing.assert_array_equal(number_of(stored["next_observations"]), following)
    np.testing.assert_array_equal(stored["terminations"], terminated)
    np.testing.assert_array_equal(stored["truncations"], truncated)


def test_a_full_buffer_has_the_newest_transitions_alone():
    env = Seen()
    agent = tfdpg.DDPG(env, **NO_UPDATE | {"replay_size": 23}, n_step=2)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=45)
    numbers = set(number_of(agent.replay.sample(500, seed=1)["observations"]).tolist())
    newest = [number for number in range(env.number, 0, -1)][:23]
    assert numbers == set(newest) & set(env.steps) and len(agent.replay) == len(numbers)


def test_acer_gives_its_behaviour_and_discrete_actions():
    agent = tfdpg.ACER("CartPole-v1", **ACER)
    fit_briefly(agent, "CartPole-v1", epochs=1, steps_per_epoch=30)
    batch = agent.replay.sample(50, seed=0)
    assert batch["actions"].dtype == np.int64 and batch["actions"].shape == (50,) and set(batch["actions"]) == {0, 1}
    assert batch["behaviours"].shape == (50, 2) and set(batch["discounts"]) <= {np.float32(0.99), 0}


def test_the_seed_fixes_a_sample_and_the_agent_is_not_disturbed():
    def trained(samples):
        env = Seen()
        agent = tfdpg.DDPG(env, **SMALL | EAGER, seed=3, replay="prioritized")
        fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
        if samples:
            given = np.random.default_rng(5)
            first, second = (agent.replay.sample(8, seed)["rewards"] for seed in (5, given))
            np.testing.assert_array_equal(first, second)
            assert not np.array_equal(agent.replay.sample(8, given)["rewards"], second)
            unseeded = [agent.replay.sample(40)["rewards"] for _ in range(2)]
            assert not np.array_equal(*unseeded)
        fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
        return agent

    for one, other in zip(trained(True).get_weights(), trained(False).get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sample_is_a_copy():
    agent = once()
    for values in agent.replay.sample(9, seed=0).values():
        values[:] = 0
    assert agent.replay.sample(9, seed=0)["observations"].any()


def test_what_cannot_be_sampled():
    replay = tfdpg.DDPG(Seen(), **NO_UPDATE).replay
    assert len(replay) == 0
    with pytest.raises(ValueError, match="holds no transition"):
        replay.sample(3)
    with pytest.raises(ValueError, match="`n` must be a positive .*Received: n=0"):
        replay.sample(0)


def filled(steps=46, kind="box", **options):
    env = Seen(kind=kind)
    agent = tfdpg.DDPG(env, **NO_UPDATE | options)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=steps)
    return agent


once = functools.cache(filled)
"""An agent that no test changes."""


def transitions(replay):
    """All transitions, by the step number of their observation."""
    batch = replay.sample(40 * len(replay), seed=0)
    observation = batch.pop("observations")
    following = number_of(batch.pop("next_observations"))
    rest = zip(following, *(values.reshape(len(values), -1).tolist() for values in batch.values()), strict=True)
    return dict(sorted(zip(number_of(observation).tolist(), map(str, rest), strict=True)))


@pytest.fixture
def short(monkeypatch):
    """Segments of few rows."""
    monkeypatch.setattr(segments, "MIN_ROWS", 10)
    monkeypatch.setattr(segments, "MIN_BYTES", 0)


RECURRENT = {"n_step": 3, "recurrent": "lstm", "recurrent_units": 3}


@pytest.mark.parametrize(
    "kind, options",
    [
        *((kind, {}) for kind in ("box", "image", "dict")),
        ("dict", RECURRENT),
        *(pytest.param(kind, RECURRENT, marks=pytest.mark.slow) for kind in ("box", "image")),
    ],
)
def test_it_is_saved_and_loaded_alone(kind, options, short, tmp_path):
    agent = filled(kind=kind, **options)
    agent.data.collector.close_episodes()  # an episode that is open counts as truncated where it is loaded
    agent.replay.save(tmp_path / "runs/replay")
    other = tfdpg.DDPG(Seen(kind=kind), **NO_UPDATE | options, seed=8)
    other.replay.load(tmp_path / "runs/replay")
    assert transitions(other.replay) == transitions(agent.replay) and len(other.replay) == 46
    slots = np.flatnonzero(agent.replay.successor[: agent.replay.size] >= 0)
    for one, same in zip(
        agent.data.minibatch_builder.pack(slots), other.data.minibatch_builder.pack(slots), strict=True
    ):  # sequences, if it is recurrent
        np.testing.assert_array_equal(one, same)
    small = tfdpg.DDPG(Seen(kind=kind), **NO_UPDATE | options | {"replay_size": 22})
    with pytest.warns(UserWarning, match=r"has \d+ rows, and `replay_size` is 22, so only its newest"):
        small.replay.load(tmp_path / "runs/replay")
    kept = transitions(small.replay)
    known = transitions(agent.replay)
    assert (
        kept == {number: known[number] for number in list(known)[-len(kept) :]} and len(kept) == len(small.replay) > 9
    )


def test_acer_s_is_loaded_with_its_windows(tmp_path):
    agent, other = (tfdpg.ACER("CartPole-v1", **ACER | {"on_policy": False, "replay_ratio": 1}, seed=i) for i in (1, 2))
    fit_briefly(agent, "CartPole-v1", epochs=1, steps_per_epoch=60)
    agent.replay.save(tmp_path / "replay")
    other.replay.load(tmp_path / "replay")
    np.testing.assert_array_equal(other.replay.next_episode[:60], agent.replay.next_episode[:60])
    for name, values in agent.replay.sample(80, seed=0).items():
        if name != "truncations":  # of the open episode
            np.testing.assert_array_equal(other.replay.sample(80, seed=0)[name], values)


def test_loading_appends_and_training_goes_on(tmp_path):
    agent = filled(20)
    agent.replay.save(tmp_path / "replay")
    env = Seen(100)
    other = tfdpg.DDPG(env, **SMALL | EAGER, seed=8, replay="prioritized", normalize_observations=True)
    fit_briefly(other, env, epochs=1, steps_per_epoch=20)
    other.replay.load(tmp_path / "replay")
    assert len(other.replay) == 40
    fit_briefly(other, env, epochs=1, steps_per_epoch=20)
    assert len(other.replay) == 60 and set(env.steps) < set(transitions(other.replay))


def test_between_act_and_observe_too(tmp_path):
    agent = filled(20)
    agent.replay.save(tmp_path / "replay")
    other = tfdpg.DDPG(Seen(), **NO_UPDATE)
    other.act(np.float32([50, -50]))
    other.replay.load(tmp_path / "replay")
    other.observe(1.0, np.float32([51, -51]), False, False)
    assert transitions(other.replay).keys() == transitions(agent.replay).keys() | {50} and len(other.replay) == 21


def test_offline_training_takes_it(tmp_path):
    agent = once()
    agent.replay.save(tmp_path / "replay")
    other = tfdpg.DDPG(Seen(), **SMALL | EAGER)
    other.fit_offline(tmp_path / "replay", epochs=1, steps_per_epoch=2, verbose=0)
    assert len(other.replay) == 46 and other.updates == 2


def test_a_save_replaces_a_saved_replay_buffer_and_nothing_else(tmp_path):
    agent = filled(20)
    agent.replay.save(tmp_path / "replay")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(FileExistsError, match="Pass overwrite=True"):
        agent.replay.save(tmp_path / "replay", overwrite=False)
    fit_briefly(agent, Seen(100), epochs=1, steps_per_epoch=4)
    agent.replay.save(tmp_path / "replay")
    assert sorted(path.name for path in tmp_path.iterdir()) == before == ["replay"]
    other = tfdpg.DDPG(Seen(), **NO_UPDATE)
    other.replay.load(tmp_path / "replay")
    assert len(other.replay) == 24
    agent.save(tmp_path / "agent")
    with pytest.raises(FileExistsError, match="is not a saved replay buffer, so it is"):
        agent.replay.save(tmp_path / "agent")
    agent.replay.save(tmp_path / "again")  # with links to the rows of the saved agent
    shutil.rmtree(tmp_path / "agent")
    tfdpg.DDPG(Seen(), **NO_UPDATE).replay.load(tmp_path / "again")


def test_a_failed_save_leaves_the_one_before(tmp_path, monkeypatch):
    agent = filled(20)
    agent.replay.save(tmp_path / "replay")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    fit_briefly(agent, Seen(100), epochs=1, steps_per_epoch=4)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(files.DiskFullError, match="The disk is full"):
        agent.replay.save(tmp_path / "replay")
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]
    other = tfdpg.DDPG(Seen(), **NO_UPDATE)
    other.replay.load(tmp_path / "replay")
    assert len(other.replay) == 20


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing", "description"])
def test_damage_is_named_and_nothing_is_loaded(damage, short, tmp_path):
    once().replay.save(tmp_path / "replay")
    file = tmp_path / "replay" / ("replay.json" if damage == "description" else "rows-2.npz")
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(content[:-9])
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    other = ReplayBuffer(tfdpg.Spec.of(Seen()), 500)
    with pytest.raises(files.DamagedError, match=f"{file} (is damaged|is missing|cannot)"):
        other.load(tmp_path / "replay")
    assert len(other) == 0


@pytest.mark.parametrize("forged", ["link", "backward", "shape", "rows"])
def test_a_file_that_was_made_up_is_refused_and_nothing_is_loaded(forged, short, tmp_path):
    once().replay.save(tmp_path / "replay")
    path = tmp_path / "replay/rows-2.npz"
    description = json.loads((tmp_path / "replay/replay.json").read_bytes())
    arrays = dict(np.load(path))
    if forged in ("link", "backward"):
        arrays["successor_after"][3] = 10_000 if forged == "link" else -2
    elif forged == "shape":
        arrays["rows"] = arrays["rows"][:, 1:]
    else:
        description["rows"] += 5
    np.savez(path, **arrays)
    (tmp_path / "replay/replay.json").unlink()
    files.write_manifest(
        tmp_path / "replay", "replay.json", {k: v for k, v in description.items() if k not in ("files", "sha256")}
    )
    other = ReplayBuffer(tfdpg.Spec.of(Seen()), 500)
    with pytest.raises(files.DamagedError, match="replay.json" if forged == "rows" else "rows-2.npz"):
        other.load(tmp_path / "replay")
    assert len(other) == 0


def test_what_is_not_its_own_is_refused(tmp_path):
    agent = once()
    agent.replay.save(tmp_path / "replay")
    agent.save(tmp_path / "agent")
    with pytest.raises(FileNotFoundError, match="no saved .*agent: .*tfdpg.load_agent"):
        agent.replay.load(tmp_path / "agent")
    with pytest.raises(FileNotFoundError, match="no saved replay buffer in .*nowhere"):
        agent.replay.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="observation_space .*replay.*Dict.*: Box"):
        tfdpg.DDPG(Seen(kind="dict"), **NO_UPDATE).replay.load(tmp_path / "replay")
    with pytest.raises(ValueError, match="steps of an agent of the same kind"):
        tfdpg.DDPG(Seen(), **NO_UPDATE, recurrent="gru", recurrent_units=2).replay.load(tmp_path / "replay")


def test_rings_of_ones_own_sample_too():
    env = Seen()
    buffer = ReplayBuffer(tfdpg.Spec.of(env), 50, n_step=2, gamma=GAMMA)
    fit_briefly(tfdpg.DDPG(env, **NO_UPDATE, recorders=[buffer]), env, epochs=1, steps_per_epoch=8)
    rewards = dict(
        zip(number_of((batch := buffer.sample(99, 0))["observations"]).tolist(), batch["rewards"], strict=True)
    )
    for number, following in pairwise(sorted(rewards)):
        if following == number + 1 and not any(env.steps[number][3:]):
            assert rewards[number] == pytest.approx(env.steps[number][1] + GAMMA * env.steps[following][1])
