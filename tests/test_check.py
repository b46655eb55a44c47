"""`tfdpg.check`, and the cheap part of it in `fit`: each finding is that of a broken environment."""

import re
import subprocess
import sys
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, vector

import tfdpg
from tests.agents.roster import ACER, SMALL, brief
from tests.docs.pages import fences
from tests.environments import Counter
from tfdpg import cli, environments
from tfdpg.checking import play
from tfdpg.findings import normalizers, outside

pytestmark = brief

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)
SHARED = np.zeros(2, np.float32)


class Sound(gym.Env):
    """Nothing is wrong with it; the broken ones below differ in one thing each."""

    observation_space = UNIT
    action_space = spaces.Box(-2.0, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action):
        ended = bool(self.np_random.random() < 0.1)
        return self.observation(), float(action[0]), ended, False, {}

    def observation(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Unbounded(Sound):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Nested(Sound):
    observation_space = spaces.Dict(arm=spaces.Dict(angle=UNIT), time=spaces.Discrete(3))

    def observation(self):
        return {"arm": {"angle": super().observation()}, "time": 1}


class BadKeys(Sound):
    observation_space = spaces.Dict(angle=UNIT, time=spaces.Discrete(3))

    def observation(self):
        return {"angle": super().observation()}


class NotInDict(BadKeys):
    def observation(self):
        return super().observation() | {"time": 3}


class WrongDtype(Sound):
    def observation(self):
        return super().observation().astype(np.float64)


class WrongShape(Sound):
    def observation(self):
        return super().observation()[None]


class Text(Sound):
    def observation(self):
        return np.array(["a", "b"])


class NotFinite(Sound):
    def observation(self):
        return super().observation() if self.np_random.random() < 0.9 else np.array([-np.inf, 0], np.float32)


class Outside(Sound):
    def observation(self):
        return super().observation() * np.array([1, 300], np.float32)


class Beside(Sound):
    def observation(self):
        return super().observation() * np.float32(1.5)


class OldReset(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class NoSeed(Sound):
    def reset(self):
        return super().reset()


class NoOptions(Sound):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


class OldStep(Sound):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class VectorReward(Sound):
    def step(self, action):
        return self.observation(), np.ones(2), False, False, {}


class NumberEnds(Sound):
    def step(self, action):
        return self.observation(), 1.0, 1, 0, {}


class NoInfo(Sound):
    def step(self, action):
        return self.observation(), 1.0, False, False, None


class Reused(Sound):
    def observation(self):
        SHARED[:] = super().observation()
        return SHARED


class NaNReward(Sound):
    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, np.nan, *ends


class Rewarded(Sound):
    scale = 0.0

    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, self.scale * reward, *ends


class Large(Rewarded):
    scale = 1e4


class Small(Rewarded):
    scale = 1e-5


class Endless(Sound):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}


class FixedLength(Sound):
    ends = True, False
    info = {}

    def reset(self, **kwargs):
        self.t = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.t += 1
        over = self.t >= 7
        return *super().step(action)[:2], *(over and end for end in self.ends), dict(self.info)


class OldLimit(FixedLength):
    info = {"TimeLimit.truncated": True}


class RightLimit(FixedLength):
    ends = False, True


class Unseeded(Sound):
    def observation(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class OneSeed(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0)


class Raising(Sound):
    def step(self, action):
        raise ZeroDivisionError("the mass is 0")


class Exiting(Sound):
    def step(self, action):
        sys.exit(3)


class NoActions(gym.Env):
    observation_space, reset, step, observation = UNIT, Sound.reset, Sound.step, Sound.observation


class NoObservations(gym.Env):
    action_space, reset, step, observation = Sound.action_space, Sound.reset, Sound.step, Sound.observation


class ArrayReward(Sound):
    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, np.array([reward]), *ends


class ListObservation(Sound):
    def observation(self):
        return super().observation().tolist()


class KeyOfAction(Sound):
    observation_space = spaces.Dict(a=UNIT)

    def observation(self):
        return {"a": super().observation()}


class Unlicensed(Sound):
    def __init__(self):
        raise RuntimeError("no licence")


class Slow(Sound):
    def step(self, action):
        time.sleep(0.012)
        return *super().step(action)[:2], False, False, {}


class FloatCamera(Sound):
    observation_space = spaces.Box(0.0, 1.0, (16, 20, 3), np.float32)

    def observation(self):
        return self.np_random.uniform(0, 1, (16, 20, 3)).astype(np.float32)


class Board(Sound):
    observation_space = spaces.Box(0.0, 1.0, (8, 8, 12), np.float32)

    def observation(self):
        return self.np_random.integers(0, 2, (8, 8, 12)).astype(np.float32)


class FloatImage(Sound):
    observation_space = spaces.Box(0.0, 255.0, (4, 4, 3), np.float32)

    def observation(self):
        return self.np_random.uniform(0, 255, (4, 4, 3)).astype(np.float32)


class Image(Sound):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def observation(self):
        return self.np_random.integers(0, 256, (8, 8, 3), np.uint8)


class HugeImage(Image):
    observation_space = spaces.Box(0, 255, (600, 600, 3), np.uint8)

    def observation(self):
        return np.full((600, 600, 3), self.np_random.integers(0, 256), np.uint8)


class Mixed(Sound):
    observation_space = spaces.Dict(
        camera=Image.observation_space,
        joints=UNIT,
        phase=spaces.Discrete(3, start=1),
        modes=spaces.MultiDiscrete([2, 3]),
    )

    def observation(self):
        phase, modes = self.np_random.integers(1, 4), self.np_random.integers(0, [2, 3])
        return {"camera": Image.observation(self), "joints": super().observation(), "phase": phase, "modes": modes}


ZOO = {
    Unbounded: ("has infinite bounds", "finite action space"),
    Nested: ("under the key 'arm' is not supported", "FlattenObservation"),
    BadKeys: ("has the keys ['angle'], its space ['angle', 'time']", "Give these"),
    NotInDict: ("has time = 3 after a reset, which is not in its space Discrete(3)", "Give the space"),
    WrongDtype: ("dtype to be float32, actual type: float64", "Cast it"),
    WrongShape: ("shape (1, 2) after a reset, its space shape (2,)", "the same shape"),
    NotFinite: ("has x = -inf", "divides by 0"),
    Outside: ("outside its space's [-1, 1]", "bounds that hold"),
    Beside: ("outside its space's [-1, 1]", "bounds that hold"),
    OldReset: ("`reset` returns one ndarray, not (observation, info)", "Return `observation, {}`"),
    NoSeed: ("`reset` takes no `seed`", "super().reset(seed=seed)"),
    OldStep: ("`step` returns 4 values", "`truncated` (a limit cut the episode)"),
    VectorReward: ("`step` gives reward=array([1., 1.])", "Give a float"),
    NumberEnds: ("`step` gives terminated=1, which is no bool", "bool(terminated)"),
    NoInfo: ("`step` gives info=None", "Give `{}`"),
    Reused: ("share an object", "Give a copy"),
    NaNReward: ("The reward is nan at step 1", "divides by 0"),
    Rewarded: ("The reward is 0 in all of 200 random steps", "`reward_shaper`"),
    Large: ("Rewards are large", "`reward_shaper`"),
    Small: ("Rewards are small", "`reward_shaper`"),
    Endless: ("No episode ended in 200 steps", "TimeLimit"),
    FixedLength: ("Episodes terminate after exactly 7 steps", "truncated=True"),
    OldLimit: ("Episodes terminate after a limit of their steps", "truncated=True"),
    Unseeded: ("with one seed, and the same actions, give two episodes", "`self.np_random` alone"),
    OneSeed: ("with two seeds, and the same actions, give one episode", "super().reset(seed=seed)"),
    Raising: ("ZeroDivisionError: the mass is 0", "test_check.py:"),
    Exiting: ("SystemExit: 3", "test_check.py:"),
    NoActions: ("It has no `action_space`", "Set `self.action_space = ...`"),
    NoObservations: ("It has no `observation_space`", "Set `self.observation_space = ...`"),
    ArrayReward: ("The reward returned by `step()` must be a float", "Give a float."),
    ListObservation: ("expecting a numpy array, actual type: <class 'list'>", "Give a NumPy array."),
    KeyOfAction: ("The key 'a' of the observation space cannot name", "Rename it"),
    FloatCamera: ("x looks like an image of type float32", "uint8"),
    FloatImage: ("x looks like an image of type float32", "uint8"),
    HugeImage: ("`replay_size` must fit in the memory", "`replay_dir`"),
}
"""Broken environments, with parts of what is found and of what is to be changed: this, and nothing else."""


@pytest.mark.parametrize("broken", ZOO, ids=lambda broken: broken.__name__)
def test_each_finding_is_that_of_an_environment(broken):
    found = tfdpg.check(broken(), steps=5 if broken is HugeImage else 200, verbose=0)
    what, remedy = ZOO[broken]
    assert len(found) == 1, found
    assert what in found[0].what and remedy in found[0].remedy
    assert "\n" not in found[0].what + found[0].remedy


@pytest.mark.parametrize("sound", [Sound, RightLimit, Image, Mixed, Board], ids=lambda sound: sound.__name__)
def test_nothing_is_found_where_nothing_is_wrong(sound):
    assert tfdpg.check(sound(), verbose=0) == []


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5", "CartPole-v1", "MountainCarContinuous-v0"])
def test_nothing_is_found_in_gymnasiums_own(env_id):
    assert tfdpg.check(env_id, verbose=0) == []


def test_what_was_hardly_looked_at_is_said(capsys, monkeypatch):
    monkeypatch.setattr(play, "SECONDS", 0.1)
    (found,) = tfdpg.check(Slow())
    assert re.match(r"It is slow: a million steps take \d+ hours", found.what) and "async" in found.remedy
    shown = capsys.readouterr().out
    assert re.search(r"none ended in \d+ steps: too few to see one end$", shown, re.MULTILINE)
    assert re.search(r"steps/s; cut after 0 seconds, at \d+ of 1,000 steps", shown)
    assert tfdpg.check(TimeLimit(Endless(), 500), steps=100) == []
    assert "none ended in 100 steps: too few to see one end; take more (--steps)" in capsys.readouterr().out


def test_what_is_no_number_is_a_finding():
    *_, found = tfdpg.check(Text(), verbose=0)
    assert "has x of type <U1" in found.what and "real numbers" in found.remedy


def test_wrappers_do_not_hide_old_forms():
    for broken in (OldReset, OldStep, NoSeed, NoOptions):
        (found,) = tfdpg.check(TimeLimit(broken(), 10), verbose=0)
        assert found.what.startswith(("`reset`", "`step`"))
    assert tfdpg.check(TimeLimit(Endless(), 5000), verbose=0) == []  # its limit is known, and further away


def test_what_refuses_one_thing_does_not_hide_another():
    class Both(Nested):
        action_space = Unbounded.action_space

    found = tfdpg.check(Both(), verbose=0)
    assert len(found) == 2 and "'arm'" in found[0].what and "infinite" in found[1].what


def test_an_object_that_is_no_environment_is_a_finding():
    (found,) = tfdpg.check(object(), verbose=0)
    assert "builtins.object" in found.what and "shimmy" in found.remedy


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_of_a_vector_environment_the_first_lane_is_looked_at(kind, mode, capsys):
    for one, parts in ((Sound, 0), (Outside, 1)):
        envs = kind([one, one], autoreset_mode=mode)
        assert len(tfdpg.check(envs, steps=50)) == parts
        envs.close()
    assert "2 lanes" in capsys.readouterr().out


def test_a_vector_environment_that_agents_refuse_is_a_finding():
    (found,) = tfdpg.check(gym.make_vec("CartPole-v1", num_envs=2), verbose=0)
    assert "reset some of its lanes" in found.what


def test_the_report_has_what_an_agent_sees(capsys):
    assert tfdpg.check(Mixed(), steps=20) == []
    shown = capsys.readouterr().out
    for line in (
        "camera: uint8 (8, 8, 3) in [0, 255]; 192 features, scaled to [0, 1]",
        "joints: float32 (2,) in [-1, 1]; 2 features, as float32",
        "phase: int64 () from 1 to 3; 3 features, one-hot",
        "modes: int64 (2,) from [0, 0] to [1, 2]; 5 features, one-hot",
        "1 number in [-2, 3], in these units; for DDPG, TD3, D4PG and ACER",
        "no findings",
    ):
        assert line in shown
    tfdpg.check(Sound(), verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("env_id, agent, options", [("Pendulum-v1", "TD3", SMALL), ("CartPole-v1", "ACER", ACER)])
def test_the_memory_is_that_of_the_agents_replay(env_id, agent, options, capsys):
    tfdpg.check(env_id, steps=1)
    options = {name: value for name, value in options.items() if name != "replay_size"}
    replay = getattr(tfdpg, agent)(gym.make(env_id), **options).replay
    assert f"{replay.nbytes / 1e6:,.0f} MB when full" in (shown := capsys.readouterr().out)
    assert f"{replay.replay_size:,}" in shown


def test_the_command_says_it_all_and_exits_with_1_if_there_is_something(capsys, monkeypatch):
    assert cli.main(["check", "Pendulum-v1", "--env-kwargs", "g=9.0", "max_episode_steps=30"]) == 0
    assert "no findings" in (shown := capsys.readouterr().out) and "of 30 steps" in shown
    assert cli.main(["check", "tests.test_check:OldStep"]) == 1
    assert "1 finding\n- `step` returns 4 values" in capsys.readouterr().out
    assert cli.main(["check", "tests.test_check:NoActions"]) == 1
    assert "1 finding\n- It has no `action_space`" in capsys.readouterr().out


UNMADE = {
    "Nope-v0": r"cannot be made: Environment `Nope` doesn't exist\..* An environment of your own is module:Class\.",
    "Pendulum-v9": r"provides versioned environments: \[ `v1` \]\.$",
    "tests.test_check": "module:Class",
    "tests.environments:Nope": "module 'tests.environments' has no class 'Nope', and .* classes of it: .*Counter",
    "tests.nowhere:Nope": "No module named 'tests.nowhere'. Modules are looked for in the working directory",
    "tests.test_check:Unlicensed": r"it raised RuntimeError: no licence \(.*test_check\.py:\d+\)$",
}


@pytest.mark.parametrize("env_id", UNMADE)
def test_the_command_says_why_an_environment_cannot_be_made(env_id, capsys):
    assert cli.main(["check", env_id]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("tfdpg: The environment") and shown.count("\n") == 1 and "{}" not in shown
    assert re.search(UNMADE[env_id], shown)
    with pytest.raises(ValueError, match="cannot be made with {'x': 1}: "):
        environments.make(env_id, x=1)


@pytest.mark.filterwarnings("default")
def test_the_command_has_gymnasiums_warnings_on_a_line(capsys):
    assert cli.main(["check", "Pendulum", "--steps", "200"]) == 0
    shown = "tfdpg: Using the latest versioned environment `Pendulum-v1` instead of the unversioned environment"
    assert capsys.readouterr().err == f"{shown} `Pendulum`.\n"


def test_the_page_shows_what_the_command_prints(capsys):
    (shown,) = fences("docs/checking.md", "text")
    assert cli.main(["check", "Pendulum-v1", "--env-kwargs", "g=9.81"]) == 0
    without_speed = [re.sub(r"[\d,.]+ steps/s", "", text.strip()) for text in (shown.code, capsys.readouterr().out)]
    assert without_speed[0] == without_speed[1]


def test_the_command_needs_no_tensorflow():
    code = "import sys; from tfdpg.cli import main; assert main(['check', 'Pendulum-v1']) == 0;"
    code += "heavy = {'tensorflow', 'keras', 'ray', 'torch'} & set(sys.modules); assert not heavy, heavy"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert time.perf_counter() - began < 20


def test_a_class_is_made_by_its_module_and_name():
    for env_id in ("tests.environments:Counter", "tests.environments:tfdpg-test/Counter-v0"):
        env = environments.make(env_id, length=4)
        assert isinstance(env.unwrapped, Counter) and env.unwrapped.length == 4
    env = environments.make("tests.environments:Counter", max_episode_steps=2)
    assert env.spec.id == "tests.environments:Counter" and env.spec.max_episode_steps == 2
    envs = environments.make_several("tests.environments:Counter", {"length": 3}, 2, "sync")
    assert [one.unwrapped.length for one in envs.envs] == [3, 3]
    for missing in ("tests.environments:Nope", "tests.nowhere:Counter", "tests.environments:np"):
        with pytest.raises(ValueError, match="cannot be made"):
            environments.make(missing)
    with pytest.raises(ValueError, match="^run.json imports.*--trusted"):
        environments.check_trusted("tests.environments:Counter", {}, trusted=False, file="run.json")


@pytest.mark.slow
def test_the_command_line_trains_on_a_class_and_goes_on(tmp_path):
    flags = "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5 --replay-size 100"
    flags += " --epochs 1 --steps-per-epoch 20 --validation-episodes 1 --jit-compile False --verbose 0"
    run = str(tmp_path / "run")
    assert cli.main(["train", "td3", "--env", "tests.test_check:Sound", "--run-dir", run, *flags.split()]) == 0
    assert cli.main(["train", "--resume", f"{run}/seed-0", "--epochs", "2"]) == 1  # it imports: not without --trusted
    assert cli.main(["train", "--resume", f"{run}/seed-0", "--epochs", "2", "--trusted"]) == 0
    assert cli.main(["evaluate", f"{run}/seed-0", "--episodes", "1", "--trusted"]) == 0


# What `fit` looks at.


def untrained(env):
    return tfdpg.TD3(tfdpg.Spec.of(env), **SMALL | {"update_after": 1000})


@pytest.fixture(scope="module")
def agent():
    """For environments that fail at once, so that nothing of them is stored."""
    return untrained(Sound())


def fitted(env, agent=None, **options):
    return (agent or untrained(env)).fit(env, epochs=1, steps_per_epoch=20, verbose=0, **options)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 10)], ids=["bare", "limited"])
@pytest.mark.parametrize("broken", [OldReset, OldStep, NoSeed, VectorReward, NumberEnds], ids=lambda b: b.__name__)
def test_fit_says_what_to_change_in_old_environments(broken, wrap, agent):
    what, remedy = ZOO[broken]
    with pytest.raises(ValueError) as raised:
        fitted(wrap(broken()), agent)
    assert what in str(raised.value) and remedy in str(raised.value)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("broken", [OldReset, OldStep, NoOptions], ids=lambda b: b.__name__)
def test_fit_says_what_to_change_in_old_lanes(kind, broken, agent):
    envs = kind([broken])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of AsyncVectorEnv about the error
        with pytest.raises(ValueError, match="`reset` returns|`step` returns|takes no"):
            fitted(envs, agent)
        envs.close(**{"terminate": True} if kind is AsyncVectorEnv else {})


def test_what_fails_for_another_reason_keeps_its_error(agent):
    with pytest.raises(ZeroDivisionError, match="the mass is 0"):
        fitted(Raising(), agent)


def test_fit_warns_once_of_observations_far_outside_their_space():
    with pytest.warns(UserWarning, match=r"x\[1\] = .*outside its space's \[-1, 1\].*normalize_observations") as caught:
        fitted(Outside())
    assert sum("outside" in str(warning.message) for warning in caught) == 1
    fitted(Beside())  # without a warning: that is not far


def test_fit_warns_of_the_part_that_is_outside():
    class Part(Mixed):
        def observation(self):
            return super().observation() | {"joints": np.array([0, -9], np.float32)}

    with pytest.warns(UserWarning, match=r"joints\[1\] = -9, outside"):
        fitted(Part())


def test_the_entry_furthest_outside_is_named():
    box = spaces.Box(np.array([0, -np.inf, 5]), np.array([1, 3, 5.5]), dtype=np.float64)
    assert outside(box, [[0.5, -1e9, 5.2], [1, 3, 5.5]], "x") is None
    assert outside(box, [1 + 1e-7, 3, 5.5], "x") is None  # rounding
    assert "x[1] = 4," in outside(box, [[0.5, 0, 5.2], [1.5, 4, 5]], "x").what
    assert outside(box, [1.9, 3, 5], "x", slack=1.0) is None and outside(box, [2.1, 3, 5], "x", slack=1.0)
    assert outside(spaces.Box(0.0, 1.0, ()), 7.0, "x").what.startswith("An observation has x = 7,")
    assert outside(spaces.Box(-np.inf, np.inf, (1,)), [np.inf], "x") is None


NORMALISED = {
    "single": (lambda: TimeLimit(NormalizeObservation(Sound()), 9), 1),
    "reward": (lambda: NormalizeReward(TimeLimit(Sound(), 9)), 1),
    "both": (lambda: NormalizeReward(NormalizeObservation(Sound())), 2),
    "sync": (lambda: SyncVectorEnv([lambda: NormalizeObservation(Sound())]), 1),
    "async": (lambda: AsyncVectorEnv([lambda: NormalizeReward(NormalizeObservation(Sound()))]), 2),
    "vector": (lambda: vector.NormalizeReward(vector.NormalizeObservation(SyncVectorEnv([Sound]))), 2),
    "vector async": (lambda: vector.RecordEpisodeStatistics(vector.NormalizeObservation(AsyncVectorEnv([Sound]))), 1),
    "none": (lambda: vector.RecordEpisodeStatistics(AsyncVectorEnv([lambda: TimeLimit(Sound(), 9)])), 0),
}


@pytest.mark.parametrize("made", NORMALISED)
def test_normalising_wrappers_are_found_wherever_they_are(made):
    make, count = NORMALISED[made]
    env = make()
    found = list(normalizers(env))
    assert len(found) == count and len(set(found)) == count
    assert tfdpg.check(env, steps=30, verbose=0) == found
    env.close()


def test_fit_warns_of_normalising_wrappers_around_both_environments():
    with pytest.warns(UserWarning, match="`env`: NormalizeReward .* `reward_shaper`") as caught:
        fitted(NormalizeReward(Sound()))
    assert sum("Normalize" in str(warning.message) for warning in caught) == 1
    training = TimeLimit(Sound(), 5)
    training.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    validation = NormalizeObservation(TimeLimit(Sound(), 5))
    with pytest.warns(UserWarning, match="`validation_env`: NormalizeObservation .* `normalize_observations=True`"):
        fitted(training, validation_env=validation, validation_episodes=1)
