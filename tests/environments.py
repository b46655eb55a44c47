"""Small environments whose every number is known."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env):
    """The observation is [episode number, step]; the reward is the step; episodes end after `length` steps.

    `ends` says how: "terminated" or "truncated". `bad_at` gives a NaN `bad` ("reward" or "observation").
    """

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length=5, ends="terminated", bad=None, bad_at=None, as_dict=False):
        self.length = length
        self.ends = ends
        self.bad = bad
        self.bad_at = bad_at
        self.as_dict = as_dict
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(position=box, phase=spaces.Discrete(3, start=1)) if as_dict else box
        self.episode = -1
        self.total = 0
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        self.total += 1
        over = self.t >= self.length
        is_bad = self.total == self.bad_at
        reward = np.nan if is_bad and self.bad == "reward" else float(self.t)
        observation = self._observation()
        if is_bad and self.bad == "observation":
            observation = observation * np.nan
        return observation, reward, over and self.ends == "terminated", over and self.ends == "truncated", {}

    def _observation(self):
        position = np.array([self.episode, self.t], np.float32)
        return {"position": position, "phase": 1 + self.t % 3} if self.as_dict else position


class Distances(Counter):
    """One feature of its observations is large."""

    def __init__(self):
        super().__init__()
        box = spaces.Box(0, 2e5, (2,), np.float64)
        self.observation_space = spaces.Dict(distance=box, angle=spaces.Box(-1, 1, (), np.float32))

    def _observation(self):
        return {"distance": np.array([53_131.0 + 1000 * np.sin(self.t), 1.0]), "angle": np.float32(0.5)}


class Identity(gym.Env):
    """Episodes of one step; the reward is best, 0, when the action is the observation (in an asymmetric box)."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.wanted, {}

    def step(self, action):
        return self.wanted, -float((action[0] - self.wanted[0]) ** 2), True, False, {}


class RandomWalk(gym.Env):
    """A random walk that actions push; its seed fixes it. Episodes are truncated after `length` steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length=30):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.position = self.np_random.normal(size=2).astype(np.float32)
        return self.position, {}

    def step(self, action):
        self.t += 1
        self.position = self.position + (0.1 * action + self.np_random.normal(0, 0.1, 2)).astype(np.float32)
        return self.position, -float(np.square(self.position).sum()), False, self.t >= self.length, {}


gym.register("tfdpg-test/Counter-v0", Counter)
gym.register("tfdpg-test/Walk-v0", RandomWalk)
