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


class Machine(Counter):
    """A real machine, which counts its instances and the actions that it executed."""

    is_real = True
    instances = 0
    steps = 0

    def __init__(self):
        super().__init__(10, "truncated")
        Machine.instances += 1

    def step(self, action):
        Machine.steps += 1
        return super().step(action)


class Distances(Counter):
    """One feature of its observations is large."""

    def __init__(self):
        super().__init__()
        box = spaces.Box(0, 2e5, (2,), np.float64)
        self.observation_space = spaces.Dict(distance=box, angle=spaces.Box(-1, 1, (), np.float32))

    def _observation(self):
        return {"distance": np.array([53_131.0 + 1000 * np.sin(self.t), 1.0]), "angle": np.float32(0.5)}


class Remote(Counter):
    """The second feature of its observations is large."""

    def _observation(self):
        return super()._observation() * np.array([1, 1000], np.float32)


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


class Reach(gym.Env):
    """A point in a square moves with the action, and is to reach a goal, which changes in each episode.

    The reward is 0 at the goal and −1 elsewhere. `ends` says what a reached goal does: "terminated", "truncated" or
    nothing, None; episodes are truncated after `length` steps. `accepts_arrays` says whether the functions of goals
    accept arrays.
    """

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length=10, ends=None, accepts_arrays=True, radius=0.15):
        goal = spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.observation_space = spaces.Dict(observation=goal, achieved_goal=goal, desired_goal=goal)
        self.length = length
        self.ends = ends
        self.accepts_arrays = accepts_arrays
        self.radius = radius

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.position = np.zeros(2, np.float32)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        self.position = np.clip(self.position + 0.3 * np.asarray(action, np.float32), -1, 1)
        goals = self.position, self.goal, {}
        truncated = self.t >= self.length or self.compute_truncated(*goals)
        return (
            self._observation(),
            float(self.compute_reward(*goals)),
            bool(self.compute_terminated(*goals)),
            bool(truncated),
            {"is_success": bool(self._is_reached(*goals[:2]))},
        )

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self._is_reached(achieved_goal, desired_goal) - 1.0

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self._is_reached(achieved_goal, desired_goal) & (self.ends == "terminated")

    def compute_truncated(self, achieved_goal, desired_goal, info):
        return self._is_reached(achieved_goal, desired_goal) & (self.ends == "truncated")

    def _is_reached(self, achieved_goal, desired_goal):
        axis = -1 if self.accepts_arrays else None
        return np.linalg.norm(achieved_goal - desired_goal, axis=axis) < self.radius

    def _observation(self):
        return {"observation": self.position, "achieved_goal": self.position, "desired_goal": self.goal}


gym.register("tfdpg-test/Machine-v0", Machine)
gym.register("tfdpg-test/Reach-v0", Reach)
