"""Networks that are built from a declaration: copies and their rules, optimizers, and state."""

import dataclasses
import functools
import types

import gymnasium
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tfdpg.agents import td3
from tfdpg.components import (
    Component,
    Copy,
    Metric,
    Networks,
    OptimizerSpec,
    PolicySpec,
    every,
    on_request,
    policy_loss,
    polyak,
    running_average,
)
from tfdpg.components import minimize as minimize_networks
from tfdpg.training.checkpoints.checkpoint import state_of


def linear(context):
    """A model with one weight, whose seed is the component's."""
    x = keras.Input((1,))
    initializer = keras.initializers.RandomNormal(seed=context.seed)
    return keras.Model(x, keras.layers.Dense(1, use_bias=False, kernel_initializer=initializer)(x))


def sgd(*components):
    return OptimizerSpec(lambda name: keras.optimizers.SGD(0.1, name=name), components, {})


@functools.cache
def td3_options():
    return tfdpg.TD3(Counter(), **SMALL).options


def networks(**changes):
    """Return two components, `a` and `b`, without copies unless `changes` of the declaration add some."""
    declaration = dataclasses.replace(
        td3.declare(tfdpg.Spec.of(Counter()), td3_options()),
        components=[Component("a", linear), Component("b", linear)],
        optimizers={"both": sgd("a", "b")},
        copies=[],
        seeds_by_position=False,
    )
    return Networks(dataclasses.replace(declaration, **changes), seed=3, device=None)


def weight(network):
    return float(network.get_weights()[0][0, 0])


def set_weight(network, value):
    network.set_weights([np.full((1, 1), value, np.float32)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"copies": [Copy("b", "a", every(2))]}, "different names. Received twice: b"),
        ({"copies": [Copy("x", "c", every(2))]}, "source of a copy must be among a, b, x"),
        ({"copies": [Copy("x", "x", every(2))]}, "lead to a component. Received: x of x"),
        ({"copies": [Copy("x", "y", every(2)), Copy("y", "x", every(2))]}, "Received: x of y of x"),
        ({"optimizers": {"all": sgd("a", "c")}}, "must be among a, b. Received: 'c'"),
        ({"optimizers": {"one": sgd("a"), "two": sgd("a", "b")}}, "Received several for: a"),
    ],
)
def test_names_in_a_declaration_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        networks(**changes)


def test_the_arguments_of_rules_and_policies_are_checked():
    for wrong in (lambda: every(0), lambda: polyak(0.9, every=0), lambda: polyak(1.5), lambda: running_average(0.0)):
        with pytest.raises(ValueError, match="must be"):
            wrong()
    with pytest.raises(ValueError, match="`call` must be given unless"):
        PolicySpec("a", "b")
    with pytest.raises(ValueError, match="must be among a, b. Received: 'pi'"):
        PolicySpec("pi").build(tfdpg.Spec.of(Counter()), networks())


def test_copies_start_from_their_sources_and_share_no_weight():
    made = networks(copies=[Copy("b_target", "b", polyak(0.9)), Copy("b_fixed", "b_target", every(2))])
    assert weight(made["b"]) == weight(made["b_target"]) == weight(made["b_fixed"]) != weight(made["a"])
    set_weight(made["b"], 7.0)
    assert weight(made["b_target"]) == weight(made["b_fixed"]) != 7.0
    assert list(made.targets) == ["b"] and list(made.all) == ["a", "b", "b_target", "b_fixed"]


def after_two_updates(*copies):
    """The weights of copies after the second update, if `b` has 1 and all copies had 0; none changes at the first."""
    made = networks(copies=copies)
    for name in made.copies:
        set_weight(made[name], 0.0)
    set_weight(made["b"], 1.0)
    made.update_copies(tf.constant(1, tf.int64))
    assert [weight(copied) for copied in made.copies.values()] == [0.0] * len(copies)
    made.update_copies(tf.constant(2, tf.int64))
    return {name: weight(copied) for name, copied in made.copies.items()}


