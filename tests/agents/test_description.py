"""Descriptions of an agent: `repr`, `summary`, its configuration and its public names."""

import importlib
import inspect
import json
import re
from pathlib import Path

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward

import tfdpg
from tests.agents.roster import EAGER, brief, parametrize_agents
from tests.environments import Counter
from tfdpg.training.environment.env_runner import environment_of

SMALL = {"hidden_units": (4,), "jit_compile": False}


def test_repr_has_the_options_and_the_counters():
    options = {"pi_lr": 3e-4, "start_steps": 0, "update_after": 10, "update_every": 250}
    agent = tfdpg.TD3("Pendulum-v1", **SMALL, **options, **EAGER)
    assert repr(agent).startswith("<TD3 on Pendulum-v1, seed=0, ") and ", pi_lr=0.0003, " in repr(agent)
    assert repr(agent).endswith(": 0 environment steps, 0 updates>") and "gamma" not in repr(agent)
    agent.fit("Pendulum-v1", epochs=1, steps_per_epoch=1010, verbose=0, max_ep_len=200)
    assert repr(agent).endswith(": 1,010 environment steps, 4 updates>")
    # 1,010 steps and the last observation of each of six episodes, one of them unfinished
    assert repr(agent.replay) == "<ReplayBuffer: 1,016 of 1,000,000 rows, 25.0 MB when full>"


def test_an_environment_without_a_name_is_shown_by_its_spaces():
    assert repr(tfdpg.DDPG(Counter(), **SMALL)).startswith("<DDPG on Spec(Box(-inf, inf, (2,), float32), Box(-1.0")


def test_repr_of_a_policy_names_its_agent_and_directory(on_pendulum):
    assert repr(tfdpg.load(on_pendulum)) == f"<Policy of DDPG on Pendulum-v1: {on_pendulum}>"


@parametrize_agents("TD3", "ACER")
def test_the_summary_names_every_network_and_counts_its_parameters(make):
    agent = make(Counter())
    lines = []
    agent.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert lines[0] == repr(agent) and "observation x: float32 (2,)" in lines and repr(agent.replay) in text
    for name, network in agent.networks.items():
        assert f'Model: "{network.name}"' in text
        target = ", with a target network" if name in agent.targets else ""
        assert f"{name}: {sum(weight.size for weight in network.get_weights()):,} parameters{target}" in lines
    for optimizer in agent.optimizers.values():
        assert f"{optimizer.name}: learning rate {float(optimizer.learning_rate):g}" in lines


@parametrize_agents("TD3", "ACER")
def test_the_configuration_recreates_the_agent(make):
    agent = make(Counter(), gamma=0.9, seed=5, normalize_observations=True)
    config = json.loads(json.dumps(agent.get_config()))
    again = type(agent)(Counter(), **config)
    assert again.get_config() == agent.get_config() and config["gamma"] == 0.9 and config["seed"] == 5
    for a, b in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_configuration_contains_no_objects():
    agent = tfdpg.TD3(Counter(), **SMALL, pi_optimizer=keras.optimizers.SGD(0.1), reward_shaper=lambda r, *_: r)
    assert not {"pi_optimizer", "reward_shaper", "pi", "recorders"} & set(agent.get_config())


def test_without_a_seed_a_random_one_is_drawn_and_kept(tmp_path):
    one, other = (tfdpg.DDPG(Counter(), **SMALL, seed=None) for _ in range(2))
    assert one.seed != other.seed and one.seed == one.options.seed == one.get_config()["seed"]
    assert f"seed={one.seed}" in repr(one)
    one.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").seed == one.seed
    same = tfdpg.DDPG(Counter(), **SMALL, seed=one.seed)
    np.testing.assert_array_equal(same.get_weights()[0], one.get_weights()[0])
    assert not np.array_equal(other.get_weights()[0], one.get_weights()[0])


@parametrize_agents("TD3")
def test_tab_completion_shows_what_is_public(make):
    agent = make(Counter())
    for name in dir(agent):
        assert not name.startswith("_")
        getattr(agent, name)
    methods = {name for name, value in vars(tfdpg.Agent).items() if callable(value) and not name.startswith("_")}
    assert methods - set(dir(agent)) == {"update", "copy_weights"}


