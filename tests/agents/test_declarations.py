"""Agents that declare what DDPG, TD3, D4PG and ACER do not: SAC (examples/sac.py) and TD7."""

import shutil
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from examples.sac import SAC
from tests.agents.roster import brief
from tests.environments import Counter, RandomWalk
from tfdpg import TD7
from tfdpg.acting.layers import LAYERS
from tfdpg.agents import td7
from tfdpg.networks.actor import CompiledActor
from tfdpg.training.checkpoints.checkpoint import state_of

pytestmark = brief

SMALL = {
    "start_steps": 10,
    "update_after": 10,
    "update_every": 5,
    "gradient_steps": 1,
    "batch_size": 4,
    "hidden_units": (4,),
    "replay_size": 300,
    "normalize_observations": True,
    "jit_compile": False,
}
TD7_SMALL = {"target_update_every": 3, "embedding_units": 3, "encoder_units": (4,)}
AGENTS = {"SAC": (SAC, SMALL), "TD7": (TD7, SMALL | TD7_SMALL)}
SCHEDULE = {"epochs": 2, "steps_per_epoch": 70, "verbose": 0}
OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


@pytest.fixture(scope="module", params=["SAC", pytest.param("TD7", marks=pytest.mark.slow)])
def agent(request):
    """A trained agent, which tests leave as it is."""
    kind, options = AGENTS[request.param]
    agent = kind(RandomWalk(), **options)
    agent.fit(RandomWalk(), **SCHEDULE)
    return agent


