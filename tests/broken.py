"""Environments with one problem each, and valid environments."""

import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)
SHARED = np.zeros(2, np.float32)


class ValidEnv(gym.Env):
    """A valid environment. The broken ones below differ from it in one point each."""

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


class Unbounded(ValidEnv):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Named(ValidEnv):
    observation_space = spaces.Dict(arm=spaces.Dict(angle=UNIT, name=spaces.Text(3)), time=spaces.Discrete(3))

    def observation(self):
        return {"arm": {"angle": super().observation(), "name": "abc"}, "time": 1}


class BadKeys(ValidEnv):
    observation_space = spaces.Dict(angle=UNIT, time=spaces.Discrete(3))

    def observation(self):
        return {"angle": super().observation()}


class NotInDict(BadKeys):
    def observation(self):
        return super().observation() | {"time": 3}


class WrongDtype(ValidEnv):
    def observation(self):
        return super().observation().astype(np.float64)


class WrongShape(ValidEnv):
    def observation(self):
        return super().observation()[None]


class TextObservation(ValidEnv):
    def observation(self):
        return np.array(["a", "b"])


class NotFinite(ValidEnv):
    def observation(self):
        return super().observation() if self.np_random.random() < 0.9 else np.array([-np.inf, 0], np.float32)


class Gaps(ValidEnv):
    """A reading is missing now and then."""

    def observation(self):
        is_there = self.np_random.random() < 0.9
        return super().observation() if is_there else np.array([0, np.nan], np.float32)


