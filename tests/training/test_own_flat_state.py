"""Algorithms, optimizers and layers of users train on flat tensors where these follow their code, with equal results."""

import dataclasses
import importlib.util
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from examples.sac import SAC
from tests.agents.roster import EACH, SMALL, brief, fit_briefly
from tests.environments import RandomWalk
from tests.training.test_flat_state import assert_same, flat, is_flat  # noqa: F401 (a fixture)
from tfdpg.training.learning import learner

pytestmark = brief
TD3_SOURCE = Path(tfdpg.__file__).parent / "agents/td3.py"
STEPS = 31
TINY = SMALL | {"hidden_units": (4,), "update_every": 1, "critics": 1, "policy_delay": 1}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A module outside of tfdpg with the source of td3.py, whose class is called MyTD3."""
    path = tmp_path_factory.mktemp("own") / "my_td3.py"
    source = TD3_SOURCE.read_text().replace("@final\n", "").replace("class TD3(", "class MyTD3(")
    path.write_text(source.replace("super().__init__(env, options, declare)", "super().__init__(env, options, self.declare)").replace("    @takes_options", "    declare = staticmethod(declare)\n\n    @takes_options", 1))
    spec = importlib.util.spec_from_file_location("my_td3", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.MyTD3.__module__.startswith("tfdpg")
    return module.MyTD3


class Changed:
    """The base of changes of MyTD3, each of which adds something to its update."""

    def update(self, batch, counter):
        self.add(batch, counter)
        return super().update(batch, counter)


class CountsTraces(Changed):
    traces = 0

    def add(self, batch, counter):
        self.traces += 1
        self.pi.trainable_variables[1].assign_add([0.01 * self.traces] * 4)


class AssignsRaw(Changed):
    """Assigns a weight past Keras."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.raw = self.pi.trainable_variables[1].value

    def add(self, batch, counter):
        self.raw.assign(0.9 * self.raw)


class AssignsInBranch(Changed):
    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        tf.cond(counter % 3 == 0, lambda: bias.assign_add([0.1] * bias.shape[0]), lambda: bias + 0)


class ReadsInBranch(Changed):
    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        mean = tf.cond(counter % 3 == 0, lambda: tf.reduce_mean(bias), lambda: 0.1)
        bias.assign(bias + 0.1 * mean)


class ReadsInFunction(Changed):
    """Calls a function, which TensorFlow traces only once, before and after an assignment."""

    @tf.function(autograph=False)
    def mean(self):
        return tf.reduce_mean(self.pi.trainable_variables[1])

    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        bias.assign(bias + 0.1 * self.mean() + 0.01)
        bias.assign(bias + 0.1 * self.mean())


class UsesLater(Changed):
    """Uses `value`, a `tf.Variable` outside of flat state, after an assignment."""

    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        value = bias.value
        bias.assign(bias + 0.1)
        bias.assign(value * 0.5)


class UsesLaterInLoop(Changed):
    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        value = bias.value
        bias.assign(bias + 0.1)
        tfdpg.components.run_if(counter % 2 == 0, lambda: bias.assign(value * 0.5))


class UsesAfterLoop(Changed):
    """A loop that does not assign a variable does not make its value old."""

    def add(self, batch, counter):
        bias, other = self.pi.trainable_variables[1], self.q1.trainable_variables[1]
        value = bias.value
        tfdpg.components.run_if(counter % 2 == 0, lambda: other.assign(other * 0.5))
        bias.assign(value * 0.5)


class CatchesErrors(Changed):
    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]
        try:
            tf.cond(counter % 3 == 0, lambda: bias.assign_add([0.1] * bias.shape[0]), lambda: bias + 0)
        except Exception:
            pass


class OwnTape(Changed):
    def add(self, batch, counter):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch.ask(self.pi)))
        variables = self.pi.trainable_variables
        self.optimizers["pi"].apply(tape.gradient(loss, variables), variables)


class Loops(Changed):
    """A loop of tfdpg whose condition reads what its body assigns."""

    def add(self, batch, counter):
        bias = self.pi.trainable_variables[1]

        def body(i):
            bias.assign(bias + 0.3)
            return [i + 1]

        tfdpg.networks.while_loop(lambda i: (i < 5) & (tf.reduce_mean(bias) < 1.0), body, [0])
        bias.assign(bias * 0.2)


class Watches(Changed):
    """Reads variables in hooks around update phases, in three ways."""

    @staticmethod
    def declare(spec, options):
        def look(agent, _):
            bias = agent.pi.trainable_variables[1]
            seen = [bias.numpy().sum(), agent.raw.numpy().sum(), float(agent.read())]
            agent.seen.append(seen)

        declared = Watches.original(spec, options)
        return dataclasses.replace(declared, before_phase=[look], after_phase=[look])

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.seen = []
        self.raw = self.pi.trainable_variables[1].value
        self.read = tf.function(lambda: tf.reduce_sum(self.pi.trainable_variables[1]), autograph=False)

    def add(self, batch, counter):
        pass


