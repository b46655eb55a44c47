"""TD7: updates against the equations of the paper in NumPy, and the assessment of policies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.roster import brief
from tests.environments import RandomWalk
from tfdpg.networks import stateless_normal
from tfdpg.training.environment.env_runner import Episode

SMALL = {
    "hidden_units": (6, 6),
    "encoder_units": (5, 5),
    "embedding_units": 4,
    "batch_size": 5,
    "start_steps": 20,
    "update_after": 20,
    "replay_size": 300,
}
SPEC = tfdpg.Spec(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32))
NAMES = "state_encoder", "action_encoder", "pi", "q1", "q2"


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def relu(x):
    return np.maximum(x, 0)


def avg_l1_norm(x):
    return x / np.maximum(np.abs(x).mean(axis=1, keepdims=True), 1e-8)


def linear(x, weights, layer):
    return x @ weights[2 * layer] + weights[2 * layer + 1]


def layers(x, weights, first, activation):
    """Two hidden layers and a linear one."""
    for layer in (first, first + 1):
        x = activation(linear(x, weights, layer))
    return linear(x, weights, first + 2)


def f(w, s):
    return avg_l1_norm(layers(s, w, 0, elu))


def g(w, zs, a):
    return layers(np.hstack([zs, a]), w, 0, elu)


def preactivation(w, s, zs):
    return layers(np.hstack([avg_l1_norm(linear(s, w, 0)), zs]), w, 1, relu)


def policy(w, s, zs):
    return np.tanh(preactivation(w, s, zs))


def critic(w, s, a, zsa, zs):
    x = avg_l1_norm(linear(np.hstack([s, a]), w, 0))
    return layers(np.hstack([x, zsa, zs]), w, 1, elu)[:, 0]


def huber(error):
    return np.where(np.abs(error) < 1, 0.5 * error**2, np.abs(error) - 0.5)


class Reference:
    """TD7 in NumPy, float64, with actions in [-1, 1] and gradients by central differences."""

    def __init__(self, networks, period, bc_weight, preactivation_weight, smoothness):
        self.w = networks
        self.period = period
        self.bc_weight = bc_weight
        self.preactivation_weight = preactivation_weight
        self.smoothness = smoothness
        self.moments = {}
        self.target = {name: [x.copy() for x in networks[name]] for name in ("pi", "q1", "q2")}
        self.fixed = {name: [x.copy() for x in networks[name]] for name in ("state_encoder", "action_encoder")}
        self.fixed_target = {name: [x.copy() for x in w] for name, w in self.fixed.items()}
        self.clip = [0.0, 0.0]
        self.seen = [np.inf, -np.inf]
        self.updates = 0

    def minimize(self, name, loss):
        """One step of Keras' Adam, learning rate 3e-4, on the weights of a network."""
        gradients = []
        for array in self.w[name]:
            gradient = np.zeros_like(array)
            for index in np.ndindex(array.shape):
                value = array[index]
                array[index] = value + 1e-6
                above = loss()
                array[index] = value - 1e-6
                gradient[index] = (above - loss()) / 2e-6
                array[index] = value
            gradients.append(gradient)
        return name, gradients

    def step(self, *results):
        for name, gradients in results:
            for i, gradient in enumerate(gradients):
                m, v, t = self.moments.get((name, i), (0.0, 0.0, 0))
                m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
                self.moments[name, i] = m, v, t
                rate = 3e-4 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                self.w[name][i] -= rate * m / (np.sqrt(v) + 1e-7)

    def change(self, s, other):
        """The mean squared difference of the actions at two observations."""
        actions = (policy(self.w["pi"], x, f(self.fixed["state_encoder"], x)) for x in (s, other))
        return np.mean(np.subtract(*actions) ** 2)

    def update(self, s, a, r, s_t, not_done, noise, near):
        self.updates += 1
        w = self.w
        zs_t = f(w["state_encoder"], s_t)

        def encoder_loss():
            return np.mean((g(w["action_encoder"], f(w["state_encoder"], s), a) - zs_t) ** 2)

        measured = {"loss_encoder": encoder_loss(), "loss_pi": np.nan}
        self.step(*[self.minimize(name, encoder_loss) for name in ("state_encoder", "action_encoder")])

        zs_t = f(self.fixed_target["state_encoder"], s_t)
        a_t = np.clip(policy(self.target["pi"], s_t, zs_t) + np.clip(0.2 * noise, -0.5, 0.5), -1, 1)
        zsa_t = g(self.fixed_target["action_encoder"], zs_t, a_t)
        q_t = np.minimum(*[critic(self.target[name], s_t, a_t, zsa_t, zs_t) for name in ("q1", "q2")])
        y = r + not_done * 0.99 * np.clip(q_t, *self.clip)
        self.seen = [min(self.seen[0], y.min()), max(self.seen[1], y.max())]
        zs = f(self.fixed["state_encoder"], s)
        zsa = g(self.fixed["action_encoder"], zs, a)
        errors = [critic(w[name], s, a, zsa, zs) - y for name in ("q1", "q2")]
        for name in ("q1", "q2"):
            self.step(self.minimize(name, lambda name=name: huber(critic(w[name], s, a, zsa, zs) - y).mean()))

        if self.updates % 2 == 0:

            def values():
                action = policy(w["pi"], s, zs)
                zsa = g(self.fixed["action_encoder"], zs, action)
                return np.stack([critic(w[name], s, action, zsa, zs) for name in ("q1", "q2")])

            size = np.abs(values()).mean()

            def policy_loss():
                cloning = self.bc_weight * size * np.mean((policy(w["pi"], s, zs) - a) ** 2)
                penalty = self.preactivation_weight * np.mean(preactivation(w["pi"], s, zs) ** 2)
                changes = self.smoothness * (self.change(s, s_t) + 5 * self.change(s, near))
                return cloning + penalty + changes - values().mean()

            measured["loss_pi"] = policy_loss()
            self.step(self.minimize("pi", policy_loss))
        if self.updates % self.period == 0:
            self.target = {name: [x.copy() for x in w[name]] for name in self.target}
            self.fixed_target = self.fixed
            self.fixed = {name: [x.copy() for x in w[name]] for name in self.fixed}
            self.clip = list(self.seen)
        measured["td_error"] = np.max(np.abs(errors), axis=0).mean()
        return measured | {"loss_q": huber(np.array(errors)).mean(axis=1).sum()}


