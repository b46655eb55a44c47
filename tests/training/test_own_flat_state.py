"""What users write trains on flat tensors where these follow it, and on variables otherwise, with equal results."""

import functools
import importlib.util
import re
import warnings
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfdpg
from examples.sac import SAC
from tests.agents.roster import SMALL, brief
from tests.environments import RandomWalk
from tests.training.test_flat_state import assert_same, flat, is_flat  # noqa: F401 (flat is a fixture)
from tfdpg.components import run_if
from tfdpg.networks import while_loop
from tfdpg.training.learning import learner

pytestmark = brief
TINY = SMALL | {"hidden_units": (4,), "update_every": 1}
SINGLE = {"critics": 1, "policy_delay": 1}


@functools.cache
def my_td3():
    """A class outside of tfdpg, with the source of TD3."""
    source = (Path(tfdpg.__file__).parent / "agents/td3.py").read_text()
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("my_td3", None))
    exec(compile(source.replace("class TD3(", "class MyTD3("), "my_td3.py", "exec"), vars(module))
    return module.MyTD3


class Changed:
    """The base of changes of MyTD3, each of which does something before its update."""

    def update(self, batch, counter):
        self.add(batch, counter, self.networks["pi"].trainable_variables[1])
        return super().update(batch, counter)


class CountsTraces(Changed):
    """Has state in Python, which changes when `update` is traced."""

    traces = 0

    def add(self, batch, counter, bias):
        self.traces += 1
        bias.assign_add([0.01 * self.traces] * 4)


class AssignsRaw(Changed):
    """Assigns a weight past Keras."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.raw = self.networks["pi"].trainable_variables[1].value

    def add(self, batch, counter, bias):
        self.raw.assign(0.9 * self.raw)


class AssignsInBranch(Changed):
    def add(self, batch, counter, bias):
        tf.cond(counter % 3 == 0, lambda: bias.assign_add([0.1] * bias.shape[0]), lambda: bias + 0)


class ReadsInBranch(Changed):
    def add(self, batch, counter, bias):
        mean = tf.cond(counter % 3 == 0, lambda: tf.reduce_mean(bias), lambda: 0.1)
        bias.assign(bias + 0.1 * mean)


class ReadsInFunction(Changed):
    """Calls a function, which TensorFlow traces only once, before and after an assignment."""

    @tf.function(autograph=False)
    def mean(self):
        return tf.reduce_mean(self.networks["pi"].trainable_variables[1])

    def add(self, batch, counter, bias):
        bias.assign(bias + 0.1 * self.mean() + 0.01)
        bias.assign(bias + 0.1 * self.mean())


class UsesLater(Changed):
    """Uses `value`, a `tf.Variable` outside of flat state, after an assignment."""

    def add(self, batch, counter, bias):
        value = bias.value
        bias.assign(bias + 0.1)
        bias.assign(value * 0.5)


class UsesLaterInLoop(Changed):
    def add(self, batch, counter, bias):
        value = bias.value
        bias.assign(bias + 0.1)
        run_if(counter % 2 == 0, lambda: bias.assign(value * 0.5))


class UsesAfterLoop(Changed):
    """A loop that does not assign a variable does not make its value old."""

    def add(self, batch, counter, bias):
        other = self.networks["q1"].trainable_variables[1]
        value = bias.value
        run_if(counter % 2 == 0, lambda: other.assign(other * 0.5))
        bias.assign(value * 0.5)


class CatchesErrors(Changed):
    def add(self, batch, counter, bias):
        try:
            tf.cond(counter % 3 == 0, lambda: bias.assign_add([0.1] * bias.shape[0]), lambda: bias + 0)
        except BaseException:
            bias.assign(bias * 1.01)


class OwnTape(Changed):
    def add(self, batch, counter, bias):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch.ask(self.networks["pi"])))
        variables = self.networks["pi"].trainable_variables
        self.optimizers["pi"].apply(tape.gradient(loss, variables), variables)


class Loops(Changed):
    """A loop of tfdpg whose condition reads what its body assigns."""

    def add(self, batch, counter, bias):

        def body(i):
            bias.assign(bias + 0.3)
            return [i + 1]

        while_loop(lambda i: (i < 5) & (tf.reduce_mean(bias) < 1.0), body, [0])
        bias.assign(bias * 0.2)


class Watches(Changed):
    """Reads variables in hooks around update phases, in three ways."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.seen = []
        self.learner._before = self.learner._after = [self.look]
        self.raw = self.networks["pi"].trainable_variables[1].value
        self.read = tf.function(lambda: tf.reduce_sum(self.networks["pi"].trainable_variables[1]), autograph=False)

    def look(self, _):
        bias = self.networks["pi"].trainable_variables[1]
        self.seen.append([float(tf.reduce_sum(bias)), self.raw.numpy().sum(), float(self.read())])

    def add(self, batch, counter, bias):
        pass


@keras.saving.register_keras_serializable("own")
class Layer(keras.layers.Layer):
    """Counts its calls, and multiplies by a weight."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * self.factor * (1 + 1e-3 * self.calls)


@keras.saving.register_keras_serializable("own")
class CustomGradient(Layer):
    def call(self, x):
        @tf.custom_gradient
        def scaled(x):
            y = x * self.factor

            def gradient(dy, variables=()):
                return dy, [tf.reduce_sum(0.1 * dy * x) for _ in variables]

            return y, gradient

        return scaled(x)


@keras.saving.register_keras_serializable("own")
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
        return {"q1": keras.Model([x, a], h)}

    return make


@keras.saving.register_keras_serializable("own")
class OwnSGD(keras.optimizers.SGD):
    """Half of the learning rate for vectors."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * (0.5 if len(variable.shape) == 1 else 1.0))


