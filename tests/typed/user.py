"""What somebody writes who uses tfdpg; a type checker finds the three mistakes, and nothing else."""

import gymnasium as gym
import keras
import numpy as np

import tfdpg


def learning_rate(step: int) -> float:
    """A factor of the noise."""
    return max(0.1, 1 - step / 100_000)


env = gym.make("Pendulum-v1")
agent = tfdpg.TD3(
    env,
    hidden_units=(64, 64),
    pi_lr=3e-4,
    act_noise_schedule=learning_rate,
    noise="gaussian",
)
typo = tfdpg.TD3(env, pi_learning_rate=3e-4)  # mistake: no such option
literal = tfdpg.D4PG(env, critic="quantile")  # mistake: no such critic
history = agent.fit(env, epochs="5")  # mistake: not a number
history = agent.fit(env, epochs=5, callbacks=[keras.callbacks.CSVLogger("progress.csv")])
returns: list[float] = history.history["return"]
scores: dict[str, float] = agent.evaluate(env, episodes=3)
action: np.ndarray = agent.predict(np.zeros((2, 3), np.float32))
logs: dict[str, float] = agent.train_on_batch({"rewards": np.zeros(100)})
path = agent.export("model", scores=scores)
policy = tfdpg.load(path)
again = tfdpg.load_agent("agent", env, pi_lr=1e-4)
offline = tfdpg.DDPG(env, bc_weight=0.4, batch_size=256).fit_offline("recording", epochs=2, verbose=0)