class StoppedError(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.env_steps >= 83:
            raise StoppedError


def test_a_resumed_run_equals_an_uninterrupted_one(agent, tmp_path):
    stopped = type(agent)(RandomWalk(), **AGENTS[type(agent).__name__][1])
    with pytest.raises(StoppedError):
        stopped.fit(RandomWalk(), **SCHEDULE, callbacks=[StopAt()])
    stopped.save(tmp_path / "agent")
    resumed = tfdpg.load_agent(tmp_path / "agent", agent_class=type(agent))
    resumed.fit(RandomWalk(), **SCHEDULE, initial_epoch=resumed.epoch)
    assert state_of(resumed) == state_of(agent) and resumed.updates > 0
    for expected, weights in zip(agent.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, expected)
    for name, variable in agent.device_state.items():
        np.testing.assert_array_equal(resumed.device_state[name], variable)


def test_the_summary_lists_all_networks(agent):
    lines = []
    agent.summary(print_fn=lines.append)
    assert all(f"{name}: " in "\n".join(lines) for name in agent.networks)
    assert ("pi_best: a copy of pi" in lines) == (type(agent) is TD7)


def test_it_acts_in_numpy(agent, monkeypatch):
    expected = agent.predict(OBSERVATIONS)
    monkeypatch.setattr(tf, "function", lambda *args, **kwargs: pytest.fail("TensorFlow was called."))
    np.testing.assert_allclose(agent.policy()(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)
    assert agent.data.actor.numpy_policy() is not None


@pytest.mark.slow
def test_every_format_of_the_export_is_the_evaluation_policy(agent, tmp_path):
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    expected = agent.predict(OBSERVATIONS)
    np.testing.assert_allclose(policy(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.numpy()(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)
    assert policy.q1(OBSERVATIONS, expected).shape == (5,)
    if shutil.which("cc"):
        header = agent.export(tmp_path / "c", format="c")
        assert "c_q1(" in (header / "policy.h").read_text()
        main = '#include <stdio.h>\n#include "policy.h"\nint main(void) { float x[2], a[1]; '
        main += "while (fread(x, 4, 2, stdin) == 2) { c_pi(x, a); fwrite(a, 4, 1, stdout); } return 0; }"
        (tmp_path / "main.c").write_text(main)
        command = ["cc", "-std=c99", f"-I{header}", tmp_path / "main.c", "-o", tmp_path / "main", "-lm"]
        subprocess.run(command, check=True)
        found = subprocess.run([tmp_path / "main"], input=OBSERVATIONS.tobytes(), capture_output=True, check=True)
        np.testing.assert_allclose(np.frombuffer(found.stdout, np.float32), expected[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.hours
def test_workers_collect(agent):
    other = type(agent)(RandomWalk(), **AGENTS[type(agent).__name__][1])
    history = tfdpg.distributed.fit(other, RandomWalk, actors=2, epochs=2, steps_per_epoch=200, chunk=20, verbose=0)
    assert other.env_steps >= 400 and other.updates > 0 and np.isfinite(history.history["loss"]).all()
    if type(agent) is TD7:
        assert other.host_state["best_return"] is not None
        due = (other.env_steps - 10) // 5  # all of them were made, or are counted to be made later
        assert due - 2 <= other.updates + other.data.schedule.deferred <= due and other.data.schedule.deferred < due / 2


def test_sac_samples_while_it_collects_and_exports_its_mean():
    agent = SAC(RandomWalk(), **SMALL | {"start_steps": 0})
    observation = OBSERVATIONS[0]
    actions = np.array([agent.act(observation) for _ in range(20)])
    assert actions.std() > 0.1
    np.testing.assert_allclose(agent.act(observation, explore=False), agent.predict(observation), rtol=1e-4, atol=1e-5)


def test_the_log_probability_of_sac_is_that_of_tensorflow_probability():
    from tensorflow_probability import distributions as tfd

    agent = SAC("Pendulum-v1", **SMALL)
    output = np.array([[0.3, -0.5], [-2.0, 0.4]], np.float32)
    action, log_prob = agent.sample(output, np.array([[0.7], [-0.2]], np.float32))
    u = np.arctanh(action / 2)  # Pendulum's actions are in [-2, 2]
    expected = tfd.Normal(output[:, :1], np.exp(output[:, 1:])).log_prob(u) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(log_prob, expected[:, 0], rtol=1e-4)


def test_an_update_of_sac_by_hand(rng):
    """The metrics of an update, from the equations, TF-Probability and the networks before it; then its directions."""
    from tensorflow_probability import distributions as tfd

    agent = SAC("Pendulum-v1", **SMALL | {"normalize_observations": False}, temperature=0.3, seed=5)
    pi = CompiledActor(agent.spec, agent.networks["pi"])
    batch = {
        "observations": rng.normal(size=(4, 3)),
        "next_observations": rng.normal(size=(4, 3)),
        "actions": rng.uniform(-2, 2, (4, 1)),
        "rewards": rng.normal(size=4),
        "terminations": np.array([0.0, 1.0, 0.0, 1.0]),
    }
    s, s_t, a = (tf.constant(batch[name], tf.float32) for name in ("observations", "next_observations", "actions"))
    noise_t, noise = tfdpg.networks.stateless_normal((2, 4, 1), tf.constant([5, 1], tf.int64)).numpy()

    def sampled(observation, noise):
        mean, log_std = np.split(pi((observation.numpy(),)), 2, axis=1)
        u = mean + np.exp(log_std) * noise
        log_prob = tfd.Normal(mean, np.exp(log_std)).log_prob(u).numpy() - np.log(1 - np.tanh(u) ** 2)
        return 2 * np.tanh(u).astype(np.float32), log_prob[:, 0]

    action_t, log_prob_t = sampled(s_t, noise_t)
    action, log_prob = sampled(s, noise)
    smallest_t = np.minimum(*(agent.targets[name]([s_t, tf.constant(action_t)]).numpy() for name in ("q1", "q2")))
    values = [agent.networks[name]([s, a]).numpy() for name in ("q1", "q2")]
    target = batch["rewards"] + 0.99 * (1 - batch["terminations"]) * (smallest_t - 0.3 * log_prob_t)
    means = pi((s.numpy(),))[:, 0]
    logs = agent.train_on_batch(batch)
    assert logs["loss_q"] == pytest.approx(sum(np.mean((target - value) ** 2) for value in values), rel=1e-4)
    assert logs["td_error"] == pytest.approx(np.mean([np.abs(target - value) for value in values]), rel=1e-4)
    assert logs["entropy"] == pytest.approx(-log_prob.mean(), rel=1e-4)
    assert logs["temperature"] == pytest.approx(0.3)
    after = [agent.networks[name]([s, a]).numpy() for name in ("q1", "q2")]  # the policy's loss is of these critics
    assert sum(np.mean((target - value) ** 2) for value in after) < logs["loss_q"]
    smallest = np.minimum(*(agent.networks[name]([s, tf.constant(action)]).numpy() for name in ("q1", "q2")))
    assert logs["loss_pi"] == pytest.approx(np.mean(0.3 * log_prob - smallest), rel=1e-4)
    assert not np.array_equal(pi((s.numpy(),))[:, 0], means)


@pytest.mark.slow
def test_the_policy_of_sac_learns_the_best_action():
    options = SMALL | {"batch_size": 32, "hidden_units": (32,)}
    agent = SAC(RandomWalk(), **options, pi_lr=0.01, q_lr=0.02, temperature=0.01)
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = rng.uniform(-1, 1, (32, 1))
        batch = {name: rng.normal(size=(32, 2)) for name in ("observations", "next_observations")}
        rewards = -np.square(actions[:, 0] - 0.5)
        agent.train_on_batch(batch | {"actions": actions, "rewards": rewards, "terminations": np.ones(32)})
    np.testing.assert_allclose(agent.predict(OBSERVATIONS), 0.5, atol=0.2)


def test_the_temperature_of_sac_falls_where_the_entropy_is_above_its_target():
    options = SMALL | {"run_eagerly": True, "temperature_lr": 0.01}
    low, high = (SAC(RandomWalk(), **options, target_entropy=target) for target in (-50.0, 50.0))
    for agent in (low, high):
        agent.fit(RandomWalk(), epochs=1, steps_per_epoch=40, verbose=0)
    temperatures = [float(tf.exp(agent.log_temperature.value)) for agent in (low, high)]
    assert temperatures[0] < 1 < temperatures[1]


@pytest.fixture(scope="module")
def td7_agent():
    """A trained agent. One test changes its assessed copies, and another one its priorities."""
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1])
    agent.fit(RandomWalk(), epochs=1, steps_per_epoch=150, verbose=0)
    return agent


def test_td7_evaluates_an_assessed_copy(td7_agent):
    agent = td7_agent
    best, present = (agent.policy()(OBSERVATIONS), agent.data.actor.snapshot()(agent.spec.pack(OBSERVATIONS)))
    assert not np.allclose(best, present, atol=1e-4)
    agent.copy_weights("pi_best", "state_encoder_best")
    np.testing.assert_allclose(agent.policy()(OBSERVATIONS), present, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.predict(OBSERVATIONS), present, rtol=1e-4, atol=1e-5)


def test_a_policy_of_copies_acts_with_them_as_soon_as_they_are_copied():
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1])
    for weight in agent.networks["state_encoder"].trainable_weights:
        weight.assign(weight + 1)
    before = agent.act(OBSERVATIONS, explore=False)
    agent.copy_weights("state_encoder_fixed")
    expected = agent.data.actor.predict(agent.spec.pack(OBSERVATIONS))
    assert not np.allclose(expected, before, atol=1e-3)
    np.testing.assert_allclose(agent.act(OBSERVATIONS, explore=False), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_td7_freezes_the_statistics_of_its_assessed_copy():
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1])
    agent.fit(RandomWalk(), epochs=1, steps_per_epoch=150, verbose=0)
    means = {name: agent.copies[name].get_weights()[0] for name in ("pi_target", "pi_best")}
    np.testing.assert_array_equal(means["pi_target"], agent.networks["pi"].get_weights()[0])
    assert not np.array_equal(means["pi_best"], means["pi_target"])


def test_td7_makes_deferred_updates_after_an_assessment(tmp_path):
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1] | {"run_eagerly": True})
    observation, _ = (env := RandomWalk()).reset(seed=0)
    updates = []
    for step in range(130):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(reward, observation, terminated, truncated)
        agent.learn()
        updates.append(agent.updates)
        if step == 99:
            agent.save(tmp_path / "agent")
            loaded = tfdpg.load_agent(tmp_path / "agent", agent_class=TD7)
            assert loaded.data.schedule.deferred == agent.data.schedule.deferred
        if terminated or truncated:
            observation, _ = env.reset()
    assert updates[58] == 1 and updates[59] == 10  # the first policy with an update began the second episode
    assert agent.data.schedule.deferred == (130 - 10) // 5 - agent.updates


