"""Someone else resets or steps the training environment in the middle of an episode."""

import copy
import gc
import pickle
import warnings

import cloudpickle
import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import EAGER, SMALL
from tests.environments import Counter, RandomWalk
from tfdpg.training.environment import env_watch

WARNING = "The training environment was reset or stepped after environment step {}, in the middle of an episode"
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


def counters(kind, n=2, **options):
    return kind([lambda: Counter(length=20)] * n, **options)


def agent_for(env, **options):
    return tfdpg.DDPG(env, **SMALL | EAGER | {"start_steps": 10**6, "update_after": 10**6, "update_every": 1} | options)


def check_transitions(agent, expected, length=20):
    """Each transition is a step of one episode, with its own reward."""
    stored = agent.replay.transitions()
    before, after = stored["observation"], stored["next_observation"]
    assert len(before) == expected
    np.testing.assert_array_equal(after - before, np.tile([0, 1], (expected, 1)))
    np.testing.assert_array_equal(stored["reward"], after[:, 1])
    np.testing.assert_array_equal(stored["terminated"], after[:, 1] == length)


class At(keras.callbacks.Callback):
    """Calls a function after some of the environment steps."""

    def __init__(self, function, *steps):
        super().__init__()
        self.function = function
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if logs["env_steps"] in self.steps:
            self.function(self.model)


def act(env):
    return env.action_space.sample()


CALLS = {
    "evaluate": lambda agent, env: agent.evaluate(env, 1),
    "reset": lambda agent, env: env.reset(),
    "step": lambda agent, env: env.step(act(env)),
    "unwrapped": lambda agent, env: env.unwrapped.reset(),
    "fit": lambda agent, env: agent_for(env).fit(env, epochs=1, steps_per_epoch=7, verbose=0),
}
ENVS = {
    "single": lambda: Counter(length=20),
    "wrapped": lambda: gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(Counter(length=20)), 30),
    "sync": lambda: counters(SyncVectorEnv),
    "sync-same": lambda: counters(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "async": lambda: counters(AsyncVectorEnv),
}


def fit(agent, env, steps, *callbacks):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = agent.fit(env, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=callbacks).history
    texts = [str(warning.message) for warning in caught]
    return history, [text for text in texts if text.startswith("The training environment")]


@pytest.mark.parametrize(
    "make, call",
    [
        pytest.param(make, call, id=f"{call}-{name}", marks=[pytest.mark.slow] * (call != "reset" and name != "sync"))
        for name, make in ENVS.items()
        for call in CALLS
    ],
)
def test_no_wrong_transition_is_stored(make, call):
    env = make()
    agent = agent_for(env)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the second agent
        history, told = fit(agent, env, 120, At(lambda agent: CALLS[call](agent, env), 26, 28, 50))
    check_transitions(agent, 120)
    assert len(told) == 1 and told[0].startswith(WARNING.format(26))
    assert history["episode_length"] == [20.0] and agent.env_steps == 120
    env.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["reset", "step"])
def test_only_the_interrupted_sub_environment_begins_again(mode, call):
    env = counters(SyncVectorEnv, 3, autoreset_mode=mode)
    agent = agent_for(env)
    _, told = fit(agent, env, 90, At(lambda agent: CALLS[call](agent, env.envs[1]), 15))
    check_transitions(agent, 90)
    assert len(told) == 1
    ends = agent.replay.transitions()
    ends = ends["next_observation"][ends["truncated"]]
    assert ends[:, 1].tolist() == [5.0]
    env.close()


def test_a_partial_reset_of_processes_interrupts_only_their_episodes():
    env = counters(AsyncVectorEnv)
    agent = agent_for(env)
    fit(agent, env, 60, At(lambda agent: env.reset(options={"reset_mask": np.array([False, True])}), 12))
    check_transitions(agent, 60)
    ends = agent.replay.transitions()
    assert ends["next_observation"][ends["truncated"]][:, 1].tolist() == [6.0]
    env.close()