class RawSGD(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient)


def optimizers(make):
    return lambda: {"q_optimizer": make(), "pi_optimizer": make()}


def everything():
    return critic(Layer)() | {"q_optimizer": OwnSGD(1e-2), "policy_delay": 2}


CASES = {
    "everything": (CountsTraces, everything, ""),
    "assigned in a branch": (AssignsInBranch, dict, "assigned in a `tf.cond`"),
    "raw": (AssignsRaw, dict, "used as a `tf.Variable`"),
    "caught": (CatchesErrors, dict, "assigned in a `tf.cond`"),
    "read in a branch": (ReadsInBranch, dict, ""),
    "function": (ReadsInFunction, dict, "read in a `tf.function`"),
    "used later": (UsesLater, dict, "assigned between"),
    "used later in a loop": (UsesLaterInLoop, dict, "assigned between"),
    "used after a loop": (UsesAfterLoop, dict, ""),
    "loop": (Loops, dict, ""),
    "tape": (OwnTape, dict, r"AttributeError: .*test_own_flat_state.py, line"),
    "hooks": (Watches, dict, ""),
    "normalization": (object, critic(keras.layers.BatchNormalization), ""),
    "dropout": (object, critic(lambda: keras.layers.Dropout(0.2, seed=1)), ""),
    "losses": (object, critic(lambda: keras.layers.Dense(3, activity_regularizer="l2", kernel_regularizer="l2")), ""),
    "custom gradient": (object, critic(CustomGradient), "used as a `tf.Variable`"),
    "assigns value": (object, critic(AssignsValue), r"AttributeError: .*test_own_flat_state.py, line"),
    "momentum": (object, optimizers(lambda: keras.optimizers.SGD(1e-2, momentum=0.9, clipnorm=0.1)), ""),
    "decay": (object, optimizers(lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.01, use_ema=True)), ""),
    "schedule": (
        object,
        optimizers(lambda: keras.optimizers.Nadam(keras.optimizers.schedules.CosineDecay(0.1, 9))),
        "",
    ),
    "raw optimizer": (object, optimizers(lambda: RawSGD(1e-2)), "AttributeError"),
    "accumulated": (object, optimizers(lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)), "tf.cond"),
    "scaled": (object, optimizers(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())), "tf.cond"),
} | {
    name: (object, optimizers(functools.partial(getattr(keras.optimizers, name), 1e-2)), "")
    for name in ("RMSprop", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Ftrl", "Lion", "Lamb")
}
QUICK = ("everything", "assigned in a branch")


def trained(monkeypatch, make, between=lambda agent: agent):
    """Return an agent that trained in two calls of `fit`, and an equal one whose updates were on variables."""
    agents = []
    for is_allowed in (True, False):
        monkeypatch.setattr(learner, "profits_from_flat_state", lambda *parts, is_allowed=is_allowed: is_allowed)
        keras.utils.set_random_seed(0)
        agent = make()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This training ends at|No episode ended|.*actions lie at their bounds")
            agent.fit(RandomWalk(), epochs=2, steps_per_epoch=15, verbose=2)
            agent = between(agent)
            agent.fit(RandomWalk(), epochs=4, initial_epoch=2, steps_per_epoch=8, verbose=2)
        agents.append(agent)
    return agents


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_what_users_write_is_followed_or_stays_on_variables_with_equal_results(flat, monkeypatch, capsys, name):  # noqa: F811
    change, options, reason = CASES[name]
    kind = type("Own", (my_td3(),) if change is object else (change, my_td3()), {})
    agents = trained(monkeypatch, lambda: kind(RandomWalk(), seed=0, **TINY | SINGLE | options()))
    assert_same(*agents)
    assert is_flat(agents[0]) == (reason == "")
    lines = re.findall("Each update of Own .*", capsys.readouterr().out)
    assert len(lines) == bool(reason) and (not reason or re.search(reason, lines[0])), lines
    if change is Watches:
        assert agents[0].seen == agents[1].seen and len({look[0] for look in agents[0].seen}) > 10
    if change is CountsTraces:
        assert agents[0].traces == 1


def changing_policy(env, **options):
    """An algorithm that changes its policy more often than it declares."""
    return type("Own", (CountsTraces, my_td3()), {})(env, **options)


MAKE = {
    "TD3": lambda **options: my_td3()(RandomWalk(), seed=0, **TINY | options),
    "SAC": lambda **options: SAC(RandomWalk(), seed=0, **TINY | options),
    "changing policy": lambda **options: changing_policy(RandomWalk(), seed=0, **TINY | {"policy_delay": 3} | options),
    "SGD": lambda **options: my_td3()(RandomWalk(), seed=0, q_optimizer=OwnSGD(1e-2), **TINY | options),
}
LONG = [(True, "SAC"), (True, "changing policy")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit_compile, name",
    [
        pytest.param(jit, name, marks=[pytest.mark.hours] * ((jit, name) in LONG))
        for jit in (False, True)
        for name in MAKE
    ],
)
def test_own_algorithms_train_on_flat_tensors_with_equal_results_also_after_loading(
    flat,  # noqa: F811
    monkeypatch,
    tmp_path,
    name,
    jit_compile,
):
    def load(agent):
        agent.save(tmp_path / "agent", overwrite=True)
        return tfdpg.load_agent(tmp_path / "agent", agent_class=type(agent))

    agents = trained(monkeypatch, lambda: MAKE[name](jit_compile=jit_compile), load)
    assert_same(*agents)
    assert is_flat(agents[0]) and not is_flat(agents[1])
