"""An environment that violates Gymnasium's API in one step or in every step."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

PARTS = ("observation", "reward", "terminated", "truncated", "info")

FAULTS = {
    "four values": lambda result: result[:4],
    "nothing": lambda result: None,
    **{f"reward {name}": {"reward": value} for name, value in (("None", None), ("text", "a"), ("two", np.ones(2)))},
    "terminated None": {"terminated": None},
    "terminated text": {"terminated": "no"},
    "truncated two": {"truncated": np.ones(2, bool)},
    "truncated 2": {"truncated": 2},
    "observation short": {"observation": np.ones(1, np.float32)},
    "observation long": {"observation": np.ones(3, np.float32)},
    "observation ragged": {"observation": [[1.0], 2.0]},
    "observation text": {"observation": np.array(["a", "b"])},
    "observation None": {"observation": None},
    "info None": {"info": None},
}
"""Faults of the return value of `step`: its structure, or a part of it."""

HARMLESS = {
    "reward array": {"reward": np.array([2.0])},
    "reward int": {"reward": 2},
    "ends 0 and 1": {"terminated": 0, "truncated": 1},
    "ends arrays": {"terminated": np.array([False]), "truncated": np.array(True)},
    "observation list": {"observation": [1.0, 2.0]},
}


class Misbehaving(gym.Env):
    """Returns the observation [step, 0] and the reward 1; a fault changes the return value of some steps.

    Args:
        fault: a key or a value of `FAULTS` or `HARMLESS`, "raises", "hangs" or "exits"; or "bare": `reset`
            returns the observation alone.
        at: the step with the fault, counted over all episodes; None stands for every step.
        length: the length of an episode.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fault=None, at=None, length=10):
        self.fault = fault
        self.at = at
        self.length = length
        self.total = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        observation = np.zeros(2, np.float32)
        return observation if self.fault == "bare" and self.total >= (self.at or 0) else (observation, {})

    def step(self, action):
        self.t += 1
        self.total += 1
        result = np.array([self.t, 0], np.float32), 1.0, False, self.t >= self.length, {}
        if self.fault in (None, "bare") or self.at not in (None, self.total):
            return result
        if self.fault == "raises":
            raise np.linalg.LinAlgError("the mass is 0")
        if self.fault == "hangs":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        if self.fault == "exits":
            os._exit(3)
        change = self.fault if isinstance(self.fault, dict) else (FAULTS | HARMLESS)[self.fault]
        return change(result) if callable(change) else tuple((dict(zip(PARTS, result, strict=True)) | change).values())
