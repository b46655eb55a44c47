"""With `step_timeout`, an environment that hangs ends the training run, and all its processes end."""

import functools
import time

import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import vector

import tfdpg
from tests.agents.roster import EAGER, SMALL, brief
from tests.misbehaving import Misbehaving

pytestmark = brief
NO_UPDATE = SMALL | EAGER | {"update_after": 1000}
SHORT = {"epochs": 1, "steps_per_epoch": 30, "verbose": 0}


@pytest.mark.parametrize("at, steps", [(7, 18), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_the_sub_environments_that_hang_are_named_and_all_processes_end(at, steps, tmp_path):
    make_hanging_env = functools.partial(Misbehaving, "hangs", at)
    env = AsyncVectorEnv([Misbehaving, make_hanging_env, make_hanging_env])
    agent = tfdpg.DDPG(Misbehaving(), **NO_UPDATE)
    began = time.monotonic()
    callbacks = [tfdpg.callbacks.Checkpoint(tmp_path)]
    with pytest.raises(TimeoutError, match=r"\[1, 2\] did not answer .*1 seconds"):
        agent.fit(vector.RecordEpisodeStatistics(env), step_timeout=1, callbacks=callbacks, **SHORT)
    env.close()
    hanging = 60  # seconds
    assert time.monotonic() - began < hanging - 5 and not any(process.is_alive() for process in env.processes)
    assert agent.env_steps == steps and (tmp_path / str(steps)).exists() == (steps > 0)
    if steps:
        assert tfdpg.load_agent(tmp_path / str(steps)).env_steps == steps


def test_a_reset_that_hangs():
    class Stuck(Misbehaving):
        def reset(self, **kwargs):
            time.sleep(60)

    env = AsyncVectorEnv([Stuck])
    with pytest.raises(TimeoutError, match=r"Sub-environments \[0\]"):
        tfdpg.DDPG(Misbehaving(), **NO_UPDATE).fit(env, step_timeout=0.2, **SHORT)


def test_who_answers_in_time_is_left_as_it_was():
    env = AsyncVectorEnv([Misbehaving] * 2)
    agent = tfdpg.DDPG(Misbehaving(), **NO_UPDATE)
    agent.fit(env, step_timeout=30, **SHORT)
    assert agent.env_steps == 30 and not {"step_wait", "reset_wait"} & set(vars(env))
    env.close()


@pytest.mark.parametrize("make", [Misbehaving, lambda: SyncVectorEnv([Misbehaving])], ids=["single", "sync"])
def test_what_nobody_can_interrupt_is_refused(make):
    agent = tfdpg.DDPG(Misbehaving(), **NO_UPDATE)
    with pytest.raises(ValueError, match="`step_timeout` must be None .*'async'"):
        agent.fit(make(), step_timeout=5, **SHORT)
    with pytest.raises(ValueError, match="`step_timeout` must be a number above 0"):
        agent.fit(make(), step_timeout=0, **SHORT)
