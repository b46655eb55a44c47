"""Train TD3 in a custom loop, with the interface that `fit` itself uses.

python examples/own_loop.py --steps 20000
"""

import argparse

import gymnasium as gym

import tfdpg


def train(env: gym.Env, agent: tfdpg.TD3, steps: int) -> None:
    """Take `steps` environment steps, and make the updates that are due."""
    observation, _ = env.reset(seed=0)
    episode_return = 0.0
    for step in range(1, steps + 1):
        action = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated)
        agent.learn()
        episode_return += float(reward)
        if terminated or truncated:
            print(f"step {step}: return {episode_return:.1f}")
            observation, _ = env.reset()
            episode_return = 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    pendulum = gym.make("Pendulum-v1")
    td3 = tfdpg.TD3(pendulum, hidden_units=(64, 64), batch_size=64, start_steps=1000)
    train(pendulum, td3, parser.parse_args().steps)
    print(td3.evaluate(gym.make("Pendulum-v1"), episodes=20))
