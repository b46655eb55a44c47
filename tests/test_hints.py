"""Errors suggest names for misspelt ones and for those of other libraries."""

import functools
from typing import Any

import keras
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tfdpg.agents.options import OPTIONS
from tfdpg.hints import OTHER_LIBRARIES
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions


@functools.cache
def agent():
    """An agent that no test changes."""
    return tfdpg.DDPG(Counter())


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (lambda: tfdpg.TD3(Counter(), learning_rate=1e-3), "'learning_rate'. Did you mean `pi_lr` and `q_lr`?"),
        (
            lambda: tfdpg.TD3("MlpPolicy", Counter()),
            "arguments. The environment comes first",
        ),
        (
            lambda: tfdpg.TD3(policy="MlpPolicy", env=Counter()),
            "'policy'. The environment comes first",
        ),
        (lambda: tfdpg.TD3(Counter(), verbose=1), "'verbose'. Did you mean `verbose` of `fit`?"),
        (lambda: tfdpg.TD3(Counter(), replay_buffer_class=dict), "(HER) is not available"),
        (lambda: tfdpg.TD3(Counter(), q_loss=abs), "'q_loss'. The losses belong to the algorithm"),
        (lambda: tfdpg.TD3(Counter(), q_loss=abs), "docs/changing-a-loss.md"),
        (lambda: agent().fit([[0.0]], [0.0]), "fit(env, epochs=..., steps_per_epoch=...)"),
        (lambda: agent().fit([[0.0]], [0.0]), "agent.fit_offline(data)"),
        (lambda: tfdpg.DDPG(Counter(), tau=0.005), "Did you mean `polyak`, which is 1 - tau?"),
        (lambda: tfdpg.TD3(Counter(), lstm_hidden_size=8), "'lstm_hidden_size'. Did you mean `recurrent_units`?"),
        (lambda: tfdpg.TD3(Counter(), SequenceLength=8), "Did you mean `sequence_length`?"),
        (lambda: tfdpg.ACER(Counter(), ent_coeff=0.1), "Did you mean `ent_coef`?"),
        (lambda: tfdpg.DDPG(Counter(), gama=0.9), "'gama'. Did you mean `gamma`?"),
        (
            lambda: agent().fit(Counter(), total_timesteps=9),
            "Did you mean `epochs` and `steps_per_epoch`?",
        ),
        (lambda: agent().learn(total_timesteps=9), "`epochs` and `steps_per_epoch` of `fit`?"),
        (lambda: agent().learn(update=9), "Did you mean `updates`?"),
        (lambda: agent().predict([0, 0], deterministic=True), "`predict` does not explore"),
    ],
)
def test_the_error_says_what_it_is_here(wrong, hint):
    with pytest.raises(TypeError) as error:
        wrong()
    assert hint in str(error.value)


def test_no_hint_is_about_an_argument_of_ours():
    ours = {option.name for kind in (*OPTIONS.values(), FitOptions) for option in options_of(kind)}
    assert set(OTHER_LIBRARIES) & ours == {
        "lr",
        "seed",
        "verbose",
    }  # arguments of some agents, of the command line and of `fit` alone


def test_learning_from_nothing_points_to_fit():
    with pytest.raises(ValueError, match="fit"):
        agent().learn(updates=10_000)


def test_learn_refuses_a_positional_number_and_names_fit():
    agent = tfdpg.DDPG(Counter(), **SMALL, **EAGER)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20)
    updates = agent.updates
    learn: Any = agent.learn  # a type checker rejects these calls too
    for wrong in (lambda: learn(1000), lambda: learn(1000, None), lambda: learn(1000, total_timesteps=3)):
        with pytest.raises(TypeError, match=r"agent\.fit\(env.*updates=.*learn\(1000"):
            wrong()
    assert agent.updates == updates
    agent.learn(updates=2)
    assert agent.updates == updates + 2


@pytest.mark.parametrize(
    "owner, name, hint",
    [
        (tfdpg.TD3, "load", r"'TD3' .*'load'.*\.load_agent\(path\)"),
        (tfdpg.TD3, "load_replay_buffer", r"agent\.replay\.load\(path\)"),
        ("agent", "load", r"'DDPG' .*'load'.*\.load_agent\(path\)"),
        ("agent", "save_replay_buffer", r"agent\.replay\.save\(path\)"),
        ("agent", "load_replay_buffer", r"agent\.replay\.load\(path\)"),
        ("agent", "nonsense", "'DDPG' object .*attribute 'nonsense'$"),
        (tfdpg.TD3, "nonsense", "'TD3' has no attribute 'nonsense'$"),
        (tfdpg, "SAC", "'tfdpg' has no .*'SAC'. .*TD3 and D4PG"),
        (tfdpg, "PPO", "'tfdpg' has no attribute 'PPO'. .*ACER"),
        (tfdpg, "HerReplayBuffer", r"\(HER\) is not available"),
        (tfdpg, "nonsense", "'tfdpg' has no attribute 'nonsense'$"),
    ],
)
def test_attributes_of_other_libraries_have_hints_and_do_not_exist(owner, name, hint):
    owner = agent() if owner == "agent" else owner
    assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=hint):
        getattr(owner, name)


def test_an_attribute_error_inside_a_property_keeps_its_message(monkeypatch):
    monkeypatch.setattr(tfdpg.DDPG, "other", property(lambda self: self.unheard_of), raising=False)
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        agent().other  # noqa: B018


@pytest.mark.parametrize(
    "make, optimizer",
    [
        (lambda rate: tfdpg.TD3(Counter(), pi_lr=rate), "pi_optimizer"),
        (lambda rate: tfdpg.TD3(Counter(), q_lr=rate), "q_optimizer"),
        (lambda rate: tfdpg.ACER(Counter(), lr=rate), "optimizer"),
    ],
)
def test_a_schedule_as_learning_rate_names_the_optimizer(make, optimizer):
    for schedule in (keras.optimizers.schedules.CosineDecay(1e-3, 10), lambda step: 1e-3):
        with pytest.raises(ValueError, match=rf" in {optimizer}=keras.*Adam\(schedule\)"):
            make(schedule)
    with pytest.raises(ValueError, match=r"a number above 0\. Received: \w+=-1$"):
        make(-1)


def test_nothing_is_suggested_that_is_not_there():
    with pytest.raises(TypeError, match=r"'tau'$"):
        tfdpg.ACER(Counter(), tau=0.1)


def test_load_agent_has_hints_and_says_what_a_directory_is(tmp_path):
    agent = tfdpg.DDPG(Counter(), hidden_units=(4,))
    agent.save(tmp_path / "checkpoints/7")
    exported = agent.export(tmp_path / "model")
    with pytest.raises(ValueError, match="`learning_rate` .* `pi_lr` and `q_lr`"):
        tfdpg.load_agent(tmp_path / "checkpoints/7", learning_rate=0.1)
    for load, directory, hint in (
        (tfdpg.load, tmp_path / "checkpoints/7", "a saved agent, for tfdpg.load_agent"),
        (tfdpg.load, tmp_path / "model/9", r"there are the versions \[1\]"),
        (tfdpg.load_agent, exported, "an exported model, for tfdpg.load"),
        (tfdpg.load_agent, tmp_path / "model", "an exported model, for tfdpg.load"),
        (tfdpg.load_agent, tmp_path / "checkpoints", "holds saved agents: 7"),
    ):
        with pytest.raises(FileNotFoundError, match=hint):
            load(directory)
