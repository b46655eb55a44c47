"""State that a saved agent keeps, and options that may change when it is loaded."""

import keras
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import AGENTS, EAGER, fit_briefly, needs, parametrize_agents
from tests.agents.test_options import doubled, fitted
from tests.environments import Counter


@parametrize_agents("DDPG")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"replay": "prioritized"}, id="prioritized"),
        pytest.param({"epochs_per_round": 1}, id="passes"),
    ],
)
@pytest.mark.slow
def test_a_replay_buffer_is_loaded_into_one_of_another_size(make, options, tmp_path):
    needs(make, next(iter(options)))
    agent = fitted(make, Counter(length=9), steps=120, replay_size=100, normalize_observations=True, **options)
    agent.learn(updates=3)
    agent.save(tmp_path / "agent")
    changes = {"batch_size": 4} if "epochs_per_round" in options else {}
    for size in (30, 1000):
        again = tfdpg.load_agent(tmp_path / "agent", replay_size=size, **changes)
        kept = min(size, 100)
        stored, held = (a.replay.transitions() for a in (agent, again))
        for name, values in held.items():
            np.testing.assert_array_equal(values, stored[name][len(stored[name]) - len(values) :])
        assert again.replay.size == kept and (kept < 100 or len(again.replay) == len(agent.replay))
        if "replay" in options:
            priorities = [a.data.minibatch_builder.sampler.state()["priorities"][-kept:] for a in (agent, again)]
            np.testing.assert_array_equal(*priorities)
        assert np.isfinite(list(again.learn(updates=5).values())).all()


@parametrize_agents("ACER", "DDPG")
def test_unfinished_episodes_of_all_sub_environments_continue_after_loading(make, tmp_path):
    makers = [lambda: Counter(length=7), lambda: Counter(length=4)]
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    agent = make(env, start_steps=0)
    observation, _ = env.reset(seed=[1, 2])
    for _ in range(4):
        action = agent.act(observation)
        observation, *outcome, info = env.step(action)
        agent.observe(outcome[0], observation, *outcome[1:], info.get("final_obs"))
    agent.save(tmp_path / "agent")  # the episode of sub-environment 1 has ended and its reset comes next
    again = tfdpg.load_agent(tmp_path / "agent")
    following, *outcome, info = env.step(agent.act(observation))
    again.act(observation)
    for one in (agent, again):
        one.observe(outcome[0], following, *outcome[1:], info.get("final_obs"))
        one.act(following)
    assert again.replay.added == agent.replay.added == 12 and again.env_steps == agent.env_steps == 9


def learn_from_observation(agent, value):
    agent.act(np.zeros(2, np.float32))
    agent.observe(0.0, np.full(2, value, np.float32), True, False)
    agent.learn(updates=1)


@parametrize_agents("DDPG")
def test_loaded_observation_statistics_are_kept(make, tmp_path):
    agent = fitted(make, Counter(length=9), steps=60, normalize_observations=True, **EAGER)
    agent.save_weights(tmp_path / "a.weights.h5")
    other = make(Counter(), normalize_observations=True, **EAGER)
    other.load_weights(tmp_path / "a.weights.h5")
    learn_from_observation(other, 100)
    assert np.abs(other.data.normalizers[0].mean.numpy() - agent.data.normalizers[0].mean.numpy()).max() < 1


def test_loaded_observation_statistics_replace_those_of_an_agent_that_has_learned_but_initial_ones_do_not():
    initial, agent, other = (AGENTS["TD3"](Counter(), normalize_observations=True, **EAGER) for _ in range(3))
    fit_briefly(agent, Counter(length=9), epochs=1, steps_per_epoch=60)
    mean = agent.data.normalizers[0].mean.numpy()
    learn_from_observation(other, 100)
    other.set_weights(agent.get_weights())
    agent.set_weights(initial.get_weights())
    for each in (agent, other):
        learn_from_observation(each, 0)
        np.testing.assert_allclose(each.data.normalizers[0].mean.numpy(), mean, rtol=0.1)


@parametrize_agents("DDPG")
def test_load_agent_changes_the_given_options(make, tmp_path):
    needs(make, "pi_lr")
    agent = fitted(make, clip_norm=1.0, **EAGER)
    agent.save(tmp_path / "agent")
    changes = {
        "pi_lr": 0.5,
        "gamma": 0.5,
        "batch_size": 4,
        "act_noise": 0.3,
        "replay_size": 30,
        "n_step": 2,
        "device": "cpu",
    }
    again = tfdpg.load_agent(tmp_path / "agent", **changes)
    assert {name: getattr(again.options, name) for name in changes} == changes and again.options.clip_norm == 1.0
    assert float(again.optimizers["pi"].learning_rate) == 0.5
    assert float(again.optimizers["q1"].learning_rate) == pytest.approx(agent.options.q_lr)
    assert again.data.minibatch_builder.gamma == 0.5 and again.replay.size == 30
    stored, held = (a.replay.transitions()["observations"] for a in (agent, again))
    np.testing.assert_array_equal(held, stored[-len(held) :])
    assert again.learn(updates=2) and again.updates == agent.updates + 2
    fresh = tfdpg.load_agent(tmp_path / "agent", q_optimizer=keras.optimizers.SGD(0.1))
    assert isinstance(fresh.optimizers["q1"], keras.optimizers.SGD) and fresh.learn(updates=1)
    for name, value in (("hidden_units", (4,)), ("seed", 3), ("normalize_observations", True)):
        with pytest.raises(ValueError, match=f"`{name}` cannot change"):
            tfdpg.load_agent(tmp_path / "agent", **{name: value})
    fresh.save(tmp_path / "own")
    with pytest.raises(ValueError, match="`q_lr` does .*`q_optimizer` is your own"):
        tfdpg.load_agent(tmp_path / "own", q_lr=0.1)
    with pytest.raises(ValueError, match="`gama` is no argument of"):
        tfdpg.load_agent(tmp_path / "agent", gama=0.9)


@parametrize_agents("DDPG")
def test_objects_are_saved_with_the_agent(make, tmp_path):
    needs(make, "pi_optimizer")
    schedule = tfdpg.exploration.Decay(0.01, minimum=0.1)
    agent = make(
        Counter(), pi_optimizer=keras.optimizers.RMSprop(0.02), act_noise_schedule=schedule, reward_shaper=doubled
    )
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", trusted=True)
    assert again.options.act_noise_schedule == schedule and again.options.reward_shaper is doubled
    assert isinstance(again.optimizers["pi"], keras.optimizers.RMSprop)
    assert float(again.optimizers["pi"].learning_rate) == pytest.approx(0.02)