class GapsFilled(Gaps):
    """The same, with the remedy of its finding applied."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    last = np.float32(0)

    def observation(self):
        first, second = super().observation()
        is_new = np.isfinite(second)
        self.last = second if is_new else self.last
        return np.array([first, self.last, is_new], np.float32)


class NeverRead(ValidEnv):
    def observation(self):
        return super().observation() * np.array([1, np.nan], np.float32)


class Spoilt(ValidEnv):
    """From a step on, a number of the state is NaN until the episode ends."""

    def reset(self, *, seed=None, options=None):
        self.is_spoilt = False
        return super().reset(seed=seed)

    def observation(self):
        self.is_spoilt |= self.np_random.random() < 0.1
        return super().observation() * np.array([1, np.nan if self.is_spoilt else 1], np.float32)


class Divided(ValidEnv):
    """Now and then, it divides 0 by 0."""

    def observation(self):
        count = np.float32(self.np_random.random() < 0.9)
        return super().observation() * np.array([1, count / count], np.float32)


class RewardGaps(ValidEnv):
    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, reward if self.np_random.random() < 0.9 else np.nan, *ends


class Tiny(ValidEnv):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self):
        return super().observation() * np.array([1, 3.5e-4], np.float32)


class Outside(ValidEnv):
    def observation(self):
        return super().observation() * np.array([1, 300], np.float32)


class Beside(ValidEnv):
    def observation(self):
        return super().observation() * np.float32(1.5)


class OldReset(ValidEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class NoSeed(ValidEnv):
    def reset(self):
        return super().reset()


class NoOptions(ValidEnv):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


class OldStep(ValidEnv):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class VectorReward(ValidEnv):
    def step(self, action):
        return self.observation(), np.ones(2), False, False, {}


class NumberEnds(ValidEnv):
    def step(self, action):
        return self.observation(), 1.0, 1, 0, {}


class NoInfo(ValidEnv):
    def step(self, action):
        return self.observation(), 1.0, False, False, None


class Reused(ValidEnv):
    def observation(self):
        SHARED[:] = super().observation()
        return SHARED


class NaNReward(ValidEnv):
    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, np.nan, *ends


class Rewarded(ValidEnv):
    scale = 0.0

    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, self.scale * reward, *ends


class Large(Rewarded):
    scale = 1e4


class Small(Rewarded):
    scale = 1e-5


class Endless(ValidEnv):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}


class FixedLength(ValidEnv):
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


class Unseeded(ValidEnv):
    def observation(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class OneSeed(ValidEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0)


class Raising(ValidEnv):
    def step(self, action):
        raise ZeroDivisionError("the mass is 0")


class Exiting(ValidEnv):
    def step(self, action):
        sys.exit(3)


class NoActions(gym.Env):
    observation_space = UNIT
    reset = ValidEnv.reset
    step = ValidEnv.step
    observation = ValidEnv.observation


class NoObservations(gym.Env):
    action_space = ValidEnv.action_space
    reset = ValidEnv.reset
    step = ValidEnv.step
    observation = ValidEnv.observation


class ArrayReward(ValidEnv):
    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, np.array([reward]), *ends


class ListObservation(ValidEnv):
    def observation(self):
        return super().observation().tolist()


class KeyOfAction(ValidEnv):
    observation_space = spaces.Dict(a=UNIT)

    def observation(self):
        return {"a": super().observation()}


class Unlicensed(ValidEnv):
    def __init__(self):
        raise RuntimeError("no licence")


class Slow(ValidEnv):
    def step(self, action):
        time.sleep(0.012)
        return *super().step(action)[:2], False, False, {}


class FloatCamera(ValidEnv):
    observation_space = spaces.Box(0.0, 1.0, (16, 20, 3), np.float32)

    def observation(self):
        return self.np_random.uniform(0, 1, (16, 20, 3)).astype(np.float32)


class Board(ValidEnv):
    observation_space = spaces.Box(0.0, 1.0, (8, 8, 12), np.float32)

    def observation(self):
        return self.np_random.integers(0, 2, (8, 8, 12)).astype(np.float32)


class FloatImage(ValidEnv):
    observation_space = spaces.Box(0.0, 255.0, (4, 4, 3), np.float32)

    def observation(self):
        return self.np_random.uniform(0, 255, (4, 4, 3)).astype(np.float32)


class Image(ValidEnv):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def observation(self):
        return self.np_random.integers(0, 256, (8, 8, 3), np.uint8)


class HugeImage(Image):
    observation_space = spaces.Box(0, 255, (600, 600, 3), np.uint8)

    def observation(self):
        return np.full((600, 600, 3), self.np_random.integers(0, 256), np.uint8)


class Mixed(ValidEnv):
    observation_space = spaces.Dict(
        camera=Image.observation_space,
        joints=UNIT,
        phase=spaces.Discrete(3, start=1),
        modes=spaces.MultiDiscrete([2, 3]),
    )

    def observation(self):
        phase = self.np_random.integers(1, 4)
        modes = self.np_random.integers(0, [2, 3])
        return {"camera": Image.observation(self), "joints": super().observation(), "phase": phase, "modes": modes}


class ArrayEnds(ValidEnv):
    """Its terminations and truncations are arrays, as in environments that use JAX."""

    def step(self, action):
        observation, reward, *ends, info = super().step(action)
        return observation, reward, *map(np.asarray, ends), info


class DictAction(ValidEnv):
    action_space = spaces.Dict(arm=spaces.Box(-2.0, 3.0, (1,), np.float32), grip=spaces.Box(0.0, 5.0, (2,), np.float32))

    def step(self, action):
        assert action in self.action_space
        return super().step(action["arm"])


class TupleAction(ValidEnv):
    action_space = spaces.Tuple((spaces.Box(-2.0, 3.0, (1,), np.float32), spaces.Discrete(3)))

    def step(self, action):
        assert action in self.action_space
        return super().step(action[0])


class Told(ValidEnv):
    """A part of its observations is not supported; of the others, one is not finite and one is large."""

    observation_space = spaces.Dict(
        arm=spaces.Tuple((UNIT, spaces.Box(-np.inf, np.inf, (2,), np.float32))), word=spaces.Text(5)
    )

    def observation(self):
        return {"arm": (super().observation(), np.array([1000, np.inf], np.float32)), "word": "left"}


class Long(ValidEnv):
    """Its episodes have 2,400 steps."""

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.t += 1
        return *super().step(action)[:2], False, self.t >= 2400, {}


class LaterRaising(Tiny):
    """Raises an error after 300 steps."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 300:
            raise ZeroDivisionError("the mass is 0")
        return super().step(action)


