"""Train TD3+BC offline: it learns from the recording of a half-trained TD3, without the environment.

python examples/offline.py --env HalfCheetah-v5
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium as gym

import tfdpg


def compare(env_id: str, recording: Path, steps: int, updates: int, seed: int = 0, **options) -> dict[str, float]:
    """Return the returns of an agent that collects `steps` steps and of one that learns only from its recording."""
    env = gym.make(env_id)
    test_env = gym.make(env_id)
    online = tfdpg.TD3(env, seed=seed, recorders=[recording], **options)
    online.fit(env, epochs=1, steps_per_epoch=steps)
    offline = tfdpg.TD3(tfdpg.Spec.of(env), seed=seed, bc_weight=0.4, normalize_observations=True, **options)
    offline.fit_offline(recording, epochs=1, steps_per_epoch=updates)
    agents = {"online": online, "offline": offline}
    return {name: agent.evaluate(test_env, episodes=20)["return"] for name, agent in agents.items()}


def main() -> None:
    """Train both agents, and print their returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps of the half-trained agent")
    parser.add_argument("--updates", type=int, default=100_000, help="updates of the offline agent")
    parser.add_argument("--recording", type=Path, help="where to record; a temporary directory if not given")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    recording = arguments.recording or Path(tempfile.mkdtemp(prefix="tfdpg-recording-"))
    returns = compare(arguments.env, recording, arguments.steps, arguments.updates, arguments.seed)
    print("; ".join(f"{name}: return {value:.1f}" for name, value in returns.items()))


if __name__ == "__main__":
    main()
