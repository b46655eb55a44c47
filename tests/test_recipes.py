"""The options that recipes set, in Python and on the command line."""

import pytest

import tfdpg
from tfdpg.cli.parsing import UsageError
from tfdpg.cli.training import parse_training_flags
from tfdpg.recipes import AGENTS, RECIPES

LEAN = {
    "embedding_units": 128,
    "encoder_units": (128, 128),
    "batch_size": 128,
    "start_steps": 5000,
    "update_after": 5000,
    "update_every": 50,
    "keep_best_policy": False,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_options_of_its_agent(name):
    recipe = getattr(tfdpg.recipes, name)
    agent_class = getattr(tfdpg, AGENTS[name])
    options = agent_class("Pendulum-v1", **recipe).options.values()
    default = agent_class("Pendulum-v1").options.values()
    assert {key: options[key] for key in recipe} == recipe
    assert {key for key in options if options[key] != default[key]} == set(recipe)


def test_a_recipe_stays_what_it_was():
    """Files of results name recipes, so a recipe must not change; other options make another recipe."""
    embeddings = LEAN | {
        "norm": "batch",
        "target_networks": False,
        "replay": "uniform",
        "beta_1": 0.5,
        "policy_delay": 3,
        "q_lr": 1e-3,
        "critic_activation": "relu",
        "preactivation_weight": 1e-3,
    }
    assert RECIPES == {
        "normalized": {
            "norm": "batch",
            "target_networks": False,
            "beta_1": 0.5,
            "policy_delay": 3,
            "batch_size": 128,
            "start_steps": 5000,
        },
        "lean": LEAN,
        "embeddings": embeddings,
        "averaged": embeddings | {"average_policy": 0.05},
    }


def test_of_two_recipes_the_last_one_counts():
    _, (config,) = parse_training_flags("td3", ["--env", "Pendulum-v1", "--recipe=normalized", "--recipe", "None"])
    assert config.agent_options["norm"] is None


def test_the_command_line_takes_a_recipe_under_its_other_flags():
    words = ["--env", "Pendulum-v1", "--batch-size", "32", "--gamma", "0.9"]
    for given in (["--recipe", "normalized"], ["--recipe=normalized"]):
        _, (config,) = parse_training_flags("td3", [*given, *words])
        changed = tfdpg.recipes.normalized | {"batch_size": 32, "gamma": 0.9}
        assert config.agent_options | changed == config.agent_options
        _, (plain,) = parse_training_flags("td3", words)
        assert {k for k, v in plain.agent_options.items() if config.agent_options[k] != v} == set(changed) - {
            "batch_size",
            "gamma",
        }


@pytest.mark.parametrize(
    ("agent", "words", "message"),
    [
        ("ddpg", ["--recipe", "normalized"], "normalized is for TD3, not for DDPG"),
        ("td7", ["--recipe", "normalized"], "normalized is for TD3, not for TD7"),
        ("td3", ["--recipe", "best"], '--recipe must .*"normalized".*: best'),
        ("td3", ["--recipe"], '--recipe must .*"normalized".*: no value'),
    ],
)
def test_recipes_that_cannot_be_are_refused(agent, words, message):
    with pytest.raises(UsageError, match=message):
        parse_training_flags(agent, ["--env", "Pendulum-v1", *words])