def test_td7_samples_by_the_rule_of_lap(td7_agent):
    sampler = td7_agent.data.minibatch_builder.sampler
    rows, weights = sampler.sample(1, 1)
    assert (weights == 1).all()
    sampler.update_priorities(rows, np.full(rows.shape, 0.1))
    priorities = sampler.state()["priorities"]
    assert priorities[priorities > 0].min() == 1


def test_a_layer_that_numpy_does_not_know_is_computed_by_a_compiled_call(monkeypatch):
    monkeypatch.delitem(LAYERS, "tfdpg>AvgL1Norm")
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1])
    assert agent.data.actor.numpy_policy() is None
    np.testing.assert_allclose(agent.policy()(OBSERVATIONS), agent.predict(OBSERVATIONS), rtol=1e-5)


def test_the_order_of_copies_is_that_of_the_declaration():
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1])
    for number, weight in enumerate(agent.networks["state_encoder"].weights):
        weight.assign(tf.zeros_like(weight) + number)
    fixed = agent.copies["state_encoder_fixed"].get_weights()
    agent.update_copies(tf.constant(6, tf.int64))
    for before, target in zip(fixed, agent.copies["state_encoder_fixed_target"].get_weights(), strict=True):
        np.testing.assert_array_equal(target, before)  # of the fixed encoder before it was updated
    assert not np.array_equal(agent.copies["state_encoder_fixed"].get_weights()[2], fixed[2])