TERMS = {"bc_weight": 0.1, "preactivation_weight": 0.3, "smoothness": 0.2}


@pytest.mark.parametrize("weights", [{}, TERMS], ids=["default", "all terms"])
def test_five_updates_follow_the_equations_of_the_paper(rng, weights):
    agent = tfdpg.TD7(
        SPEC, **SMALL, seed=4, target_update_every=2, jit_compile=False, run_eagerly=bool(weights), **weights
    )
    arrays = {name: [np.asarray(weight, np.float64) for weight in agent.networks[name].get_weights()] for name in NAMES}
    reference = Reference(arrays, 2, **dict.fromkeys(TERMS, 0.0) | weights)
    for update in range(1, 6):
        batch = {
            "observations": rng.normal(size=(5, 3)),
            "next_observations": rng.normal(size=(5, 3)),
            "actions": rng.uniform(-2, 2, (5, 2)),
            "rewards": 5 * rng.normal(size=5),
            "terminations": np.array([0.0, 1.0, 0.0, 0.0, 1.0]),
        }
        batch = {name: array.astype(np.float32) for name, array in batch.items()}
        noise = stateless_normal((5, 2), tf.constant([4, update], tf.int64)).numpy()
        perturbation = stateless_normal((15,), tf.constant([-5, update], tf.int64)).numpy().reshape(5, 3)
        near = batch["observations"] + 0.2 * batch["observations"].std(axis=0) * perturbation
        expected = reference.update(
            batch["observations"],
            batch["actions"] / 2,
            batch["rewards"],
            batch["next_observations"],
            1 - batch["terminations"],
            noise,
            near,
        )
        logs = agent.train_on_batch(batch)
        assert {name: logs.get(name, np.nan) for name in expected} == pytest.approx(expected, rel=1e-4, nan_ok=True)
    for name in NAMES:
        np.testing.assert_allclose(
            np.concatenate([weight.ravel() for weight in agent.networks[name].get_weights()]),
            np.concatenate([weight.ravel() for weight in reference.w[name]]),
            atol=1e-5,
        )
    copies = {f"{name}_target": w for name, w in reference.target.items()}
    copies |= {f"{name}_fixed": w for name, w in reference.fixed.items()}
    copies |= {f"{name}_fixed_target": w for name, w in reference.fixed_target.items()}
    for name, weights in copies.items():
        for weight, expected in zip(agent.copies[name].get_weights(), weights, strict=True):
            np.testing.assert_allclose(weight, expected, atol=1e-5)
    limits = [float(agent.device_state[name]) for name in ("value_min", "value_max")]
    np.testing.assert_allclose(limits, reference.clip, rtol=1e-5)
    assert limits[0] < 0 < limits[1]