def test_copies_that_are_due_together_are_updated_in_their_order():
    fixed = Copy("fixed", "b", every(2))
    target = Copy("target", "fixed", every(2))
    assert after_two_updates(fixed, target) == {"fixed": 1.0, "target": 1.0}
    assert after_two_updates(target, fixed) == {"target": 0.0, "fixed": 1.0}  # the target has the fixed weights before
    best = Copy("best", "b", on_request)
    assert after_two_updates(fixed, best) == {"fixed": 1.0, "best": 0.0}


def test_a_copy_on_request_is_copied_alone():
    made = networks(copies=[Copy("best", "b", on_request), Copy("target", "b", polyak(0.5))])
    for name, value in (("b", 2.0), ("best", 0.0), ("target", 0.0)):
        set_weight(made[name], value)
    made.copy_weights("best")
    assert (weight(made["best"]), weight(made["target"])) == (2.0, 0.0)


def test_averages_keep_a_fraction():
    made = networks(copies=[Copy("average", "b", polyak(0.5))])
    set_weight(made["average"], 0.0)
    set_weight(made["b"], 1.0)
    for expected in (0.5, 0.75):
        made.update_copies(tf.constant(1, tf.int64))
        assert weight(made["average"]) == expected


def test_a_running_average_is_over_the_last_part_of_all_updates():
    made = networks(copies=[Copy("average", "b", running_average(0.5, every=2))])
    set_weight(made["average"], -100.0)
    found = []
    for update in range(1, 9):
        set_weight(made["b"], float(update))
        made.update_copies(tf.constant(update, tf.int64))
        found.append(weight(made["average"]))
    # kept is 0 in updates 2 and 4, then 1 - 2 / (0.5 * 6) = 1/3, and 1 - 2 / (0.5 * 8) = 1/2
    np.testing.assert_allclose(found, [-100, 2, 2, 4, 4, 4 / 3 + 6 * 2 / 3, 16 / 3, 8 / 3 + 4], rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.05, 0.25, 1.0])
def test_the_weights_of_a_running_average_are_a_power_of_the_number_of_updates(fraction):
    average, updates = 0.0, 20_000
    rule = running_average(fraction, every=1)
    kept = rule.kept(tf.range(1, updates + 1, dtype=tf.int64)).numpy().astype(float)
    for update, part in enumerate(kept, 1):
        average = part * average + (1 - part) * update
    power = 1 / fraction - 1  # the mean of t, weighted by t to this power, is (power + 1) / (power + 2) of the last
    assert average / updates == pytest.approx((power + 1) / (power + 2), rel=1e-3)


def test_one_optimizer_trains_several_components_and_no_other():
    made = networks(components=[Component(name, linear) for name in ("a", "b", "c")])
    for name in ("a", "b", "c"):
        set_weight(made[name], 1.0)
    x = tf.ones((1, 1))
    with made.minimize("both") as step:
        step(tf.reduce_sum(made["a"](x) + 2 * made["b"](x) + 3 * made["c"](x)))
    np.testing.assert_allclose([weight(made[name]) for name in ("a", "b", "c")], [0.9, 0.8, 1.0], rtol=1e-6)


def test_each_optimizer_has_a_loss_of_its_own():
    made = networks(optimizers={"one": sgd("a"), "two": sgd("b")})
    for name in ("a", "b"):
        set_weight(made[name], 1.0)
    with made.minimize("two", "one") as step:
        both = tf.reduce_sum(made["a"](tf.ones((1, 1))) + made["b"](tf.ones((1, 1))))
        step(2 * both, 3 * both)
    np.testing.assert_allclose([weight(made[name]) for name in ("a", "b")], [0.7, 0.8], rtol=1e-6)
    with pytest.raises(ValueError, match="zip"), minimize_networks(([made["a"]], made.optimizers["one"])) as step:
        step(tf.constant(1.0), tf.constant(2.0))