def test_an_agent_has_few_members_and_is_never_any():
    """Most of what an agent has is in its parts."""
    agent = tfdpg.TD3(Counter(), **SMALL)
    members = {name for name in (*vars(tfdpg.Agent), *vars(agent)) if not name.startswith("_")}
    own = set(vars(tfdpg.TD3)) | {"pi", "pi_target", "critics", "target_critics", "policy_critics"}  # of the algorithm
    assert {"parts", "data", "learner"} <= members and len(members - own) <= 60
    sources = [file.read_text() for file in Path(tfdpg.__file__).parent.rglob("*.py")]
    assert len(sources) > 100 and not [source for source in sources if re.search(r"\bagent: Any\b", source)]


@pytest.mark.parametrize(
    "name", ["callbacks", "components", "distributed", "exploration", "losses", "networks", "replay"]
)
def test_dir_of_a_module_lists_its_public_names(name):
    module = importlib.import_module(f"tfdpg.{'training.' if name == 'callbacks' else ''}{name}")
    assert dir(module) == sorted(module.__all__) and not {"np", "keras", "Any"} & set(module.__all__)
    for each in filter(inspect.isroutine, (getattr(module, name) for name in module.__all__)):
        assert each.__module__.startswith("tfdpg.")


def pendulum(**kwargs):
    return gym.make("Pendulum-v1", **kwargs)


@pytest.mark.parametrize(
    "make, record",
    [
        (pendulum, {"kwargs": {}}),
        (lambda: pendulum(max_episode_steps=200), {"kwargs": {}}),
        (lambda: pendulum(max_episode_steps=300, g=3.0), {"kwargs": {"g": 3.0, "max_episode_steps": 300}}),
        (lambda: TimeLimit(pendulum(), 100), {"kwargs": {"max_episode_steps": 100}}),
        (lambda: TimeLimit(pendulum(), 300), {"kwargs": {}}),  # the limit inside is still 200
        (lambda: RecordEpisodeStatistics(pendulum()), {"kwargs": {}}),
        (
            lambda: TransformReward(gym.Wrapper(pendulum(max_episode_steps=100)), lambda reward: reward / 10),
            {"kwargs": {"max_episode_steps": 100}, "wrappers": ["TransformReward", "Wrapper"]},
        ),
        (
            lambda: VectorWrapper(gym.make_vec("Pendulum-v1", 2, vectorization_mode="sync", max_episode_steps=9)),
            {"kwargs": {"max_episode_steps": 9}, "wrappers": ["VectorWrapper"]},
        ),
    ],
)
def test_the_step_limit_and_the_wrappers_of_the_environment_are_recorded(make, record):
    assert environment_of(make()) == {"id": "Pendulum-v1"} | record


@brief
def test_the_environment_of_the_last_fit_is_recorded(tmp_path):
    short = {"epochs": 1, "steps_per_epoch": 5, "max_ep_len": 5, "verbose": 0}
    agent = tfdpg.TD3("Pendulum-v1", **SMALL, **EAGER, update_after=1000)
    agent.fit(pendulum(g=3.0), **short)
    assert agent.environment == {"id": "Pendulum-v1", "kwargs": {"g": 3.0}}
    agent.save(tmp_path / "agent")
    loaded = tfdpg.load_agent(tmp_path / "agent", pendulum(g=4.0))
    assert loaded.environment == agent.environment
    loaded.fit(pendulum(g=4.0), **short)
    assert loaded.environment == {"id": "Pendulum-v1", "kwargs": {"g": 4.0}}


def test_environments_can_be_given_by_their_ids(tmp_path):
    id = "Pendulum-v1"
    agent = tfdpg.TD3(id, **SMALL, **EAGER, start_steps=0, update_after=10, batch_size=4)
    assert agent.environment == {"id": id, "kwargs": {}}
    history = agent.fit(
        id, epochs=1, steps_per_epoch=60, validation_env=id, validation_episodes=2, max_ep_len=50, verbose=0
    )
    assert history.history["env_steps"] == [60] and history.history["val_episode_length"] == [50]
    assert agent.evaluate(id, 2, max_ep_len=50) == agent.evaluate(gym.make(id), 2, max_ep_len=50)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent", id).env_steps == 60
    offline = agent.fit_offline(None, epochs=1, steps_per_epoch=2, validation_env=id, validation_episodes=1, verbose=0)
    assert np.isfinite(offline.history["val_return"]).all()
    with pytest.raises(ValueError, match="'Pendulum-v9' cannot be made"):
        tfdpg.TD3("Pendulum-v9")
    with pytest.raises(ValueError, match="observation_space of `validation_env`"):
        agent.fit(id, validation_env="MountainCarContinuous-v0")