class Tripping(ValidEnv):
    """Each step costs, and the plant trips now and then, which costs less than going on."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action):
        observation = super().step(action)[0]
        self.steps += 1
        trips = bool(action[0] > 0.7)
        return observation, -3.0 if trips else -1.0, trips, not trips and self.steps == 30, {}


ZOO = {
    Tripping: ("An early end returns more than a whole episode", "Add a constant to the reward of each step"),
    Unbounded: ("has infinite bounds", "finite action space"),
    Named: ("under the key 'arm/name' is not supported", "TransformObservation"),
    BadKeys: ("keys and shapes {'angle': (2,), 'time': ()}", "Correct the space"),
    NotInDict: ("`time` of an observation must be integers in Discrete(3)", "returned at a reset"),
    WrongDtype: ("dtype to be float32, actual type: float64", "Cast it"),
    WrongShape: ("must have shape (2,). Received: shape=(1, 2)", "returned at a reset"),
    NotFinite: ("is not finite: x[0] = -inf at", "divides by 0"),
    Gaps: ("is not finite: x[1] = nan at", "looks like a missing reading"),
    NeverRead: ("is not finite: x[1] = nan at a reset (", "Remove it from the observation"),
    Spoilt: ("is not finite: x[1] = nan at", "operation that first gives NaN"),
    Divided: ("is not finite: x[1] = nan at", "NumPy warns: invalid value encountered in scalar divide ("),
    RewardGaps: ("The reward is nan at step", "reading that is missing at times"),
    Tiny: ("Features of the observations are small: x[1] (offset", "`normalize_observations=True`"),
    DictAction: ("The action space Dict(", "gymnasium.wrappers.TransformAction("),
    TupleAction: ("The action space Tuple(", "gymnasium.wrappers.TransformAction("),
    Outside: ("outside its space's [-1, 1]", "Correct the bounds"),
    Beside: ("outside its space's [-1, 1]", "Correct the bounds"),
    OldReset: ("`reset` returns one ndarray, not (observation, info)", "Return `observation, {}`"),
    NoSeed: ("`reset` takes no `seed`", "super().reset(seed=seed)"),
    OldStep: ("`step` returns 4 values", "`truncated` (a limit ended the episode)"),
    VectorReward: ("`step` returns reward=array([1., 1.])", "Return a float"),
    NumberEnds: ("`step` returns terminated=1, which is not a bool", "bool(terminated)"),
    NoInfo: ("`step` returns info=None", "Return `{}`"),
    Reused: ("share an object", "Return a copy"),
    NaNReward: ("The reward is nan at step 1", "divides by 0"),
    Rewarded: ("The reward is 0 in all of 200 random steps", "`reward_shaper`"),
    Large: ("Rewards are large", "`reward_shaper`"),
    Small: ("Rewards are small", "`reward_shaper`"),
    Endless: ("No episode ended in 200 steps", "TimeLimit"),
    FixedLength: ("Episodes terminate after exactly 7 steps", "truncated=True"),
    OldLimit: ("Episodes terminate after a step limit", "truncated=True"),
    Unseeded: ("with one seed, and the same actions, give two episodes", "only from `self.np_random`"),
    OneSeed: ("with two seeds, and the same actions, give one episode", "super().reset(seed=seed)"),
    Raising: ("ZeroDivisionError: the mass is 0", "broken.py:"),
    Exiting: ("SystemExit: 3", "broken.py:"),
    NoActions: ("It has no `action_space`", "Set `self.action_space = ...`"),
    NoObservations: ("It has no `observation_space`", "Set `self.observation_space = ...`"),
    ArrayReward: ("The reward returned by `step()` must be a float", "Return a float."),
    ListObservation: ("expecting a numpy array, actual type: <class 'list'>", "Return a NumPy array."),
    KeyOfAction: ("The key 'a' of the observation space cannot name", "Rename it"),
    FloatCamera: ("x looks like an image of type float32", "uint8"),
    FloatImage: ("x looks like an image of type float32", "uint8"),
    HugeImage: ("`replay_size` must fit in the memory", "`replay_dir`"),
}
"""Broken environments, with parts of the problem and of the remedy in the only finding."""
