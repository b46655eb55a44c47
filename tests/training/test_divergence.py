"""Numbers that are not finite: errors name the first, and replay buffers and checkpoints never hold them."""

import functools

import keras
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.broken import Mixed
from tests.environments import Counter
from tests.misbehaving import Misbehaving
from tfdpg.components import Metric
from tfdpg.training.environment.finite import NO_REWARD, check_finite
from tfdpg.training.learning.divergence import divergence
from tfdpg.training.learning.updates import UpdateResult

NO_UPDATE = SMALL | EAGER | {"update_after": 1000}


def bad_at(part, value, at):
    return functools.partial(Misbehaving, {part: value}, at)


BAD = {
    "reward": (np.inf, ": reward = inf"),
    "observation": (np.array([0, np.nan], np.float32), r": x\[1\] = nan"),
}


MODES = [(part, mode) for part in BAD for mode in AutoresetMode]
QUICK = [("reward", AutoresetMode.NEXT_STEP), ("observation", AutoresetMode.SAME_STEP)]


@pytest.mark.parametrize(
    "part, mode", [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in MODES if each not in QUICK)]
)
def test_the_sub_environment_and_the_number_are_named_and_nothing_of_the_step_is_stored(part, mode):
    value, message = BAD[part]
    envs = SyncVectorEnv([Misbehaving, bad_at(part, value, 7), Misbehaving], autoreset_mode=mode)
    agent = tfdpg.DDPG(envs, **NO_UPDATE, normalize_observations=True)
    with pytest.raises(ValueError, match=f"{message}, of sub-environment 1") as raised:
        fit_briefly(agent, envs, epochs=1, steps_per_epoch=60)
    assert "environment step 19; nothing of this step was stored" in str(raised.value)
    stored = agent.replay.transitions()
    assert agent.env_steps == 18 and all(np.isfinite(values).all() for values in stored.values())
    fit_briefly(agent, SyncVectorEnv([Misbehaving] * 3), epochs=1, steps_per_epoch=30)
    agent.learn(updates=1)
    assert agent.env_steps == 48 and agent.updates == 1 and np.isfinite(agent.predict(np.zeros(2, np.float32))).all()


@pytest.mark.parametrize("where", ["fit", "evaluate"])
def test_the_key_of_a_dict_is_named_at_a_reset_too(where):
    class Reset(Counter):
        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return observation | {"position": observation["position"] * (np.nan if self.episode == 2 else 1)}, info

    env = Reset(as_dict=True)
    agent = tfdpg.DDPG(env, **NO_UPDATE)
    with pytest.raises(ValueError, match=r"observation is .*: position\[0\] = nan"):
        fit_briefly(agent, env, epochs=1, steps_per_epoch=20) if where == "fit" else agent.evaluate(env, 5)


@pytest.mark.parametrize("column, name", [(0, r"joints\[0\]"), (1, r"joints\[1\]"), (2, "phase"), (4, r"modes\[1\]")])
def test_the_entry_is_named_by_its_key_and_its_place_there(column, name):
    env = Mixed()
    spec = tfdpg.Spec.of(env)
    observation, _ = env.reset(seed=0)
    packed = spec.pack(observation)
    packed[0][0, column] = np.inf
    with pytest.raises(ValueError, match=f"not finite at a row: {name} = inf$"):
        check_finite(spec, packed, NO_REWARD, "a row")


def test_large_finite_numbers_are_no_matter():
    large = np.full(2, 3e38, np.float32)
    env = Misbehaving({"observation": large, "reward": -3e38}, 5)
    agent = tfdpg.DDPG(env, **NO_UPDATE)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    assert agent.replay.transitions()["observations"].max() == np.float32(3e38)


class Rewards(Counter):
    """After 45 steps, rewards are so large that their squares are infinite."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1e30 if self.total > 45 else 1.0, *rest


def test_infinite_losses_end_training_and_the_last_checkpoint_stays_the_newest(tmp_path):
    env = Rewards()
    ends = []
    options = SMALL | {"batch_size": 64, "gradient_steps": 1, "run_eagerly": True}
    agent = tfdpg.DDPG(env, **options)
    exports = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(logs["env_steps"]))
    callbacks = [tfdpg.callbacks.Checkpoint(tmp_path / "saved"), exports]
    with pytest.raises(FloatingPointError, match=r"`loss_q` = inf in update \d+") as raised:
        fit_briefly(agent, env, epochs=5, steps_per_epoch=20, callbacks=callbacks)
    assert "Lower the learning rates" in str(raised.value) and "at environment step 50" in str(raised.value)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["20", "40"]
    assert tfdpg.load_agent(tmp_path / "saved" / "40").env_steps == 40
    assert ends == [20, 40]  # where `ExportBest` would export
    with pytest.raises(FloatingPointError, match="not saved"):
        agent.save(tmp_path / "diverged")


METRICS = (Metric("loss_q"), Metric("loss_pi", delayed=True), Metric("q1", spread=True))
FINITE = np.array([[1, 2], [np.nan, np.nan], [3, 4]], np.float32)
"""The second metric is missing because the policy was not updated."""


def changed(metric, *values):
    update = FINITE.copy()
    update[[each.name for each in METRICS].index(metric), : len(values)] = values
    return update


CASES = {
    "sound": ([FINITE], [], None),
    "a step that no sequence has": ([changed("q1", 3, np.nan) * np.array([1, np.nan])], [], None),
    "no step at all": ([FINITE * np.nan], [], None),
    "infinite": ([FINITE, changed("loss_q", 1, np.inf)], [], "8 to 9, .* `loss_q` = inf in update 9"),
    "never measured": (
        [changed("loss_q", np.nan, np.nan)],
        [],
        "`loss_q` = nan in update 8. If an update may leave `loss_q` unmeasured, declare it with `delayed=True`. Lower",
    ),
    "of the policy": ([changed("loss_pi", np.nan, 3)], [], "`loss_pi` = nan in update 8"),
    "weights": (
        [FINITE, FINITE * np.nan],
        ["q1", "pi"],
        "`q1` and `pi` .*9 to 9, .*`loss_q` = nan",
    ),
    "weights alone": ([FINITE, FINITE], ["pi"], "weights of `pi` became .* step 5. Lower"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_loss_is_named(case):
    measured, nonfinite, message = CASES[case]
    result = UpdateResult(
        np.array(measured, np.float32), np.zeros(0), nonfinite, len(measured) - (1 if nonfinite else 0)
    )
    error = divergence(result, METRICS, 7, 5)
    assert (error is None) == (message is None)
    if message:
        with pytest.raises(FloatingPointError, match=message):
            raise error


def test_no_update_is_made_after_the_call_that_broke_weights():
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL | EAGER | {"update_after": 1000})
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    agent.learner.set_updates_per_phase(2)
    agent.learn(updates=2)
    agent.replay.segment(0, agent.replay.added)["rows"][:, -1] = np.nan  # the rewards, in a view of the buffer
    before = agent.updates
    with pytest.raises(FloatingPointError, match="`q1`.*3 to 4.*`loss_q` = nan and `loss_pi` = nan in update 3"):
        agent.learn(updates=10)
    assert agent.updates == before + 2
