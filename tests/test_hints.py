"""Errors suggest names for misspelt ones and for those of other libraries."""

import functools
import inspect
import re
from typing import Any

import gymnasium
import keras
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter, Reach
from tfdpg.agents.options import OPTIONS
from tfdpg.cli.run_options import RunFlags
from tfdpg.hints import ARGUMENTS, ATTRIBUTES, NAMES, OTHER_LIBRARIES, OTHER_PLACES
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
        (lambda: tfdpg.TD7(policy="MlpPolicy", env=Counter()), "options (`hidden_units`): TD7(env)"),
        (lambda: tfdpg.TD3(Counter(), replay_buffer_class=dict), 'her="future"'),
        (lambda: tfdpg.ACER(Counter(), her="future"), "option `her` of DDPG, TD3, D4PG and TD7"),
        (lambda: tfdpg.TD3(Counter(), n_sampled_goal=4), "`her_ratio`, which is n / (n + 1)?"),
        (lambda: tfdpg.TD3(Counter(), tensorboard_log="runs"), "tfdpg.callbacks.ScalarWriter(log_dir)"),
        (lambda: agent().fit(Counter(), tb_log_name="run"), "tfdpg.callbacks.ScalarWriter(log_dir)"),
        (lambda: tfdpg.TD3(Counter(), total_timesteps=9), "`epochs` and `steps_per_epoch` of `fit`?"),
        (lambda: tfdpg.TD7(Counter(), n_eval_episodes=9), "Did you mean `validation_episodes` of `fit`?"),
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


@functools.cache
def our_arguments():
    return {option.name for kind in (*OPTIONS.values(), FitOptions) for option in options_of(kind)}


def test_each_suggested_argument_exists():
    flags = {option.name for option in options_of(RunFlags)}
    evaluation = inspect.signature(tfdpg.Agent.evaluate).parameters
    suggested = {name for names in OTHER_LIBRARIES.values() for name in names.split()}
    assert suggested <= our_arguments() | flags | set(evaluation)
    for advice in (*OTHER_PLACES.values(), *ARGUMENTS.values()):
        quoted = {name for name in re.findall("`([^`]+)`", advice) if name.isidentifier()}
        assert quoted <= our_arguments() | set(evaluation) | {"fit", "evaluate", "predict"}


def test_each_name_and_call_in_advice_works(tmp_path):
    agent = tfdpg.DDPG(Counter(), **SMALL, **EAGER)
    fit = functools.partial(fit_briefly, agent, epochs=2, steps_per_epoch=5)
    fit(Counter(), epochs=1)
    agent.save(tmp_path / "agent")
    agent.replay.save(tmp_path / "replay")
    paths = {"agent.replay": tmp_path / "replay", "tfdpg.load": agent.export(tmp_path / "model")}
    known = {
        "agent": agent,
        "tfdpg": tfdpg,
        "gymnasium": gymnasium,
        "env": Counter(),
        "policy": agent,
        "n": 2,
        "weights": agent.get_weights(),
        "log_dir": tmp_path / "log",
        "env_id": "tfdpg-test/Counter-v0",
        "fit": fit,
    }
    advice = " ".join(dict.fromkeys([*ARGUMENTS.values(), *ATTRIBUTES.values(), *NAMES.values()]))
    codes = set(re.findall(r"(?:agent|tfdpg|gymnasium)(?:\.\w+)+(?:\((?:[^()]|\([^()]*\))*\))?", advice))
    for code in sorted(codes, key=lambda code: "fit" not in code):
        owner = code.partition("(")[0]
        path = paths.get(owner, paths.get(owner.rpartition(".")[0], tmp_path / "agent"))
        eval(code.replace("agent.fit", "fit").replace("=...", "=2"), known | {"path": path})
    assert {"agent.env_steps", "agent.spec", "tfdpg.load(path)", "tfdpg.evaluate(policy, env)"} <= codes


def test_her_as_it_is_suggested_is_accepted():
    (option,) = set(re.findall(r'her="\w+"', " ".join(ARGUMENTS.values())))
    for make in (tfdpg.DDPG, tfdpg.TD3, tfdpg.D4PG, tfdpg.TD7):
        agent = eval(f"make(Reach(), {option})", {"make": make, "Reach": Reach})
        assert agent.options.her == "future"


def test_no_hint_is_about_an_argument_of_ours():
    assert set(OTHER_LIBRARIES) & our_arguments() == {
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
        (tfdpg, "HerReplayBuffer", "option `her` of DDPG, TD3, D4PG and TD7"),
        ("agent", "set_env", r"agent\.fit\(env\)"),
        ("agent", "num_timesteps", r"agent\.env_steps"),
        ("agent", "tensorboard_log", r"callbacks=\[tfdpg\.callbacks\.ScalarWriter\(log_dir\)\]"),
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
    follow = tfdpg.ACER if optimizer == "optimizer" else tfdpg.TD3
    follow(Counter(), **{optimizer: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 10))})


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
