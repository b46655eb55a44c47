"""Saves an agent again and again, until it is killed: `python -m tests.training.saving DIRECTORY`.

It resumes from the newest checkpoint in the directory. For each checkpoint it prints the expected contents before it is
written, and its environment steps afterwards.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

import tfdpg
from tests.environments import Counter
from tfdpg import export
from tfdpg.replay import segments
from tfdpg.training.checkpoints.checkpoint import state_of


def digest(agent):
    """A sum of all that a checkpoint holds."""
    buffer = agent.replay
    sampler = agent.data.minibatch_builder.sampler
    arrays = [
        *agent.get_weights(),
        *buffer.transitions().values(),
        *buffer.state().values(),
        *sampler.state().values(),
    ]
    total = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
    total.update(repr(state_of(agent)).encode())
    return total.hexdigest()


def resume(directory):
    """Saves, and saves again."""
    segments.MIN_ROWS = 16
    segments.MIN_BYTES = 0
    env = Counter()
    rng = np.random.default_rng()
    agent = tfdpg.load_agent(directory / str(export.versions(directory)[-1]))
    agent.data.actor.refresh()
    checkpoint = tfdpg.callbacks.Checkpoint(directory)
    checkpoint.set_model(agent)
    checkpoint.on_train_begin()
    observation, _ = env.reset()
    while True:
        for _ in range(rng.integers(1, 40)):
            action = agent.act(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            agent.observe(reward, observation, terminated, truncated)
            if terminated:
                observation, _ = env.reset()
        _, rows = agent.data.minibatch_builder(agent.env_steps, 2)
        agent.data.minibatch_builder.update_priorities(rows, rng.normal(size=rows.shape))
        agent.data.minibatch_builder.sampler.state()  # adds new rows, as saving does
        agent.set_weights([weight + 1 for weight in agent.get_weights()])
        print("saving", agent.env_steps, digest(agent), flush=True)
        checkpoint.on_epoch_end(0)
        print("saved", agent.env_steps, flush=True)


if __name__ == "__main__":
    resume(Path(sys.argv[1]))
