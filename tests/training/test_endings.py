"""How training ends before its time: signals, exceptions of the environment, weights that are no numbers."""

import os
import signal
import time

import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter, RandomWalk
from tests.training.test_fit import agent_for
from tfdpg.training import interrupt


class SignalAt(keras.callbacks.Callback):
    def __init__(self, steps, number):
        super().__init__()
        self.steps = steps
        self.number = number

    def on_train_batch_end(self, batch, logs=None):
        if logs["env_steps"] == self.steps:
            os.kill(os.getpid(), self.number)


ENDS = {signal.SIGINT: (KeyboardInterrupt, "Training was interrupted"), signal.SIGTERM: (SystemExit, "143")}


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_leaves_a_usable_checkpoint(tmp_path, number):
    env = RandomWalk()
    agent = tfdpg.DDPG(env, **SMALL | EAGER | {"update_every": 45})
    kind, message = ENDS[number]
    before = [signal.getsignal(known) for known in ENDS]
    callbacks = [SignalAt(135, number), tfdpg.callbacks.Checkpoint(tmp_path)]
    with pytest.raises(kind, match=message):
        agent.fit(env, epochs=9, steps_per_epoch=100, callbacks=callbacks, verbose=0)
    assert [signal.getsignal(known) for known in ENDS] == before
    again = tfdpg.load_agent(tmp_path / "135")
    assert (again.env_steps, again.updates, again.epoch) == (135, 3, 1)
    again.fit(RandomWalk(), epochs=2, initial_epoch=again.epoch, steps_per_epoch=100, verbose=0)
    assert again.env_steps == 200
    with pytest.raises(kind, match=message):
        again.fit_offline(None, epochs=9, callbacks=[AfterUpdates(number)], steps_per_epoch=2, verbose=0)


class AfterUpdates(keras.callbacks.Callback):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def on_train_batch_end(self, batch, logs=None):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    "first, second",
    [(signal.SIGINT, signal.SIGTERM), pytest.param(signal.SIGTERM, signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_a_second_signal_ends_at_once(first, second):
    class Twice(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), first)  # passed on by a parent that got it too: the same one
            time.sleep(interrupt.SAME_SIGNAL_SECONDS)
            os.kill(os.getpid(), second)
            raise AssertionError("the second signal was deferred, too")

    before = [signal.getsignal(known) for known in ENDS]
    with pytest.raises(SystemExit, match="143"):
        agent = agent_for(Counter(), update_after=1000)
        fit_briefly(agent, Counter(), epochs=1, callbacks=[Twice()], steps_per_epoch=100)
    assert [signal.getsignal(known) for known in ENDS] == before


class Ends(keras.callbacks.Callback):
    seen = 0

    def on_train_end(self, logs=None):
        self.seen += 1


class Broken(Counter):
    def step(self, action):
        if self.total == 33:
            try:
                raise OSError("the bus is silent")
            except OSError:
                raise KeyError("a sensor is gone")  # noqa: B904
        return super().step(action)


def test_after_an_exception_of_the_environment_the_steps_before_it_are_saved(tmp_path):
    env = Broken()
    ends = Ends()
    agent = agent_for(env, update_after=1000)

    class Fails(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            raise OSError("the disk is full")

    callbacks = [Fails(), tfdpg.callbacks.Checkpoint(tmp_path), ends]
    with pytest.raises(KeyError, match="a sensor is gone") as raised:
        fit_briefly(agent, env, epochs=3, steps_per_epoch=20, callbacks=callbacks)
    place, fault = raised.value.__notes__
    assert place.startswith("The environment raised KeyError (") and fault == "Fails: the disk is full"
    assert str(raised.value.__context__) == "the bus is silent" and not raised.value.__suppress_context__
    assert ends.seen == 1 and tfdpg.load_agent(tmp_path / "33").env_steps == 33


OTHERS = [("q2", np.inf), ("q1", np.nan)]


@pytest.mark.parametrize(
    "name, value", [("pi", np.nan), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_weights_that_become_nan_are_named_and_never_saved(tmp_path, name, value):
    class Diverge(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if logs["env_steps"] == 35:
                bias = self.model.networks[name].trainable_weights[-1]
                bias.assign(np.full(bias.shape, value))
                self.model.optimizers[name].learning_rate = 0.0

    env = Counter()
    ends = Ends()
    agent = agent_for(env, tfdpg.TD3, policy_delay=9)
    callbacks = [tfdpg.callbacks.Checkpoint(tmp_path), Diverge(), ends]
    with pytest.raises(FloatingPointError, match=f"`{name}`.* NaN or infinite .*26 to 30") as e:
        agent.fit(env, epochs=3, steps_per_epoch=20, callbacks=callbacks, verbose=0)
    assert "the agent is not saved" in e.value.__notes__[0] and ends.seen == 1
    assert [path.name for path in tmp_path.iterdir()] == ["20"] and tfdpg.load_agent(tmp_path / "20").epoch == 1


def test_an_environment_is_not_blamed_for_what_the_policy_did(monkeypatch):
    class Echo(Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float(action[0]), *rest

    env = Echo()
    agent = agent_for(env, start_steps=0)
    agent.pi.set_weights([np.full_like(weight, np.nan) for weight in agent.pi.get_weights()])
    with pytest.raises(FloatingPointError, match="action is not .*environment step 1"):
        agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0)
    with pytest.raises(FloatingPointError, match="action is not .*step 1 of an evaluation"):
        agent.evaluate(env, episodes=1)