def assess(agent, *returns, updates=None):
    """Report episodes to an agent."""
    for value in returns:
        agent.learner.end_episode(Episode(0, value, 10, True, False), agent.updates if updates is None else updates)


@pytest.fixture
def trained():
    """An agent that has just made updates, and whose policy is now to be assessed."""
    agent = tfdpg.TD7(RandomWalk(), **SMALL, assess_more_after=5, assessed_episodes=3, run_eagerly=True)
    observation, _ = (env := RandomWalk()).reset(seed=0)
    for _ in range(30):
        observation, reward, *_ = env.step(agent.act(observation))
        agent.observe(reward, observation, False, False)
    agent.learn(updates=1)
    return agent


def distance_to_best(agent):
    """The largest difference between the weights of the policy and those of the best policy."""
    pairs = zip(agent.networks["pi"].get_weights(), agent.copies["pi_best"].get_weights(), strict=True)
    return max(np.abs(new - best).max() for new, best in pairs)


def test_the_newest_policy_is_the_best_one_before_the_first_assessment(trained):
    trained.learn(updates=1)
    assert distance_to_best(trained) == 0 and trained.defers_updates


def test_a_policy_whose_return_is_not_smaller_becomes_the_best_one(trained):
    assess(trained, -3.0)
    assert trained.host_state["best_return"] == -3 and not trained.defers_updates
    trained.learn(updates=2)
    assert distance_to_best(trained) > 0 and trained.defers_updates
    assess(trained, -4.0)
    assert trained.host_state["best_return"] == -3 and distance_to_best(trained) > 0 and not trained.defers_updates
    trained.learn(updates=1)
    assess(trained, -3.0)
    assert distance_to_best(trained) == 0


def test_later_policies_are_judged_by_the_worst_return_of_several_episodes(trained):
    assess(trained, -10.0)
    trained.learn(updates=4)
    assert trained.host_state["best_return"] == pytest.approx(-11)  # 10 % lower, at `assess_more_after`
    assess(trained, 5.0, -10.5)
    assert trained.defers_updates
    assess(trained, 6.0)
    assert trained.host_state["best_return"] == -10.5 and not trained.defers_updates
    trained.learn(updates=1)
    assert trained.host_state["best_return"] == -10.5
    assess(trained, 9.0, -10.6)  # the second one ends the assessment
    assert trained.host_state["best_return"] == -10.5 and not trained.defers_updates


def test_updates_during_an_assessment_begin_another_one(trained):
    assess(trained, -10.0)
    trained.learn(updates=5)
    assess(trained, -100.0, -90.0)
    assert trained.host_state["worst_return"] == -100 and not trained.defers_updates
    trained.learn(updates=1)
    assess(trained, -5.0)
    assert trained.host_state["assessed"] == 1
    trained.learn(updates=1)
    assert trained.host_state["assessed"] == 0 and trained.host_state["worst_return"] is None


def test_episodes_that_end_after_an_assessment_are_not_assessed(trained):
    assess(trained, -3.0, 100.0, -100.0)
    assert trained.host_state["best_return"] == -3 and trained.host_state["assessed"] == 1


def test_episodes_of_an_earlier_policy_are_not_assessed(trained):
    trained.learn(updates=2)
    assess(trained, 100.0, updates=0)
    assess(trained, 100.0, updates=trained.updates - 1)
    assert trained.host_state["assessed"] == 0 and trained.host_state["best_return"] is None and trained.defers_updates


@brief
@pytest.mark.slow
def test_in_a_vector_environment_only_complete_episodes_of_one_policy_are_assessed():
    agent = tfdpg.TD7(
        RandomWalk(),
        **SMALL | {"start_steps": 70},
        jit_compile=False,
        gradient_steps=1,
        update_every=7,
        assess_more_after=1,
    )
    reported = []

    def end_episode(episode, updates):
        before = dict(agent.host_state), agent.updates, agent.defers_updates
        agent.learner.end_episode(episode, updates)
        reported.append((updates, *before[1:], agent.host_state != before[0] or agent.defers_updates != before[2]))

    agent.data.collector.report_episodes(end_episode, lambda: agent.updates)
    env = SyncVectorEnv([lambda n=n: RandomWalk(n) for n in (30, 30, 41)])
    agent.fit(env, epochs=1, steps_per_epoch=2000, verbose=0)
    counted = [updates == now and defers for updates, now, defers, _ in reported]
    assert [changed for *_, changed in reported] == counted
    assert 10 < sum(counted) < len(counted) - 5 and reported[0][0] == -1