@keras.saving.register_keras_serializable('own')
class Layer(keras.layers.Layer):
    """Counts its calls, and multiplies by a weight."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * self.factor * (1 + 1e-3 * self.calls)


@keras.saving.register_keras_serializable('own')
class CustomGradient(Layer):
    def call(self, x):
        @tf.custom_gradient
        def scaled(x):
            y = x * self.factor

            def gradient(dy, variables=()):
                return dy, [tf.reduce_sum(0.1 * dy * x) for _ in variables]

            return y, gradient

        return scaled(x)


@keras.saving.register_keras_serializable('own')
class AssignsValue(Layer):
    def call(self, x):
        self.factor.value.assign_add(1e-3)
        return x * self.factor


def critic(*layers):
    def make():
        x, a = keras.Input((2,)), keras.Input((1,))
        h = keras.layers.Concatenate()([x, a])
        for layer in (keras.layers.Dense(4), *(make() for make in layers), keras.layers.Dense(1)):
            h = layer(h)
        return {"q1": keras.Model([x, a], h), "hidden_units": None}

    return make


class OwnSGD(keras.optimizers.SGD):
    """Half of the learning rate for vectors."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * (0.5 if len(variable.shape) == 1 else 1.0))


class RawSGD(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient)


def optimizer(make):
    return lambda: {"q_optimizer": make(), "pi_optimizer": make()}


CHANGES = {
    "copy": (object, dict, ""),
    "traces": (CountsTraces, dict, ""),
    "raw": (AssignsRaw, dict, "is used as a `tf.Variable`"),
    "branch": (AssignsInBranch, dict, "is assigned in a `tf.cond`"),
    "caught": (CatchesErrors, dict, "is assigned in a `tf.cond`"),
    "read in branch": (ReadsInBranch, dict, ""),
    "function": (ReadsInFunction, dict, "is read in a `tf.function`"),
    "later": (UsesLater, dict, "is assigned between"),
    "later in loop": (UsesLaterInLoop, dict, "is assigned between"),
    "after loop": (UsesAfterLoop, dict, ""),
    "loop": (Loops, dict, ""),
    "tape": (OwnTape, dict, "AttributeError: .*test_own_flat_state.py"),
    "hooks": (Watches, dict, ""),
    "layer": (object, critic(Layer), ""),
    "batch norm": (object, critic(keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.2, seed=1)), ""),
    "activity": (object, critic(lambda: keras.layers.Dense(3, activity_regularizer="l2", kernel_regularizer="l2")), ""),
    "custom gradient": (object, critic(CustomGradient), "is used as a `tf.Variable`"),
    "assigns value": (object, critic(AssignsValue), "AttributeError"),
    "SGD": (object, optimizer(lambda: keras.optimizers.SGD(1e-2, momentum=0.9, nesterov=True, clipnorm=0.1)), ""),
    "AdamW": (object, optimizer(lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.01, use_ema=True)), ""),
    "own SGD": (object, optimizer(lambda: OwnSGD(1e-2)), ""),
    "raw SGD": (object, optimizer(lambda: RawSGD(1e-2)), "AttributeError"),
    "accumulated": (object, optimizer(lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)), "tf.cond"),
    "scaled": (object, optimizer(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2))), "tf.cond"),
    "schedule": (object, optimizer(lambda: keras.optimizers.Nadam(keras.optimizers.schedules.CosineDecay(1e-2, 20))), ""),
} | {
    name: (object, optimizer(lambda kind=getattr(keras.optimizers, name): kind(1e-2)), "")
    for name in ("RMSprop", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb", "Muon")
}


@pytest.mark.parametrize("name", CHANGES)
def test_own(flat, monkeypatch, capsys, copied, name):
    change, more, reason = CHANGES[name]
    kind = type("Own", (change, copied) if change is not object else (copied,), {})
    if change is Watches:
        Watches.original = staticmethod(copied.declare)
    agents = []
    for is_allowed in (True, False):
        monkeypatch.setattr(learner, "profits_from_flat_state", lambda agent: is_allowed)
        agents.append(kind(RandomWalk(), seed=0, **{k: v for k, v in (TINY | more()).items() if v is not None}))
        keras.utils.set_random_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "This training ends at|No episode ended|.*actions lie at their bounds")
            for _ in range(2):
                agents[-1].fit(RandomWalk(), epochs=2, steps_per_epoch=STEPS // 2, verbose=2)
    import re
    text = capsys.readouterr().out
    print(text)
    assert is_flat(agents[0]) == (not reason)
    lines = re.findall("Each update.*", text)
    assert len(lines) == bool(reason) and (not reason or re.search(reason, lines[0]))
    assert_same(*agents)
    if change is Watches:
        assert agents[0].seen == agents[1].seen
        assert [len(set(x)) for x in agents[0].seen]
    if change is CountsTraces:
        assert agents[0].traces == 1
