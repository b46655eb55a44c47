"""Damaged saved agents: an error of tfdpg's that names the path, or the agent that was saved.

Where the sums were computed again (`forge`) nobody can know what was meant: an error of tfdpg's, or an agent that acts,
draws from its replay, and is the same once it was saved and loaded.
"""

import functools
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import keras
import numpy as np

import tfdpg
from tests.agents.roster import AGENTS
from tests.environments import Counter
from tests.fuzz.damage import check_ours, damage, forge
from tfdpg.replay import segments
from tfdpg.training.checkpoints.checkpoint import saved_options, state_of

KINDS = {
    "DDPG": ("DDPG", dict),
    "TD3": ("TD3", lambda: {"replay": "prioritized", "normalize_observations": True}),
    "D4PG": ("D4PG", lambda: {"noise": "ou"}),
    "memory": ("TD3", lambda: {"recurrent": "gru", "recurrent_units": (4,), "burn_in": 2, "sequence_length": 3}),
    "ACER": ("ACER", dict),
    "own": ("DDPG", lambda: {"pi": keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "tanh")])}),
}
RELATIVES = {"older": {}, "seed": {"seed": 1}, "size": {"hidden_units": (6,), "replay_size": 300}}
HELD = tempfile.TemporaryDirectory()  # until the process ends


@functools.cache
def saved(kind, relative):
    """A saved agent; the older one is the same agent as the saved one, some steps before."""
    directory = Path(HELD.name) / kind / relative
    name, options = KINDS[kind]
    agent = AGENTS[name](Counter(), **options() | RELATIVES.get(relative, {}))
    env = Counter()
    with mock.patch.object(segments, "MIN_ROWS", 16), mock.patch.object(segments, "MIN_BYTES", 0):
        play(agent, env, 30)
        agent.save(directory.with_name("older") if relative == "saved" else directory)
        if relative == "saved":
            play(agent, env, 15)
            agent.save(directory)
    return directory


def play(agent, env, steps):
    observation, _ = env.reset()
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(reward, observation, terminated, truncated)
        if terminated:
            observation, _ = env.reset()
    agent.set_weights([weight + np.float32(0.01) for weight in agent.get_weights()])
    _, rows = agent.data.minibatch_builder(0, 2)
    agent.data.minibatch_builder.update_priorities(rows, np.arange(rows.size, dtype=np.float32).reshape(rows.shape))
    return agent


def contents(agent):
    """All that a saved agent holds, as bytes and texts."""
    buffer = agent.replay
    optimizers = agent.optimizers.items()
    arrays = (
        dict(enumerate(agent.get_weights()))
        | segments.as_one_segment(buffer)
        | buffer.state()
        | agent.data.minibatch_builder.sampler.state()
    )
    arrays |= {(name, i): values for name, each in optimizers for i, values in enumerate(each.variables)}
    arrays |= agent.data.observation_statistics.state() if agent.data.observation_statistics else {}
    held = {name: np.asarray(values).tobytes() for name, values in arrays.items()}
    return held | {"state": repr(state_of(agent)), "options": repr(sorted(saved_options(agent).items()))}


@functools.cache
def original(kind):
    return contents(tfdpg.load_agent(saved(kind, "saved")))


def case(number, place, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
    rng = np.random.default_rng([1, number])
    kind = list(KINDS)[number // 10 % len(KINDS)]
    directory = place / "agent"
    shutil.copytree(saved(kind, "saved"), directory)
    relatives = [functools.partial(saved, kind, relative) for relative in RELATIVES]
    is_forged = rng.random() < 0.5
    done += [kind, "forged" if is_forged else "damaged"]
    done += forge(rng, directory, relatives, "checkpoint.json") if is_forged else damage(rng, directory, relatives)
    try:
        agent = tfdpg.load_agent(directory)
    except Exception as error:
        check_ours(error, directory)
        return "refused"
    if not is_forged:
        assert contents(agent) == original(kind), "another agent was loaded"
        return "equal"
    agent.spec.observation_space.seed(number)
    observation = agent.spec.observation_space.sample()
    try:
        agent.act(observation)
        agent.data.minibatch_builder(0, 1)
    except Exception as error:
        check_ours(error)
        return "refused-later"
    agent.save(place / "again")
    assert contents(tfdpg.load_agent(place / "again")) == contents(agent), "saved and loaded again"
    return "loaded"