class Stateful(tfdpg.Agent):
    """TD3 with a variable on the device and numbers on the host, which its updates and phases change."""

    def __init__(self, env, **options):
        options = tfdpg.TD3(env, **options).options

        def declare(spec, options):
            return dataclasses.replace(
                td3.declare(spec, options),
                device_state={"largest": -1.0, "unset": np.float32(np.inf)},
                host_state={"phases": 0},
                after_phase=[count_phases],
            )

        super().__init__(env, options, declare)

    def update(self, batch, counter):
        largest = self.device_state["largest"]
        largest.assign(tf.maximum(largest, tf.reduce_max(batch.reward)))
        self.update_copies(counter)
        nothing = tf.zeros_like(batch.reward)
        return {metric.name: nothing for metric in self.metrics}


def count_phases(agent, logs):
    agent.host_state["phases"] += 1


def test_state_that_is_no_network_is_saved_and_restored():
    env = Counter(length=5)
    agent = Stateful(env, **SMALL, **EAGER)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=40)
    assert agent.host_state["phases"] > 3 and float(agent.device_state["largest"]) > -1
    other = Stateful(env, **SMALL, **EAGER)
    other.parts.restore({name: np.asarray(v) for name, v in saved_arrays(agent)}, {})
    other.learner.restore(state_of(agent))
    assert other.host_state == agent.host_state
    assert float(other.device_state["largest"]) == float(agent.device_state["largest"])
    assert np.isinf(other.device_state["unset"])  # only weights must be finite


def saved_arrays(agent):
    for name, variables in agent.parts.variables.items():
        yield from ((f"{name}/{i}", variable) for i, variable in enumerate(variables))


def test_large_actions_are_penalised_as_fractions_of_the_action_scale():
    spec = tfdpg.Spec(
        gymnasium.spaces.Box(-1, 1, (1,)),
        gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([3, 1])),
    )
    q, action = tf.constant([5.0, -2.0]), tf.constant([[3.0, 0.5], [1.0, 0.75]])
    batch = types.SimpleNamespace(action=tf.zeros((2, 2)))
    loss = policy_loss(spec, q, action, batch, bc_weight=0.0, action_l2=0.5)
    np.testing.assert_allclose(loss, [-5 + 0.5 * (1 + 0) / 2, 2 + 0.5 * (0 + 0.25) / 2])  # by hand
    np.testing.assert_array_equal(policy_loss(spec, q, action, batch, 0.0), -q)


@pytest.mark.parametrize(
    "metrics, message",
    [
        (["loss_q"], r"`metrics` must be .*tfdpg.Metric, such as Metric\('loss_q'\)\. Received: metrics='loss_q'"),
        ([Metric("loss_q"), Metric("loss_q")], "different names. Received twice: loss_q"),
        ([Metric("a", priority=True), Metric("b", priority=True)], "One metric at most .*Received: a, b"),
    ],
)
def test_wrong_metrics_are_refused(metrics, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(td3.declare(tfdpg.Spec.of(Counter()), td3_options()), metrics=metrics)


def test_only_prioritised_replay_needs_a_td_error():
    class Unmeasured(tfdpg.Agent):
        def __init__(self, options):
            def declare(spec, options):
                return dataclasses.replace(td3.declare(spec, options), metrics=[Metric("loss_q")])

            super().__init__(Counter(), options, declare)

        def update(self, batch, counter):
            return {"loss_q": tf.zeros_like(batch.reward)}

    with pytest.raises(ValueError, match=r"needs the TD error .*Metric\(name, priority=True\)"):
        Unmeasured(tfdpg.TD3(Counter(), replay="prioritized").options)
    agent = Unmeasured(td3_options())
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20)
    assert agent.history.history["loss"] == [0]


def test_a_metric_s_name_says_how_it_is_logged_unless_its_declaration_does():
    metric = Metric("loss_pi")
    assert (metric.label, metric.loss, metric.shown) == ("loss pi", True, True)
    assert Metric("q1", spread=True).shown and not Metric("q1").loss and not Metric("kl").shown
    assert Metric("cost", loss=True).shown and not Metric("loss_ratio", loss=False).shown
    assert not Metric("loss_encoder", shown=False).shown
