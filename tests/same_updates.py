"""Whether two trees of tfdpg learn the same: the weights after 500 updates, for each agent and each kind of replay.

    git worktree add /tmp/before <commit>
    python tests/same_updates.py /tmp/before .            # without XLA: to the bit
    python tests/same_updates.py /tmp/before . --xla      # with it: to 1e-6 of the largest weight

Each tree learns in a process of its own, from the same steps; it prints a line a case, and exits with 1 if one differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

UPDATES = 500
SMALL = {"hidden_units": (32, 32), "replay_size": 1000, "seed": 3}
STEPS = SMALL | {"batch_size": 16, "start_steps": 100, "update_after": 100, "update_every": 25}
RECURRENT_OPTIONS = {"recurrent_units": 8, "sequence_length": 6, "burn_in": 4}
ATOMS = {"v_min": -20.0, "v_max": 0.0}
CASES = {
    "ddpg": ("DDPG", "Pendulum-v1", STEPS),
    "ddpg-ou-prioritized": ("DDPG", "Pendulum-v1", STEPS | {"noise": "ou", "replay": "prioritized"}),
    "td3": ("TD3", "Pendulum-v1", STEPS),
    "td3-prioritized": ("TD3", "Pendulum-v1", STEPS | {"replay": "prioritized", "n_step": 3}),
    "td3-passes": ("TD3", "Pendulum-v1", STEPS | {"epochs_per_round": 1, "policy_gradient": "min"}),
    "td3-normalized": ("TD3", "Pendulum-v1", STEPS | {"normalize_observations": True, "clip_norm": 1.0, "l2": 1e-4}),
    "td3-delayed-ddpg": ("TD3", "Pendulum-v1", STEPS | {"critics": 1, "target_update_every": 7, "bc_weight": 0.1}),
    "d4pg": ("D4PG", "Pendulum-v1", STEPS | ATOMS),
    "d4pg-twin-uniform": ("D4PG", "Pendulum-v1", STEPS | ATOMS | {"critics": 2, "replay": "uniform"}),
    "d4pg-auto": ("D4PG", "Pendulum-v1", STEPS),
    "d4pg-mixture": ("D4PG", "Pendulum-v1", STEPS | {"critic": "mixture"}),
    "d4pg-scalar": ("D4PG", "Pendulum-v1", STEPS | {"critic": "scalar"}),
    "td3-lstm": ("TD3", "Pendulum-v1", STEPS | RECURRENT_OPTIONS | {"recurrent": "lstm", "n_step": 2}),
    "ddpg-gru-prioritized": (
        "DDPG",
        "Pendulum-v1",
        STEPS | RECURRENT_OPTIONS | {"recurrent": "gru", "replay": "prioritized"},
    ),
    "d4pg-rnn": (
        "D4PG",
        "Pendulum-v1",
        STEPS | ATOMS | RECURRENT_OPTIONS | {"recurrent": "rnn", "stored_state": False},
    ),
    "acer-discrete": ("ACER", "CartPole-v1", SMALL | {"batch_size": 8, "replay_start": 100}),
    "acer-gaussian": ("ACER", "Pendulum-v1", SMALL | {"batch_size": 8, "replay_start": 100}),
    "acer-learnt": ("ACER", "Pendulum-v1", SMALL | {"batch_size": 8, "replay_start": 100, "learn_sigma": True}),
}


def learn(case: str, xla: bool, file: str) -> None:
    """Steps an agent through its environment until it has made `UPDATES` updates, and writes its weights."""
    import gymnasium as gym

    import tfdpg

    agent_name, env_id, options = CASES[case]
    env = gym.make(env_id)
    agent = getattr(tfdpg, agent_name)(env, **options, jit_compile=xla)
    observation, _ = env.reset(seed=agent.next_reset_seed(0))
    while agent.updates < UPDATES:
        following, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(reward, following, terminated, truncated)
        agent.learn()
        observation = following
        if terminated or truncated:
            observation, _ = env.reset(seed=agent.next_reset_seed(0))
    np.savez(file, *agent.get_weights())


def weights(tree: Path, case: str, xla: bool) -> list[np.ndarray]:
    """What a tree learns in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    with tempfile.TemporaryDirectory() as directory:
        file = f"{directory}/weights.npz"
        command = [sys.executable, __file__, "--learn", case, file, *(["--xla"] if xla else [])]
        subprocess.run(command, env=environment, cwd=directory, check=True, stderr=subprocess.DEVNULL)
        with np.load(file) as arrays:
            return [arrays[name] for name in arrays.files]


def main() -> int:
    """Compares two trees; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="the tree before, and the tree after")
    parser.add_argument("--xla", action="store_true", help="with XLA")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="some of the cases")
    parser.add_argument("--learn", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.learn:
        learn(options.learn[0], options.xla, options.learn[1])
        return 0
    tolerance = 1e-6 if options.xla else 0.0
    status = 0
    for case in options.cases:
        before, after = (weights(tree.resolve(), case, options.xla) for tree in options.trees)
        shapes = [[array.shape for array in arrays] for arrays in (before, after)]
        same = shapes[0] == shapes[1] and all(np.isfinite(array).all() for array in before)
        scale = max(np.abs(array).max() for array in before)
        worst = max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) / scale if same else np.inf
        status |= not worst <= tolerance
        print(f"{case:22} {'same' if worst <= tolerance else 'DIFFERENT'}: {worst:.2g} of {scale:.3g}", flush=True)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
