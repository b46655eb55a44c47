"""Environments that violate Gymnasium's API: harmless deviations are accepted, and errors describe the API."""

import contextlib
import functools
import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import tfdpg
from tests.agents.roster import EAGER, SMALL, brief, fit_briefly
from tests.misbehaving import FAULTS, HARMLESS, Misbehaving

pytestmark = brief

SILENT = {"reward None", "terminated None", "terminated text", "truncated 2"}
"""Faults that Gymnasium's vector environments accept: None is a reward of NaN or no end, all else is an end."""


def middle(observation):
    return np.zeros((*np.shape(observation)[:-1], 1), np.float32)


def evaluated(env, **options):
    return tfdpg.evaluate(middle, env, **{"episodes": 2, "per_episode": True} | options)


@contextlib.contextmanager
def silently():
    """Ignore the warnings of AsyncVectorEnv about errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def closed(kind, *fns, **options):
    """Return a context manager with a vector environment, which closes it at the end."""
    return contextlib.closing(kind(list(fns), **options))


@pytest.mark.parametrize("at", [1, 13])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_says_what_the_api_wants(fault, at):
    what = re.escape(fault.split()[0]) if " " in fault and fault != "four values" else "`step` returns"
    with pytest.raises(ValueError, match=f"(?s){what}.*") as raised:
        evaluated(Misbehaving(fault, at))
    wanted = "must be real numbers" if fault == "observation text" else "(observation, reward, terminated, truncated"
    assert wanted in str(raised.value)


@pytest.mark.parametrize("at", [0, 10])
def test_a_bare_observation_of_a_reset_is_named(at):
    with pytest.raises(ValueError, match=r"`reset` returns one ndarray, not \(obs"):
        evaluated(Misbehaving("bare", at))


@pytest.mark.parametrize("fault", ["four values", "nothing"])
def test_wrappers_that_fail_first_do_not_hide_it(fault):
    with pytest.raises(ValueError, match=r"unpack.*\(observation, reward, .*info\)"):
        evaluated(TimeLimit(Misbehaving(fault, 7), 10))


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_can_be_read_is_read(fault):
    undisturbed = evaluated(Misbehaving())
    read = evaluated(Misbehaving(fault))
    assert undisturbed["lengths"] == [10, 10] and read["lengths"] == ([1, 1] if "ends" in fault else [10, 10])
    assert read["return"] == read["episode_length"] * (2 if "reward" in fault else 1)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("fault", ["reward array", "ends arrays"])
def test_what_can_be_read_of_all_sub_environments_is_read(kind, fault):
    if kind is SyncVectorEnv and fault == "reward array":
        pytest.skip("SyncVectorEnv refuses it")
    with closed(kind, *[functools.partial(Misbehaving, fault)] * 2) as env:
        read = evaluated(env, max_ep_len=10)
    assert read["return"] == read["episode_length"] * (2 if "reward" in fault else 1)


NAMED = sorted(FAULTS.keys() - SILENT)
SHARED = {"observation short", "observation None"}
"""Faults that the shared memory of `AsyncVectorEnv` accepts too: as two equal numbers, and as NaN."""
CASES = [(SyncVectorEnv, fault, {}) for fault in NAMED]
CASES += [(AsyncVectorEnv, fault, {}) for fault in NAMED if fault not in SHARED]
CASES += [(AsyncVectorEnv, fault, {"shared_memory": False, "autoreset_mode": "Disabled"}) for fault in NAMED]


@pytest.mark.parametrize(
    "kind, fault, options",
    [
        pytest.param(*case, marks=[] if case[0] is SyncVectorEnv or case[1].endswith("two") else [pytest.mark.slow])
        for case in CASES
    ],
)
def test_the_sub_environment_is_named(kind, fault, options):
    faulty = functools.partial(Misbehaving, fault, 4)
    with closed(kind, Misbehaving, faulty, Misbehaving, **options) as env:
        with silently(), pytest.raises(ValueError, match="^Sub-environment 1: .*Gymnasium's"):
            evaluated(env)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_the_sub_environment_of_a_bare_observation_is_named(kind):
    with closed(kind, Misbehaving, Misbehaving, functools.partial(Misbehaving, "bare")) as env:
        with (
            silently(),
            pytest.raises(ValueError, match="^Sub-environment 2: .* `reset` .* returns .obs.*`tfdpg check`"),
        ):
            evaluated(env)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_what_a_sub_environment_raises_itself_stays_and_has_a_note(kind):
    with closed(kind, Misbehaving, functools.partial(Misbehaving, "raises", 3)) as env:
        with silently(), pytest.raises(np.linalg.LinAlgError) as raised:
            evaluated(env)
    assert str(raised.value.args[0]) == "the mass is 0"
    assert raised.value.__notes__ == ["It was raised in sub-environment 1."]


@pytest.mark.parametrize("fault", ["observation long", "observation None"])
def test_the_last_observation_before_an_autoreset_is_read(fault):
    fns = [Misbehaving, functools.partial(Misbehaving, fault, 10)]
    env = SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="^Sub-environment 1: .* an observation"):
        evaluated(env, episodes=4)


def test_fit_reads_likewise_and_what_was_stored_before_stays(tmp_path):
    agent = tfdpg.DDPG(Misbehaving(), **SMALL | EAGER | {"update_after": 1000})
    checkpoint = tfdpg.callbacks.Checkpoint(tmp_path)
    with pytest.raises(ValueError, match="`step` returns reward=None, .*one number"):
        agent.fit(Misbehaving("reward None", 23), epochs=2, steps_per_epoch=20, callbacks=[checkpoint], verbose=0)
    assert agent.env_steps == tfdpg.load_agent(tmp_path / "22").env_steps == 22
    agent.fit(Misbehaving("ends arrays"), epochs=1, steps_per_epoch=20, verbose=0)
    assert agent.env_steps == 42


def test_a_dict_of_other_keys_is_refused():
    class Dicts(Misbehaving):
        observation_space = gym.spaces.Dict(x=Misbehaving.observation_space)

        def reset(self, **kwargs):
            return {"x": super().reset(**kwargs)[0]}, {}

        def step(self, action):
            observation, *rest = super().step(action)
            return {"y" if self.total == 3 else "x": observation}, *rest

    with pytest.raises(ValueError, match=r"\{'x': \(2,\)\}.*Received: .*\['y'\]"):
        tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), Dicts(), 1)


def test_an_integer_reward_beyond_numpy_s_is_a_number():
    huge = {"reward": 2**70}
    beyond = {"reward": 10**400}
    assert evaluated(Misbehaving(huge))["return"] == 10 * 2.0**70
    agent = tfdpg.DDPG(Misbehaving(), **SMALL | EAGER | {"update_after": 1000})
    fit_briefly(agent, Misbehaving(huge), epochs=1, steps_per_epoch=5)
    agent.act(np.zeros(2, np.float32))
    agent.observe(2**70, np.ones(2, np.float32), False, False)
    assert (agent.replay.transitions()["rewards"] == np.float32(2.0**70)).all()
    with pytest.raises(ValueError, match="`step` returns a reward beyond the range"):
        evaluated(Misbehaving(beyond))
    agent.act(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="`reward` must be finite as float32"):
        agent.observe(10**400, np.ones(2, np.float32), False, False)


@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_killed_process_of_a_sub_environment_is_named(call):
    agent = tfdpg.DDPG(Misbehaving(), **SMALL | EAGER | {"update_after": 1000})
    with closed(AsyncVectorEnv, Misbehaving, Misbehaving) as env:
        env.processes[1].kill()
        env.processes[1].join()
        with pytest.raises(RuntimeError, match=r"environment 1 .*\(killed by SIGKILL\)"):
            fit_briefly(agent, env, epochs=1, steps_per_epoch=5) if call == "fit" else agent.evaluate(env, 2)
        assert env.closed and not any(process.is_alive() for process in env.processes)
    assert agent.env_steps == 0


def test_a_process_that_ends_while_it_is_stepped_is_named():
    agent = tfdpg.DDPG(Misbehaving(), **SMALL | EAGER | {"update_after": 1000})
    with closed(AsyncVectorEnv, Misbehaving, functools.partial(Misbehaving, "exits", 4)) as env:
        with pytest.raises(RuntimeError, match=r"environment 1 .*ended \(exit status 3\)"):
            fit_briefly(agent, env, epochs=1, steps_per_epoch=50)
    assert agent.env_steps > 0