@brief
def test_without_the_best_policy_each_policy_is_trained_and_evaluated():
    agent = tfdpg.TD7(RandomWalk(), **SMALL, keep_best_policy=False, run_eagerly=True, update_every=2)
    agent.fit(RandomWalk(), epochs=1, steps_per_epoch=24, verbose=0)
    assert agent.updates == 4 and "pi_best" not in agent.copies and not agent.host_state
    with pytest.raises(ValueError, match="`assessed_episodes` does nothing"):
        tfdpg.TD7(SPEC, **SMALL, keep_best_policy=False, assessed_episodes=3)


def test_networks_must_have_a_hidden_layer():
    with pytest.raises(ValueError, match="`hidden_units`"):
        tfdpg.TD7(SPEC, **SMALL | {"hidden_units": ()})


@brief
def test_it_trains_on_stored_transitions(rng):
    agent = tfdpg.TD7(SPEC, **SMALL, bc_weight=0.1, run_eagerly=True)
    observations = rng.normal(size=(40, 3))
    data = {
        "observations": observations,
        "next_observations": observations + 0.1,
        "actions": rng.uniform(-2, 2, (40, 2)),
        "rewards": rng.normal(size=40),
        "terminations": np.zeros(40),
    }
    before = agent.predict(observations)
    agent.fit_offline(data, epochs=1, steps_per_epoch=5, verbose=0)
    assert agent.updates == 5 and not np.allclose(agent.predict(observations), before, atol=1e-6)


def test_without_target_networks_critics_see_both_halves_in_one_pass_and_values_are_not_clipped(rng):
    agent = tfdpg.TD7(SPEC, **SMALL, norm="batch", target_networks=False, replay="uniform", run_eagerly=True)
    assert set(agent.copies) == {"state_encoder_fixed", "action_encoder_fixed", "pi_best", "state_encoder_best"}
    batch = {
        "observations": rng.normal(size=(5, 3)),
        "next_observations": rng.normal(size=(5, 3)),
        "actions": rng.uniform(-2, 2, (5, 2)),
        "rewards": rng.normal(size=5),
        "terminations": np.zeros(5),
    }
    s, s_t, a = (tf.constant(batch[name], tf.float32) for name in ("observations", "next_observations", "actions"))
    copies = [agent.copies[name] for name in ("state_encoder_fixed", "action_encoder_fixed")]
    zs, zs_t = (copies[0](each) for each in (s, s_t))
    noise = 0.4 * stateless_normal((5, 2), tf.constant([0, 1], tf.int64))
    a_t = tf.clip_by_value(agent.networks["pi"]([s_t, zs_t]) + tf.clip_by_value(noise, -1, 1), -2, 2)
    halves = [s, a, copies[1]([zs, a]), zs], [s_t, a_t, copies[1]([zs_t, a_t]), zs_t]
    joint = [tf.concat(pair, axis=0) for pair in zip(*halves, strict=True)]
    critics = [keras.models.clone_model(agent.networks[name]) for name in ("q1", "q2")]
    for critic, name in zip(critics, ("q1", "q2"), strict=True):
        critic.set_weights(agent.networks[name].get_weights())
    q = np.array([critic(joint, training=True) for critic in critics])
    target = batch["rewards"] + 0.99 * q[:, 5:].min(axis=0)
    logs = agent.train_on_batch(batch)
    assert logs["loss_q"] == pytest.approx(np.mean((q[:, :5] - target) ** 2, axis=1).sum(), rel=1e-4)
    with pytest.raises(ValueError, match="`batch_size`"):
        tfdpg.TD7(SPEC, **SMALL | {"batch_size": 1}, norm="batch")


@pytest.mark.parametrize(("option", "message"), [("recurrent", "DDPG, TD3 and D4PG can be"), ("pi", "built in")])
def test_options_that_it_does_not_have_are_rejected_with_the_reason(option, message):
    with pytest.raises(TypeError, match=f"'{option}'.*{message}"):
        tfdpg.TD7(SPEC, **{option: None})
