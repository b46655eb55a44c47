"""Damaged saved agents: an error of tfdpg's that names the path, or the agent that was saved.

Where the sums were computed again (`forge`) nobody can know what was meant: an error of tfdpg's, or an agent that acts,
draws from its replay, and is the same once it was saved and loaded.
"""

import functools
import tempfile
from pathlib import Path
from unittest import mock

import keras
import numpy as np

import tfdpg
from tests.agents.roster import AGENTS
from tests.environments import Counter
from tests.fuzz.damage import damage, forge
from tests.fuzz.outcome import check_ours, within_bounds
from tfdpg.replay import segments


def _own_policy():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "tanh")])


KINDS = {
    "DDPG": ("DDPG", dict),
    "TD3": ("TD3", lambda: {"replay": "prioritized", "normalize_observations": True}),
    "D4PG": ("D4PG", lambda: {"noise": "ou"}),
    "memory": ("TD3", lambda: {"recurrent": "gru", "recurrent_units": (4,), "burn_in": 2, "sequence_length": 3}),
    "ACER": ("ACER", dict),
    "own": ("DDPG", lambda: {"pi": _own_policy(), "act_noise_schedule": tfdpg.exploration.Linear(1.0, 0.1, 100)}),
}
RELATIVES = {"saved": {}, "older": {}, "seed": {"seed": 1}, "size": {"hidden_units": (6,), "replay_size": 300}}


@functools.cache
def place():
    kept = tempfile.TemporaryDirectory()
    place.kept = kept  # until the process ends
    return Path(kept.name)


@functools.cache
def saved(kind, relative):
    """A saved agent; the older one is the same agent as the saved one, some steps before."""
    directory, changes = place() / kind / relative, RELATIVES[relative]
    name, options = KINDS[kind]
    agent, env = AGENTS[name](Counter(), **options() | changes), Counter()
    with mock.patch.object(segments, "ROWS", 16), mock.patch.object(segments, "BYTES", 0):
        _play(agent, env, 30)
        if relative in ("saved", "older"):
            agent.save(directory.with_name("older"))
            _play(agent, env, 15)
            agent.save(directory.with_name("saved"))
        else:
            agent.save(directory)
    return directory


def _play(agent, env, steps):
    observation, _ = env.reset()
    for _ in range(steps):
        action = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated)
        if terminated:
            observation, _ = env.reset()
    agent.set_weights([weight + np.float32(0.01) for weight in agent.get_weights()])
    _, rows = agent.draw(0, 2)
    agent.draw.refresh(rows, np.arange(rows.size, dtype=np.float32).reshape(rows.shape))


def contents(agent):
    """All that a saved agent holds, as bytes and texts."""
    ring = agent.replay
    arrays = dict(enumerate(agent.get_weights())) | segments.whole(ring) | ring.state() | agent.draw.sampler.state()
    arrays |= agent.moments.state() if agent.moments else {}
    arrays |= {(name, i): v for name, each in agent.optimizers.items() for i, v in enumerate(each.variables)}
    held = {name: np.asarray(values).tobytes() for name, values in arrays.items()}
    return held | {"state": repr(agent.state()), "options": repr({**agent.saved_options}.items())}


@functools.cache
def original(kind):
    return contents(tfdpg.load_agent(saved(kind, "saved")))


def case(number, directory, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
    rng, kind = np.random.default_rng([1, number]), list(KINDS)[number // 10 % len(KINDS)]
    directory = directory / "agent"
    _copy(saved(kind, "saved"), directory)
    relatives = [functools.partial(saved, kind, relative) for relative in RELATIVES if relative != "saved"]
    is_forged = rng.random() < 0.5
    how = functools.partial(forge, name="agent.json") if is_forged else damage
    done += [kind, "forged" if is_forged else "damaged", *how(rng, directory, relatives=relatives)]
    with within_bounds():
        try:
            agent = tfdpg.load_agent(directory)
        except Exception as error:
            check_ours(error, directory)
            return "refused"
        if not is_forged:
            assert contents(agent) == original(kind), "another agent was loaded"
            return "equal"
        try:
            _use(agent, number)
        except Exception as error:
            check_ours(error)
            return "refused-later"
        agent.save(directory.with_name("again"))
        assert contents(tfdpg.load_agent(directory.with_name("again"))) == contents(agent), "saved and loaded again"
        return "loaded"


def _use(agent, number):
    agent.spec.observation_space.seed(number)
    observation = agent.spec.observation_space.sample()
    agent.predict(observation if agent.options.values().get("recurrent") is None else observation[None])
    agent.act(observation)
    agent.draw(0, 1)


def _copy(source, target):
    for path in source.rglob("*"):
        (copy := target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            copy.write_bytes(path.read_bytes())
