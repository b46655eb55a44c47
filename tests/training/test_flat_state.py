"""`fit` makes updates on flat tensors; they are those on variables, which are current whenever one can look."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from examples.conservative_td3 import ConservativeTD3
from examples.sac import SAC
from tests.agents.roster import AGENTS, SMALL, brief, fit_briefly
from tests.environments import RandomWalk
from tfdpg.training.callbacks import StepFile
from tfdpg.training.callbacks.monitors import BatchCallbacks
from tfdpg.training.callbacks.progress import ProgressBar
from tfdpg.training.callbacks.scalars import ScalarWriter
from tfdpg.training.learning import learner

pytestmark = brief
TD3 = AGENTS["TD3"]
STEPS = 47  # the last update of TD3 below is held back


@pytest.fixture
def flat(monkeypatch):
    """Let `fit` use flat tensors without XLA, which would take seconds to compile."""
    monkeypatch.setattr(learner, "uses_xla", lambda agent: True)


def assert_same(one, other):
    """Weights, optimizers and counters are equal."""
    assert one.updates == other.updates > 0
    for name, variables in one.saved_variables.items():
        for a, b in zip(variables, other.saved_variables[name], strict=True):
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
    assert not agent.learner.is_flat
    return agent


class Watcher(keras.callbacks.Callback):
    """Compares the networks with the acting weights after every update phase."""

    phases = 0

    def on_train_batch_end(self, batch, logs=None):
        weights = np.concatenate([weight.ravel() for weight in self.model.pi.get_weights()])
        np.testing.assert_array_equal(weights, self.model.actor.numpy_policy().weights)
        assert ("loss_q" in logs) == (self.model.updates > 0) and int(self.model.counter) == self.model.updates
        self.phases += 1


class Curious(RandomWalk):
    """Looks at the agent in each step."""

    agent = None
    seen = ()

    def step(self, action):
        self.seen = (*self.seen, self.agent.get_weights()[0].sum())
        return super().step(action)


class Conditional(ConservativeTD3):
    """It makes every second update in a conditional, where only variables can be changed."""

    def update(self, batch, counter):
        nothing = {name: tf.zeros(self.batch_elements) for name in self.metrics}
        return tf.cond(counter % 2 == 0, lambda: super(Conditional, self).update(batch, counter), lambda: nothing)


MAKE = {
    "TD3": lambda: TD3(RandomWalk(), update_every=1, policy_delay=3, clip_norm=0.1, l2=0.1),
    "TD3, normalized": lambda: TD3(RandomWalk(), update_every=1, normalize_observations=True),
    "TD3, LSTM": lambda: TD3(RandomWalk(), update_every=2, recurrent="lstm", recurrent_units=4, burn_in=2),
    "TD3, prioritized": lambda: TD3(RandomWalk(), update_every=3, replay="prioritized"),
    "D4PG": lambda: AGENTS["D4PG"](RandomWalk(), update_every=1, v_min=None, v_max=None),
    "DDPG": lambda: AGENTS["DDPG"](RandomWalk(), update_every=7),
    "ACER": lambda: AGENTS["ACER"](RandomWalk()),
    "SAC": lambda: SAC(RandomWalk(), **SMALL),
    "Conservative": lambda: ConservativeTD3(RandomWalk(), **SMALL),
}
QUICK = ("TD3", "ACER")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MAKE])
def test_fit_on_flat_tensors_is_bit_identical_to_a_loop_on_variables(flat, name):
    agents = [MAKE[name]() for _ in range(2)]
    history = fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=STEPS).history
    assert agents[0].learner.is_flat
    assert_same(agents[0], train_in_own_loop(agents[1]))
    logs = agents[1].epoch_metrics.summary()
    assert {name: history[name][0] for name in logs} == pytest.approx(logs, rel=1e-9, nan_ok=True)
    logs = agents[0].fit(RandomWalk(), epochs=2, initial_epoch=1, steps_per_epoch=STEPS, verbose=0).history
    assert np.isfinite(logs["loss_q"]).all()


def test_an_update_that_works_on_variables_only_is_made_on_these(flat):
    agents = [Conditional(RandomWalk(), **SMALL) for _ in range(2)]
    fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=STEPS)
    assert not agents[0].learner.is_flat
    assert_same(agents[0], train_in_own_loop(agents[1]))


def test_the_users_optimizers_and_policies_are_updated_as_variables(flat):
    inputs = keras.Input((2,))
    policy = keras.Model(inputs, keras.layers.Dense(1, "tanh")(inputs))
    for options in ({"q_optimizer": keras.optimizers.SGD(1e-3)}, {"pi": policy}, {"run_eagerly": True}):
        agent = AGENTS["DDPG"](RandomWalk(), gradient_steps=1, **options)
        fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=20)
        assert agent.updates and not agent.learner.is_flat


def test_callbacks_of_update_phases_see_the_newest_weights_and_logs(flat):
    watcher = Watcher()
    fit_briefly(TD3(RandomWalk(), update_every=1), RandomWalk(), epochs=1, steps_per_epoch=30, callbacks=[watcher])
    assert watcher.phases == 30


def test_an_environment_that_looks_at_the_agent_sees_the_newest_weights(flat):
    env = Curious()
    env.agent = TD3(RandomWalk(), update_every=1)
    fit_briefly(env.agent, env, epochs=1, steps_per_epoch=30)
    assert env.agent.learner.is_flat and len(set(env.seen)) == 1 + (30 - 10 - 1) // 2


def test_updates_that_are_held_back_are_made_before_anything_is_saved(flat, tmp_path):
    agent = TD3(RandomWalk(), update_every=1, policy_delay=5)
    collect(agent, 20)
    with agent.learner.flat_state(is_allowed=True):
        assert [agent.learner.run_update_phase(1, may_hold=True) for _ in range(3)] == [{}] * 3
        assert agent.updates == 3 and int(agent.counter) == 0
        assert "loss_q" in agent.learner.run_update_phase(3, may_hold=True) and agent.updates == 6
        agent.save(tmp_path / "agent")
        assert int(agent.counter) == 6 and tfdpg.load_agent(tmp_path / "agent").updates == 6
        assert "loss_q" in agent.learn(updates=1) and int(agent.counter) == 7


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
