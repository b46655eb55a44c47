"""ACER's update compared with a slow reference that processes one step at a time, in both action spaces."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from scipy.stats import norm

import tfdpg
from tfdpg.replay import WindowLayout

BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
ACTIONS = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32))
SPECS = {"discrete": tfdpg.Spec(BOX, spaces.Discrete(3, start=1)), "box": tfdpg.Spec(BOX, ACTIONS)}
SMALL = {"hidden_units": (8,), "batch_size": 3, "n_steps": 5, "jit_compile": False, "gamma": 0.9}
RNG = np.random.default_rng(3)
STEPS = 5
ENDS = np.array([[0, 0, 1, 0, 0], [0, 2, 0, 0, 0], [0, 0, 0, 0, 1]])  # 1 terminated, 2 truncated


def windows(agent):
    """Return three windows: with a termination in the middle, with a truncation in the middle, and with one at the end.

    The agent did not act on the last observation of the truncated episode.
    """
    spec = agent.spec
    width = agent.spec.act_dim + agent.family.record_width
    layout = WindowLayout.of(spec, width)
    packed = np.ones((3, STEPS + 1, layout.width), np.float32)
    packed[..., layout.observation] = RNG.normal(size=(3, STEPS + 1, 2))
    packed[..., layout.reward] = RNG.normal(size=(3, STEPS + 1))
    packed[..., layout.discount] = 0.9
    packed[:, :-1, layout.discount][ENDS == 1] = 0.0
    packed[..., layout.acted] = 1.0
    packed[:, -1, layout.acted] = 0.0
    packed[1, 2, layout.acted] = 0.0  # the last observation of the truncated episode
    outputs = agent.pi(packed[..., layout.observation].reshape(-1, 2)).numpy()
    behaviour = agent.data.behaviour.exploration.explore(
        outputs + RNG.normal(0, 0.05, outputs.shape).astype(np.float32), 1.0, RNG
    )
    if spec.actions:
        behaviour[:, 1:] = np.abs(behaviour[:, 1:]) / np.abs(behaviour[:, 1:]).sum(axis=1, keepdims=True)
    packed[..., layout.step] = behaviour.reshape(3, STEPS + 1, -1)
    return packed, layout


def slow_update(agent, packed, layout, counter):
    """Return the ascent directions and the critics' targets, in the paper's order of steps, i = k-1 ... 0."""
    spec = agent.spec
    family = agent.family
    d = agent.spec.act_dim
    inputs = tf.constant(packed[..., layout.observation])
    key = tf.stack([tf.constant(agent.seed, tf.int64), tf.constant(counter, tf.int64)])
    value_networks = agent.networks if agent.critic_average is None else agent.targets
    statistics, average = (
        units(agent, pi(tf.reshape(inputs, [-1, 2]))).reshape(3, STEPS + 1, -1)
        for pi in (agent.pi, agent.targets["pi"])
    )
    drawn = None
    if not spec.actions:
        count = 1 + agent.options.dueling_samples * agent.options.dueling
        drawn = family.sample(tf.constant(statistics[:, :-1], tf.float32), count, key).numpy()
    direction = np.zeros((3, STEPS, statistics.shape[-1]))
    target_q = np.zeros((3, STEPS))
    target_v = {}
    for b in range(3):
        v = [value(agent, value_networks, inputs[b, t : t + 1], statistics[b, t]) for t in range(STEPS + 1)]
        ret = opc = v[STEPS]
        for t in reversed(range(STEPS)):
            s = inputs[b, t : t + 1]
            discount = packed[b, t, layout.discount]
            if not packed[b, t, layout.acted]:
                ret = opc = v[t]  # the observation at which the previous episode was truncated
                continue
            action = packed[b, t, layout.step][:d]
            record = packed[b, t, layout.step][d:]
            ret, opc = (agent.reward_scale * packed[b, t, layout.reward] + discount * x for x in (ret, opc))
            of_step = s, statistics[b, t], action, record, drawn, (b, t)
            g, rho, q = policy_gradient(agent, value_networks, ret, opc, v[t], *of_step)
            k = kl_gradient(agent, average[b, t], statistics[b, t])
            z = g - max(0, (k @ g - agent.delta) / (k @ k)) * k if k @ k else g
            direction[b, t] = z + agent.ent_coef * entropy_gradient(agent, statistics[b, t])
            _, _, own_q = policy_gradient(agent, agent.networks, ret, opc, v[t], *of_step)
            own_v = value(agent, agent.networks, s, statistics[b, t])
            if not agent.options.dueling:
                own_v = action_value(agent, agent.networks, s, drawn[0][b, t], ())
            target_q[b, t] = ret
            target_v[b, t] = min(1, rho) * (ret - own_q) + own_v
            trace = agent.retrace_lambda * min(agent.retrace_clip, rho ** (1 if spec.actions else 1 / d))
            ret = trace * (ret - q) + v[t]
            opc = opc - q + v[t]
            if spec.actions:
                opc = ret
    return direction, target_q, target_v


def units(agent, output):
    """Return the probabilities, or the means and any scales in units of the action scale."""
    output = output.numpy().astype(np.float64)
    if agent.spec.actions:
        return output
    loc = (output[:, :2] - agent.spec.center) / agent.spec.action_scale
    return np.concatenate([loc, output[:, 2:] / np.tile(agent.spec.action_scale, output.shape[1] // 2 - 1)], axis=1)


def value(agent, networks, s, statistics):
    if agent.spec.actions:
        return float(statistics @ networks["q1"](s).numpy()[0])
    return float(networks["v"](s)[0])


def action_value(agent, networks, s, action, us):
    """Return Q~(s, a) of equation 13, or Q(s, a) without dueling."""
    points = tf.constant(np.stack([action, *us]), tf.float32)
    a = networks["q1"]([tf.repeat(s, len(points), axis=0), points]).numpy().reshape(-1).astype(float)
    if not agent.options.dueling:
        return a[0]
    return float(networks["v"](s)[0]) + a[0] - a[1:].mean()


def policy_gradient(agent, networks, ret, opc, v, s, statistics, action, record, drawn, place):
    if agent.spec.actions:
        rho = statistics / record
        q = networks["q1"](s).numpy()[0]
        a = int(action[0]) - 1
        g = np.where(np.arange(3) == a, min(agent.c, rho[a]) * (ret - v) / statistics, 0)
        return g + np.maximum(0, 1 - agent.c / rho) * (q - v), rho[a], q[a]
    center = agent.spec.center
    action_scale = agent.spec.action_scale
    loc = statistics[:2]
    scale = statistics[2:] if len(statistics) > 2 else np.full(2, 0.3)
    behaviour = ((record[:2] - center) / action_scale).astype(float), (record[2:] / action_scale).astype(float)

    def ratio(x):
        x = ((x - center) / action_scale).astype(float)
        return np.exp((norm.logpdf(x, loc, scale) - norm.logpdf(x, *behaviour)).sum())

    def score(x):
        away = ((x - center) / action_scale - loc) / scale
        on_scale = (away**2 - 1) / scale
        return np.concatenate([away / scale, on_scale]) if len(statistics) > 2 else away / scale

    other = drawn[0][place]
    us = [u[place] for u in drawn[1:]]
    rho = ratio(action)
    rho_prime = ratio(other)
    q = action_value(agent, networks, s, action, us)
    correction = max(0, 1 - agent.c / rho_prime) * (action_value(agent, networks, s, other, us) - v)
    return min(agent.c, rho) * (opc - v) * score(action) + correction * score(other), rho, q


def kl_gradient(agent, average, statistics):
    if agent.spec.actions:
        return -average / statistics
    loc = statistics[:2]
    scale = statistics[2:] if len(statistics) > 2 else np.full(2, 0.3)
    apart = loc - average[:2]
    average_scale = average[2:] if len(statistics) > 2 else scale
    on_scale = 1 / scale - (average_scale**2 + apart**2) / scale**3
    return np.concatenate([apart / scale**2, on_scale]) if len(statistics) > 2 else apart / scale**2


def entropy_gradient(agent, statistics):
    if agent.spec.actions:
        return -np.log(statistics) - 1
    return np.concatenate([np.zeros(2), 1 / statistics[2:]]) if len(statistics) > 2 else np.zeros(2)


def gradients(agent, packed, layout, direction, target_q, target_v, counter):
    """Return the gradients of the update, from those directions and targets."""
    acted = packed[:, :-1, layout.acted] > 0
    observation = tf.constant(packed[:, :-1, layout.observation].reshape(-1, 2))
    weights = [w.value for network in agent.networks.values() for w in network.trainable_variables]
    key = tf.stack([tf.constant(agent.seed, tf.int64), tf.constant(counter, tf.int64)])
    with tf.GradientTape() as tape:
        statistics = agent.family.statistics(agent.pi(observation))
        loss = -tf.reduce_sum(statistics * direction.reshape(-1, direction.shape[-1]).astype(np.float32))
        if agent.spec.actions:
            taken = packed[:, :-1, layout.step][..., 0].ravel().astype(int) - 1
            q = tf.gather(agent.q1(observation), taken, batch_dims=1)
        else:
            v = agent.v(observation)
            action = packed[:, :-1, layout.step][..., :2].reshape(-1, 2)
            q = agent.q1([observation, tf.constant(action)])
            if agent.options.dueling:
                now = tf.reshape(tf.stop_gradient(statistics), [3, STEPS, -1])
                drawn = tf.reshape(agent.family.sample(now, 6, key), [6, -1, 2])
                q += v - tf.add_n([agent.q1([observation, u]) for u in tf.unstack(drawn)[1:]]) / 5
            for (b, t), wanted in target_v.items():
                loss += 0.5 * 0.5 * (v[b * STEPS + t] - wanted) ** 2
        loss += 0.5 * 0.5 * tf.reduce_sum(tf.where(acted.ravel(), (q - target_q.ravel().astype(np.float32)) ** 2, 0.0))
        loss /= acted.sum()
    return tape.gradient(loss, weights)


EVERYWHERE = [
    {},
    {"c": 0.9, "delta": 0.01, "reward_scale": 0.3, "retrace_lambda": 0.7, "retrace_clip": 0.8},
    {"c": math.inf, "delta": math.inf, "retrace_clip": math.inf},
    {"critic_average": 0.8},
]
FOR_BOX = [{"learn_sigma": True, "ent_coef": 0.01, "c": 0.9, "delta": 0.1}, {"dueling": False}]
CASES = [(kind, options) for kind in SPECS for options in EVERYWHERE] + [("box", options) for options in FOR_BOX]
QUICK = [("discrete", EVERYWHERE[0]), ("discrete", EVERYWHERE[1]), ("box", EVERYWHERE[1]), ("box", FOR_BOX[0])]
PARAMS = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("kind, options", PARAMS, ids=str)
def test_an_update_matches_the_paper(kind, options):
    agent = tfdpg.ACER(SPECS[kind], optimizer=keras.optimizers.SGD(1.0), **SMALL | {"alpha": 0.7} | options)
    for target in agent.targets.values():  # average networks that differ from the networks
        for weight in target.weights:
            weight.assign(weight + 0.3 * tf.random.stateless_normal(weight.shape, [1, 2]))
    packed, layout = windows(agent)
    expected = gradients(agent, packed, layout, *slow_update(agent, packed, layout, 1), 1)
    before = [w.numpy() for network in agent.networks.values() for w in network.trainable_variables]
    averages = {name: [w.numpy() for w in target.weights] for name, target in agent.targets.items()}
    agent.update(agent.data.unpack((tf.constant(packed),)), tf.constant(1, tf.int64))
    after = [w.numpy() for network in agent.networks.values() for w in network.trainable_variables]
    for x, y, gradient in zip(before, after, expected, strict=True):
        np.testing.assert_allclose(x - y, gradient, rtol=2e-3, atol=2e-5)
    assert set(averages) == ({"pi"} if agent.critic_average is None else set(agent.networks))
    for name, average in averages.items():
        kept = 0.7 if name == "pi" else 0.8
        for old, new, online in zip(average, agent.targets[name].weights, agent.networks[name].weights, strict=True):
            np.testing.assert_allclose(new, kept * old + (1 - kept) * online, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SPECS)
def test_the_end_of_an_episode_inside_a_window_stops_credit(kind):
    """The steps before a termination or truncation give the same update whatever comes after it."""
    agent = tfdpg.ACER(SPECS[kind], optimizer=keras.optimizers.SGD(1.0), **SMALL)
    packed, layout = windows(agent)
    weights = agent.get_weights()
    for b, last in ((0, 3), (1, 3)):  # the first row of the next episode
        only = packed.copy()
        only[..., layout.acted] = 0
        only[b, :last, layout.acted] = packed[b, :last, layout.acted]
        other = only.copy()
        other[b, last:, layout.observation] += 1.0
        other[b, last:, layout.reward] += 50.0
        found = []
        for minibatch in (only, other):
            agent.set_weights(weights)
            agent.update(agent.data.unpack((tf.constant(minibatch),)), tf.constant(1, tf.int64))
            found.append(agent.get_weights())
        for x, y in zip(*found, strict=True):
            np.testing.assert_array_equal(x, y)
