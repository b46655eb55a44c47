"""`fit` makes updates on flat tensors; they are those on variables, which are current whenever one can look."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import AGENTS, brief, fit_briefly
from tests.environments import RandomWalk
from tfdpg.networks import flat_state
from tfdpg.training.callbacks import StepFile
from tfdpg.training.callbacks.monitors import BatchCallbacks
from tfdpg.training.callbacks.progress import ProgressBar
from tfdpg.training.callbacks.scalars import ScalarWriter
from tfdpg.training.learning import learner
from tfdpg.training.learning.updates import CompiledUpdates

pytestmark = brief


def TD3(env, **options):
    """The smallest agent whose first of two updates is held back."""
    return AGENTS["TD3"](env, **{"critics": 1, "hidden_units": (4,)} | options)


STEPS = 47  # the last update of TD3 below is held back


@pytest.fixture
def flat(monkeypatch):
    """Let `fit` use flat tensors without XLA, which would take seconds to compile."""
    monkeypatch.setattr(learner, "uses_xla", lambda networks, jit_compile: True)


def is_flat(agent):
    """Return whether the agent was trained on a flat tensor."""
    (flat,) = agent.learner._compiled
    return flat


def assert_same(one, other):
    """Weights, optimizers and counters are equal."""
    assert one.updates == other.updates > 0
    for name, variables in one.parts.variables.items():
        for a, b in zip(variables, other.parts.variables[name], strict=True):
            np.testing.assert_array_equal(a, b, name, strict=True)


def train_in_own_loop(agent, steps=STEPS):
    """Train as `fit` does, on variables."""
    env = RandomWalk()
    observation = None
    for _ in range(steps):
        if observation is None:
            observation, _ = env.reset(seed=agent.next_reset_seed(0))
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(reward, observation, terminated, truncated)
        agent.learn()
        if truncated:
            observation = None
    assert not is_flat(agent)
    return agent


class Watcher(keras.callbacks.Callback):
    """Compares the networks with the acting weights after every update phase."""

    phases = 0

    def on_train_batch_end(self, batch, logs=None):
        weights = np.concatenate([weight.ravel() for weight in self.model.pi.get_weights()])
        np.testing.assert_array_equal(weights, self.model.data.actor.numpy_policy().weights)
        assert ("loss_q" in logs) == (self.model.updates > 0) and int(self.model.learner.counter) == self.model.updates
        self.phases += 1


class Curious(RandomWalk):
    """Looks at the agent in each step."""

    agent = None
    seen = ()

    def step(self, action):
        self.seen = (*self.seen, self.agent.get_weights()[0].sum())
        return super().step(action)


MAKE = {
    "TD3": lambda: TD3(RandomWalk(), update_every=1, policy_delay=3, clip_norm=0.1, l2=0.1),
    "TD3, normalized": lambda: TD3(RandomWalk(), update_every=1, normalize_observations=True),
    "TD3, LSTM": lambda: TD3(RandomWalk(), update_every=2, recurrent="lstm", recurrent_units=4, burn_in=2),
    "TD7": lambda: AGENTS["TD7"](RandomWalk(), update_every=1, keep_best_policy=True, target_update_every=4),
    "TD7, averaged": lambda: AGENTS["TD7"](RandomWalk(), update_every=1, gradient_steps=3, average_policy=1.0),
    "TD3, prioritized": lambda: TD3(RandomWalk(), update_every=3, replay="prioritized"),
    "D4PG": lambda: AGENTS["D4PG"](RandomWalk(), update_every=1, v_min=None, v_max=None),
    "DDPG": lambda: AGENTS["DDPG"](RandomWalk(), update_every=7),
    "ACER": lambda: AGENTS["ACER"](RandomWalk()),
}


@pytest.mark.parametrize("name", [n if n == "TD3" else pytest.param(n, marks=pytest.mark.slow) for n in MAKE])
def test_fit_on_flat_tensors_is_bit_identical_to_a_loop_on_variables(flat, name):
    agents = [MAKE[name]() for _ in range(2)]
    history = fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=STEPS).history
    assert is_flat(agents[0])
    assert_same(agents[0], train_in_own_loop(agents[1]))
    logs = agents[1].learner.epoch_metrics.summary()
    assert {name: history[name][0] for name in logs} == pytest.approx(logs, rel=1e-9, nan_ok=True)
    logs = agents[0].fit(RandomWalk(), epochs=2, initial_epoch=1, steps_per_epoch=STEPS, verbose=0).history
    assert np.isfinite(logs["loss_q"]).all()


@pytest.mark.parametrize("every", [1, 5])
def test_large_variables_have_flat_tensors_of_their_own_where_calls_make_few_updates(flat, every, monkeypatch):
    monkeypatch.setattr(flat_state, "LARGE", 8)
    agents = [TD3(RandomWalk(), update_every=every, hidden_units=(4, 3)) for _ in range(2)]
    fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=STEPS)
    sizes = sorted(len(group) for group in agents[0].learner._state._groups)
    large = [int(np.prod(variable.shape)) >= 8 for variable in agents[0].learner._state._variables]
    assert sizes[:-2] == ([1] * sum(large) if every == 1 else []) and sum(large) > 10
    assert_same(agents[0], train_in_own_loop(agents[1]))


@pytest.mark.parametrize(
    "name, is_allowed",
    [
        ("TD7", True),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in MAKE if name != "TD7"),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("TD7", "TD3, LSTM", "ACER")),
    ],
)
def test_compiling_in_advance_changes_nothing(flat, name, is_allowed, monkeypatch):
    agents = [MAKE[name]() for _ in range(2)]
    calls = []
    monkeypatch.setattr(
        CompiledUpdates, "_call", lambda *given, call=CompiledUpdates._call: calls.append(given[2]) or call(*given)
    )
    with agents[0].learner.flat_state(is_allowed):
        agents[0].learner.compile()
    assert calls[0] == 0 and (calls[1:] or not is_allowed)
    state = {name: part.numpy() for name, part in agents[0].device_state.items()}
    assert state == {name: part.numpy() for name, part in agents[1].device_state.items()}
    for agent in agents:
        fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=STEPS)
    assert agents[0].updates == agents[1].updates > 0
    for mine, other in zip(agents[0].get_weights(), agents[1].get_weights(), strict=True):
        # a busy machine once added in another order; an update that was not taken back would change 1e-4 and more
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_variables_that_were_changed_between_two_calls_of_fit_count(flat):
    def fit(agent):
        fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=STEPS)

    agents = [TD3(RandomWalk(), update_every=1) for _ in range(2)]
    for agent, train in zip(agents, (fit, train_in_own_loop), strict=True):
        train(agent)
        agent.networks["q1"].trainable_variables[0].assign(np.full((3, 4), 0.1))
        train(agent)
    assert_same(*agents)


def test_policies_that_do_not_act_in_numpy_and_eager_updates_stay_on_variables(flat):
    inputs = keras.Input((2,))
    policy = keras.Model(inputs, keras.layers.Dense(1, "tanh")(inputs))
    agents = [AGENTS["DDPG"](RandomWalk(), **options) for options in ({"pi": policy}, {"run_eagerly": True}, {})]
    assert [learner.profits_from_flat_state(agent.parts, agent.data) for agent in agents] == [False, False, True]


@pytest.mark.slow
def test_fit_with_xla_is_equal_to_a_loop_on_variables():
    agents = [TD3(RandomWalk(), update_every=1, jit_compile=True) for _ in range(2)]
    fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=STEPS)
    assert is_flat(agents[0])
    train_in_own_loop(agents[1])
    for weights, expected in zip(agents[0].get_weights(), agents[1].get_weights(), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_callbacks_of_update_phases_see_the_newest_weights_and_logs(flat):
    watcher = Watcher()
    fit_briefly(TD3(RandomWalk(), update_every=1), RandomWalk(), epochs=1, steps_per_epoch=30, callbacks=[watcher])
    assert watcher.phases == 30


@pytest.mark.slow
def test_an_environment_that_looks_at_the_agent_sees_the_newest_weights(flat):
    env = Curious()
    env.agent = TD3(RandomWalk(), update_every=1)
    fit_briefly(env.agent, env, epochs=1, steps_per_epoch=30)
    assert is_flat(env.agent) and len(set(env.seen)) == 1 + (30 - 10 - 1) // 2


def test_updates_that_are_held_back_are_made_before_anything_is_saved_and_may_diverge(flat, tmp_path):
    agent = TD3(RandomWalk(), update_every=1, policy_delay=5)
    collect(agent, 20)
    with agent.learner.flat_state(is_allowed=True):
        assert "loss_q" in agent.learner.run_update_phase(1, may_hold=True)  # the first one is traced
        assert [agent.learner.run_update_phase(1, may_hold=True) for _ in range(2)] == [{}] * 2
        assert agent.updates == 3 and int(agent.learner.counter) == 1
        assert "loss_q" in agent.learner.run_update_phase(3, may_hold=True) and agent.updates == 6
        agent.save(tmp_path / "agent")
        assert int(agent.learner.counter) == 6 and tfdpg.load_agent(tmp_path / "agent").updates == 6
        assert "loss_q" in agent.learn(updates=1) and int(agent.learner.counter) == 7
    agent.replay.segment(0, agent.replay.added)["rows"][:, -1] = np.nan  # the rewards, in a view of the buffer
    with pytest.raises(FloatingPointError, match="`q1`"), agent.learner.flat_state(is_allowed=True):
        assert agent.learner.run_update_phase(1, may_hold=True) == {}
    assert agent.updates == int(agent.learner.counter) == 8 and np.isnan(agent.networks["q1"].get_weights()[0]).any()
    assert not agent.learner._is_flat


def collect(agent, steps):
    """Take steps without an update."""
    env = RandomWalk(length=steps + 1)
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        observation, reward, *ends, _ = env.step(agent.act(observation))
        agent.observe(reward, observation, *ends)
    return True


def test_only_callbacks_with_batch_methods_are_called_in_update_phases(tmp_path):
    def read_variables(*callbacks):
        several = [*callbacks, keras.callbacks.History(), ProgressBar()]
        return BatchCallbacks(keras.callbacks.CallbackList(several)).read_variables

    own = [StepFile(tmp_path / "steps"), ScalarWriter(tmp_path, 10)]
    assert not read_variables(*own, keras.callbacks.CSVLogger(str(tmp_path / "log")))
    assert read_variables(*own, Watcher()) and read_variables(keras.callbacks.LambdaCallback(on_train_batch_end=print))


READS = {
    "get_weights": lambda model: model.get_weights(),
    "call": lambda model: [model(np.ones((1, 2), np.float32)).numpy()],
    "raw variable": lambda model: [weight.value.numpy() for weight in model.trainable_variables],
    "variable": lambda model: [weight.numpy() for weight in model.trainable_variables],
    "copy": lambda model: copy.deepcopy(model).get_weights(),
    "predict": lambda model: [model.predict(np.ones((1, 2), np.float32), verbose=0)],
    "function": lambda model: [
        model.__dict__.setdefault("own_function", tf.function(model, autograph=False))(tf.ones((1, 2))).numpy()
    ],
}


class Reader(RandomWalk):
    """Reads networks, and compares what it finds with the result of `get_weights` or with the same after it."""

    def __init__(self, read, *names):
        super().__init__()
        self.read = read
        self.names = names
        self.seen = []

    def step(self, action):
        models = [self.agent.parts.all[name] for name in self.names]
        found = [np.array(part) for model in models for part in self.read(model)]
        self.agent.get_weights()
        for now, part in zip((part for model in models for part in self.read(model)), found, strict=True):
            np.testing.assert_array_equal(part, now)
        self.seen.append(float(sum(np.abs(part).sum() for part in found)))
        return super().step(action)


@pytest.mark.parametrize(
    "read",
    [
        "get_weights",
        *(pytest.param(r, marks=pytest.mark.slow) for r in READS if r != "get_weights"),
    ],
)
def test_what_users_read_from_networks_is_never_from_before_an_update(flat, read):
    names = ("pi", "q1", "pi_target", "q1_target") if read in ("get_weights", "variable") else ("pi",)
    env = Reader(READS[read], *names)
    env.agent = TD3(RandomWalk(), update_every=1)
    fit_briefly(env.agent, env, epochs=1, steps_per_epoch=17)
    assert is_flat(env.agent)
    # There is an update after each of the steps 11 to 16, and each second one changes the policy.
    assert len(set(env.seen)) == 1 + (6 if "q1" in names else 3)


@pytest.mark.slow
def test_functions_that_were_compiled_before_fit_read_the_newest_weights(flat):
    agent = TD3(RandomWalk(), update_every=1)
    READS["predict"](agent.networks["pi"])
    env = Reader(READS["predict"], "pi")
    env.agent = agent
    fit_briefly(agent, env, epochs=1, steps_per_epoch=16)
    assert len(set(env.seen)) == 1 + (16 - 10 - 1) // 2


def test_what_users_assign_during_fit_counts(flat):
    class Writer(RandomWalk):
        def step(self, action):
            if agent.updates == 4:
                agent.networks["q1"].trainable_variables[0].assign(np.full((3, 4), 0.1))
            seen.append(int(agent.optimizers["q1"].iterations.numpy()))
            return super().step(action)

    seen = []
    agent = TD3(RandomWalk(), update_every=1, q_lr=1e-9)
    fit_briefly(agent, Writer(), epochs=1, steps_per_epoch=20)
    np.testing.assert_allclose(agent.networks["q1"].trainable_variables[0], 0.1, atol=1e-6)
    assert seen == [0] * 11 + [*range(1, 10)]
    assert type(agent.networks["q1"].trainable_variables[0].value) is type(tf.Variable(0.0))