def test_episodes_of_vector_environments_and_custom_loops_are_reported(monkeypatch):
    ends = []
    declared = td7.assess_policy

    def noting(agent, episode, updates):
        ends.append((episode, updates))
        declared(agent, episode, updates)

    monkeypatch.setattr(td7, "assess_policy", noting)
    agent = TD7(RandomWalk(), **AGENTS["TD7"][1], reward_shaper=lambda reward, step, steps: 0 * reward)
    env = RandomWalk()
    total = 0.0
    observation, _ = env.reset(seed=1)
    for _ in range(30):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(reward, observation, terminated, truncated)
        total += reward
    ((episode, updates),) = ends
    assert episode.episode_return == pytest.approx(total, rel=1e-5) and total != 0
    assert (episode.env_index, episode.length, updates) == (0, 30, -1)
    assert episode.truncated and not episode.terminated


def test_the_return_of_an_episode_is_of_its_own_steps_after_a_reset_and_after_an_end():
    ends = []
    agent = TD7(Counter(), **AGENTS["TD7"][1])
    agent.learner._after_episode = [lambda episode, updates: ends.append(episode[:3])]
    observation = np.zeros((2, 2), np.float32)
    for step in range(1, 8):
        agent.act(observation)
        observation = observation + 1
        agent.observe(np.ones(2), observation, [step == 7, step >= 5], [False, False], observation)
        if step == 2:
            observation[0] = 0  # a reset in one of the two sub-environments
    assert ends == [(1, 5.0, 5), (1, 1.0, 1), (0, 5.0, 5), (1, 1.0, 1)]