def test_a_wrapper_may_reset_what_it_wraps_and_a_copy_may_be_stepped():
    class Hops(gym.Wrapper):
        """Each step is an episode of the environment."""

        def step(self, action):
            self.env.reset()
            for _ in range(4):
                self.env.step(action)
            self.hops += 1
            return np.float32([0, self.hops]), 1.0, self.hops == 5, False, {}

        def reset(self, **options):
            self.hops = 0
            self.env.reset(**options)
            return np.zeros(2, np.float32), {}

    env = Hops(Counter())

    def look_ahead(agent):
        for copied in (copy.deepcopy(env), copy.copy(env.unwrapped), pickle.loads(pickle.dumps(env.unwrapped))):
            copied.reset()
            copied.step(act(env))

    agent = agent_for(env)
    _, told = fit(agent, env, 13, At(look_ahead, 3, 8))
    assert told == []
    assert agent.replay.transitions()["next_observation"][:, 1].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3]
    agent = agent_for(env)  # the same in a custom loop
    own_loop(agent, env, 13, lambda t: look_ahead(agent))
    assert agent.replay.transitions()["next_observation"][:, 1].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3]


def own_loop(agent, env, steps, before=lambda t: None, between=lambda t: None, after=lambda t: None):
    observation, _ = env.reset()
    for t in range(steps):
        before(t)
        action = agent.act(observation)
        between(t)
        observation, reward, terminated, truncated, info = env.step(action)
        after(t)
        final = info.get("final_obs") if isinstance(env, gym.vector.VectorEnv) else None
        agent.observe(reward, observation, terminated, truncated, final)
        if not isinstance(env, gym.vector.VectorEnv) and (terminated or truncated):
            observation, _ = env.reset()


@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("call", ["reset", pytest.param("evaluate", marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_custom_loop_stores_no_wrong_transition(make, call, where):
    env = make()
    agent = agent_for(env)

    def interrupt(t):
        if t == 7:
            CALLS[call](agent, env)

    with pytest.warns(UserWarning, match="The training environment was reset or stepped") as caught:
        own_loop(agent, env, 18, **{where: interrupt})
    assert len(caught) == 1
    n = env.num_envs if isinstance(env, gym.vector.VectorEnv) else 1
    check_transitions(agent, 17 * n)
    env.close()


def test_a_custom_loop_that_begins_again_is_not_warned():
    env = Counter(length=20)
    agent = agent_for(env)
    own_loop(agent, env, 8)
    agent.evaluate(env, 1)
    own_loop(agent, env, 8)
    env.reset()
    own_loop(agent, env, 8)
    check_transitions(agent, 24)


def test_a_custom_loop_on_another_environment_is_not_warned():
    env = Counter(length=20)
    agent = agent_for(env)
    own_loop(agent, Counter(length=20), 18, before=lambda t: agent.evaluate(env, 1))
    check_transitions(agent, 18)


def test_a_custom_loop_of_a_loaded_agent_knows_its_environment_from_the_evaluation(tmp_path):
    env = Counter(length=20)
    agent_for(env).save(tmp_path / "agent")
    agent = tfdpg.load_agent(tmp_path / "agent")
    with pytest.warns(UserWarning, match="The training environment was reset or stepped"):
        own_loop(agent, env, 18, before=lambda t: t == 7 and agent.evaluate(env, 1))
    check_transitions(agent, 17)


def test_a_hook_of_the_environment_may_not_evaluate_on_it():
    class Hook(gym.Wrapper):
        def step(self, action):
            if self.env.unwrapped.total == 12:
                agent.evaluate(self.env, 1)
            return self.env.step(action)

    env = Hook(Counter(length=20))
    agent = agent_for(env)
    history, told = fit(agent, env, 60)
    check_transitions(agent, 60)
    assert len(told) == 1 and history["episode_length"] == [20.0]


def test_a_hook_that_evaluates_in_each_step_ends_training():
    class Hook(gym.Wrapper):
        def step(self, action):
            tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), self.env, 1)
            return self.env.step(action)

    env = Hook(Counter(length=2))
    agent = agent_for(env, start_steps=10, update_after=10)
    with pytest.warns(UserWarning, match="reset or stepped"), pytest.raises(RuntimeError, match="separate environment"):
        agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
    assert agent.env_steps == 0


def test_the_class_of_the_environment_is_as_before():
    class Walk(RandomWalk):
        def step(self, action):
            return super().step(action)

    methods = Walk.step, Walk.reset
    seen = []
    env = Walk()
    agent = agent_for(env)
    fit(agent, env, 5, At(lambda agent: seen.append((Walk.step, len(cloudpickle.dumps(Walk)))), 2))
    assert seen[0][0] is not methods[0] and seen[0][1] < 10_000
    assert (Walk.step, Walk.reset) == methods and "reset" not in vars(Walk)
    own_loop(agent, env, 3)
    assert Walk.step is not methods[0]
    del agent
    gc.collect()
    assert (Walk.step, Walk.reset) == methods and "reset" not in vars(Walk)
    assert id(env) not in env_watch._calls
