"""ACER on images: CartPole from its rendered frames, through a small convolutional encoder; needs the extra pygame.

python examples/pixels.py --steps 100000
"""

import argparse

import gymnasium as gym
import keras
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AddRenderObservation, FrameStackObservation, TransformObservation

import tfdpg

FRAME = (40, 75)


def make_env() -> gym.Env:
    """CartPole-v1 whose observation is the last three frames, uint8 `[3, 40, 75]`, bright on black."""
    env = AddRenderObservation(gym.make("CartPole-v1", render_mode="rgb_array"), render_only=True)
    return FrameStackObservation(TransformObservation(env, shrink, spaces.Box(0, 255, FRAME, np.uint8)), 3)


def shrink(frame: np.ndarray) -> np.ndarray:
    """Crop a frame `[400, 600, 3]` to the part in which the pole moves, and shrink and invert it.

    Each value is 255 minus the mean blue value of a block of 4 by 8 pixels.
    """
    return (255 - frame[160:320, :, 2].reshape(40, 4, 75, 8).mean(axis=(1, 3))).astype(np.uint8)


def build_encoder(features: int = 128) -> keras.Model:
    """Build the network that computes features from the three frames."""
    return keras.Sequential(
        [
            keras.Input((3, *FRAME), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Permute((2, 3, 1)),
            keras.layers.Conv2D(16, 5, strides=3, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(features, activation="relu"),
        ]
    )


def train(steps: int, num_envs: int = 8, seed: int = 0, **options) -> tuple[tfdpg.ACER, dict[str, list[float]]]:
    """Train an agent for `steps` environment steps; return the agent and its history."""
    env = gym.vector.SyncVectorEnv([make_env] * num_envs)
    agent = tfdpg.ACER(env, encoder=build_encoder(), shared_torso=True, seed=seed, **options)
    epochs = max(1, steps // 10_000)
    history = agent.fit(
        env, epochs=epochs, steps_per_epoch=steps // epochs, validation_env=make_env(), validation_episodes=5
    )
    return agent, history.history


def main() -> None:
    """Train an agent, and print the result of 20 evaluation episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    parser.add_argument("--num-envs", type=int, default=8, help="environments stepped together")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    agent, _ = train(arguments.steps, arguments.num_envs, arguments.seed, hidden_units=())
    print({name: round(value, 1) for name, value in agent.evaluate(make_env(), episodes=20, seed=1000).items()})


if __name__ == "__main__":
    main()
