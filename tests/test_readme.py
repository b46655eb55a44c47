"""The README tells the truth about the options: each name and default on our side exists as written."""

import ast
import inspect
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import tfdpg

README = (Path(__file__).parent.parent / "README.md").read_text()
CALLABLES = {
    "TD3": tfdpg.TD3.__init__,
    "DDPG": tfdpg.DDPG.__init__,
    "D4PG": tfdpg.D4PG.__init__,
    "ACER": tfdpg.ACER.__init__,
    "fit": tfdpg.TD3.fit,
    "fit_offline": tfdpg.TD3.fit_offline,
    "ScalarWriter": tfdpg.callbacks.ScalarWriter.__init__,
    "EpochLogger": tfdpg.callbacks.EpochLogger.__init__,
    "Checkpoint": tfdpg.callbacks.Checkpoint.__init__,
}
SPINNING_UP = (
    "env_fn actor_critic ac_kwargs seed steps_per_epoch epochs replay_size gamma polyak pi_lr q_lr batch_size "
    "start_steps update_after update_every act_noise target_noise noise_clip policy_delay num_test_episodes "
    "max_ep_len logger_kwargs save_freq"
).split()


MATLAB = (
    "rlTD3Agent rlContinuousDeterministicActor rlQValueFunction NumHiddenUnit DiscountFactor MiniBatchSize "
    "ExperienceBufferLength NumWarmStartSteps LearningFrequency NumEpoch MaxMiniBatchPerEpoch NumStepsToLookAhead "
    "PolicyUpdateFrequency TargetUpdateFrequency TargetSmoothFactor ExplorationModel TargetPolicySmoothModel "
    "ActorOptimizerOptions CriticOptimizerOptions BatchDataRegularizerOptions trainFromData"
).split()
SKRL = (
    "models memory observation_space device gradient_steps batch_size discount_factor polyak actor_learning_rate "
    "critic_learning_rate learning_rate_scheduler state_preprocessor random_timesteps learning_starts grad_norm_clip "
    "noise initial_scale rewards_shaper write_interval checkpoint_interval"
).split()
SECTIONS = {"Options\n": SPINNING_UP, "Options of MATLAB's rlTD3Agent\n": MATLAB, "Options of skrl's DDPG\n": SKRL}


def rows(title, begin="| `"):
    section = README.split(f"\n## {title}")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith(begin)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_option_of_the_seeds_is_mapped(title):
    assert [name for row in rows(title) for name in re.findall(r"`(\w+)`", row[0])] == SECTIONS[title]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_name_and_default_on_our_side_is_as_written(title):
    checked = 0
    for theirs, ours, defaults, *_ in rows(title):
        names = re.findall(r"(\w+)\((\w+)\)", ours)
        values = re.findall(r"`([^`]+)`", defaults)
        assert names and len(values) in (0, len(names)), f"{theirs}: {ours}, {defaults}"
        for i, (function, argument) in enumerate(names):
            default = inspect.signature(CALLABLES[function]).parameters[argument].default
            if values:
                assert ast.literal_eval(values[i]) == default, f"{function}({argument}) is {default}, not {values[i]}"
                checked += 1
            else:
                assert default is inspect.Parameter.empty, f"{function}({argument}) has the default {default}"
    assert checked >= 20


def test_every_option_and_default_of_acer_is_as_written():
    named = {}
    for _, ours, defaults, *_ in rows("Options of ACER", begin="|")[2:]:
        names = re.findall(r"ACER\((\w+)\)", ours)
        named |= dict(zip(names, map(ast.literal_eval, re.findall(r"`([^`]+)`", defaults)), strict=True))
    parameters = inspect.signature(tfdpg.ACER.__init__).parameters
    assert named == {name: p.default for name, p in parameters.items() if name not in ("self", "env")}


def test_every_constructor_option_is_in_the_readme():
    named = {argument for _, ours, *_ in rows("Options\n") for argument in re.findall(r"TD3\((\w+)\)", ours)}
    listed = re.findall(r"^- (`[^:]*):", README.split("\n## Options\n")[1].split("\n## ")[0], re.MULTILINE)
    own = {name for names in listed for name in re.findall(r"`(\w+)`", names) if name != "TD3"}
    assert named | own == set(inspect.signature(tfdpg.TD3.__init__).parameters) - {"self"}
    assert set(inspect.signature(tfdpg.DDPG.__init__).parameters) - {"self"} <= named | own


def test_the_session_of_the_readme_runs(tmp_path):
    code = README.split("<!-- the session -->")[1].split("```python")[1].split("```")[0]
    agent = tfdpg.TD3(gym.make("Pendulum-v1"), hidden_units=(8,), jit_compile=False)
    observations = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]], np.float32)
    names = {"directory": str(agent.export(tmp_path / "model"))}
    exec(compile(code, "README.md", "exec"), names)
    actions = names["run"]("pi", x=observations)
    np.testing.assert_allclose(actions, agent.predict(observations), rtol=1e-4, atol=1e-5)
    for name, network in (("q1", agent.q1), ("q2", agent.q2)):
        values = names["run"](name, x=observations, a=actions)
        np.testing.assert_allclose(values, network([observations, actions]), rtol=1e-4, atol=1e-5)
    names["session"].close()
    assert len([line for line in code.splitlines() if line and not line.startswith("import")]) == 6


def test_the_files_that_it_names_exist():
    root = Path(__file__).parent.parent
    for path in re.findall(r"\b(?:examples|exported_models/td3-halfcheetah)[\w/.-]*", README):
        assert (root / path).exists(), path
