"""A custom plant with a clock of 50 Hz: a water tank, here with a simulated level, on which an agent trains.

python examples/tank.py
"""

import time

import gymnasium as gym
import numpy as np

import tfdpg


class Tank(gym.Env):
    """The action opens a valve; the level of the tank shall reach a set point."""

    is_real = True
    observation_space = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
    action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, period=0.02, length=250):
        self.period = period
        self.length = length
        self.level = 0.0

    def reset(self, *, seed=None, options=None):
        """Begin an episode with another set point."""
        super().reset(seed=seed)
        self.target = self.np_random.uniform(0.2, 0.8)
        self.steps = 0
        self.tick = time.monotonic()
        return self.read(), {}

    def read(self):
        """Return the level, and its distance from the set point. A real plant reads its sensors."""
        return np.array([self.level, self.target - self.level], np.float32)

    def step(self, action):
        """Open the valve until the next tick. A real plant moves."""
        # The plant protects itself, so it may execute another action.
        valve = float(action[0]) if self.level < 0.95 else 0.0
        self.level += self.period * (valve - np.sqrt(self.level) / 2)
        self.tick += self.period
        time.sleep(max(0.0, self.tick - time.monotonic()))
        self.steps += 1
        info = {"executed_action": [valve]}
        reward = -abs(self.target - self.level)
        return self.read(), reward, False, self.steps == self.length, info


if __name__ == "__main__":
    tank = Tank()
    agent = tfdpg.TD3(tank, seed=0, start_steps=500, update_after=500, update_every=1)
    checkpoint = tfdpg.callbacks.Checkpoint("runs/tank")
    agent.fit(
        tank,
        epochs=10,
        steps_per_epoch=1000,
        realtime=True,
        safe_action=[0.0],
        callbacks=[checkpoint],
    )
