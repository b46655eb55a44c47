"""Training with replay shards, on a Ray cluster on this machine."""

import functools
import os
import re
import signal
import time

import keras
import numpy as np
import pytest
import ray

import tfdpg
from tests.agents.roster import AGENTS, SMALL, brief
from tests.distributed.environments import ReportingCounter, counter, read_reports
from tests.environments import Counter, Identity
from tfdpg import distributed
from tfdpg.training.callbacks import Checkpoint

SHORT = {"epochs": 2, "steps_per_epoch": 60, "actors": 2, "chunk": 10, "verbose": 0, "replay_shards": 2}
ENOUGH_FOR_UPDATES = 200
"""Steps of an epoch that surely has updates: workers are at most about 90 steps ahead of them."""


def transitions(agent):
    return len(agent.replay)


@brief
@pytest.mark.parametrize("replay", ["prioritized", "uniform"])
@pytest.mark.slow
def test_rows_come_and_go(local_ray, replay, tmp_path):
    agent = AGENTS["DDPG"](Counter(), replay=replay, normalize_observations=True, replay_size=20_000)
    agent.fit(counter(), epochs=1, steps_per_epoch=50, verbose=0)
    before = set(np.unique(agent.replay.transitions()["actions"]))
    options = SHORT | {"steps_per_epoch": ENOUGH_FOR_UPDATES}
    history = distributed.fit(agent, counter, **options, callbacks=[Checkpoint(tmp_path)]).history
    assert history["return"] == [15, 15] and np.isfinite(history["loss"]).all() and history["env_steps"][-1] >= 450
    stored = transitions(agent)
    assert agent.env_steps - 1 <= stored <= agent.env_steps
    assert before <= set(np.unique(agent.replay.transitions()["actions"]))
    assert agent.data.observation_statistics.count <= agent.replay.added and agent.data.observation_statistics.mean[
        1
    ] == pytest.approx(2.5, abs=0.3)
    assert agent.learner.remote_replay is None and agent.data.observation_statistics.rows_seen == agent.replay.added
    saved = tmp_path / str(agent.env_steps)
    assert len(list(saved.glob("replay-*.npz"))) == 2
    for shard_count in (0, 2):
        loaded = tfdpg.load_agent(saved)
        assert loaded.env_steps == agent.env_steps and transitions(loaded) == stored
        distributed.fit(loaded, counter, **SHORT | {"epochs": 1, "replay_shards": shard_count})
        assert transitions(loaded) > stored
    offline = AGENTS["DDPG"](Counter(), replay_size=20_000)
    offline.fit_offline(saved, epochs=1, steps_per_epoch=5, verbose=0)
    assert offline.replay.added > 150


@brief
@pytest.mark.slow
def test_shards_return_the_range_of_returns(local_ray):
    agent = tfdpg.D4PG(Counter(), **SMALL)
    history = distributed.fit(agent, counter, **SHORT | {"steps_per_epoch": ENOUGH_FOR_UPDATES}).history
    sampler = agent.data.minibatch_builder.sampler
    slots, _ = sampler.sample(0, 1)
    sampler.update_priorities(slots, np.linspace(1, 9, slots.size))
    assert sampler.beta(0) == 1 and sampler.sample(0, 1)[1].max() != 1  # which normalised weights have
    v_min, v_max = agent.head.atoms.numpy()[[0, -1]]
    assert 0 < v_max - 500 < 100 and history["v_max"][-1] == pytest.approx(v_max)  # rewards up to 5, and a margin
    assert np.isfinite(history["loss"]).all()


@pytest.mark.slow
def test_it_learns(local_ray):
    options = {"hidden_units": (32, 32), "batch_size": 64, "start_steps": 300, "update_after": 300, "gamma": 0.0}
    agent = tfdpg.TD3(Identity(), pi_lr=3e-3, q_lr=3e-3, **options)
    options = {"actors": 2, "chunk": 25, "noise_levels": (0.1, 0.2), "variable_update_period": 25, "verbose": 0}
    options |= {"replay_shards": 1, "validation_env": Identity()}
    history = distributed.fit(agent, Identity, epochs=2, steps_per_epoch=700, **options)
    assert history.history["val_return"][-1] > -0.02


class Killer(keras.callbacks.Callback):
    """Kills the process of shard 1 when it has rows and there is a checkpoint; stops training when it is back."""

    def __init__(self):
        super().__init__()
        self.killed = None
        self.alive = 0

    def on_epoch_end(self, epoch, logs=None):
        shard = self.model.learner.remote_replay.shards[1]
        if self.killed is None and epoch >= 2 and shard.rows > 100:
            self.killed = shard.actor
            ray.kill(shard.actor, no_restart=False)  # ends the process at once
        self.alive += self.killed is not None and shard.actor is not self.killed
        self.model.stop_training = self.alive == 3
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Replay shard 1 did not send its rows")  # on a busy machine it restarts slowly
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_killed_shard_comes_back(local_ray, tmp_path, with_checkpoint):
    agent = AGENTS["DDPG"](Counter(), replay_size=200_000)
    callbacks = [Checkpoint(tmp_path / "checkpoints"), Killer()] if with_checkpoint else [Killer()]
    expected = r"shard 1 died .*\d\d .*\d\d were restored" if with_checkpoint else "; 0 were restored"
    options = SHORT | {"epochs": 10**6, "steps_per_epoch": 200}
    with pytest.warns(UserWarning, match=expected):
        history = distributed.fit(
            agent, functools.partial(ReportingCounter, tmp_path), **options, callbacks=callbacks
        ).history
    assert all(not {"tensorflow", "keras"} & set(facts["modules"]) for facts in read_reports(tmp_path))
    assert history["env_steps"][-1] == agent.env_steps and agent.updates > agent.env_steps - 100
    missing = agent.env_steps - transitions(agent)
    assert missing < 200 if with_checkpoint else missing > 50


class StopsShard(keras.callbacks.Callback):
    """Suspends the process of shard 1 for two epochs, each of which ends with a checkpoint; then kills it.

    Training ends once the shard has come back.
    """

    def __init__(self):
        super().__init__()
        self.pid = self.stopped = self.actor = None
        self.seconds = []
        self.updates = []
        self.unconfirmed = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.monotonic()
        self.before = self.model.updates

    def on_epoch_end(self, epoch, logs=None):
        shard = self.model.learner.remote_replay.shards[1]
        if self.pid is None:
            if epoch and shard.rows > 100:
                self.pid = ray.get(shard.actor.__ray_call__.remote(lambda _: os.getpid()))
                self.stopped = epoch
                self.actor = shard.actor
                os.kill(self.pid, signal.SIGSTOP)
            return
        if epoch <= self.stopped + 2:
            self.seconds.append(time.monotonic() - self.began)
            self.updates.append(self.model.updates - self.before)
            self.unconfirmed.append(len(shard.unconfirmed))
        if epoch == self.stopped + 2:
            os.kill(self.pid, signal.SIGKILL)
        self.model.stop_training = shard.actor is not self.actor


@pytest.mark.hours
def test_a_shard_that_does_not_answer_blocks_nobody_and_loses_nothing_that_was_saved(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter(), replay_size=200_000)
    checkpoint = Checkpoint(tmp_path / "checkpoints", keep=1)
    stops = StopsShard()
    options = SHORT | {"epochs": 10**6, "steps_per_epoch": 200, "callbacks": [checkpoint, stops]}
    with pytest.warns(UserWarning) as caught:
        distributed.fit(agent, functools.partial(ReportingCounter, tmp_path), **options)
    warned = [str(warning.message) for warning in caught]
    assert sum("Replay shard 1 did not send its rows; the checkpoint has those of" in w for w in warned) >= 2
    (back,) = [re.search(r"Replay shard 1 died with \d+ rows; (\d+) were restored", w) for w in warned if " died " in w]
    assert int(back[1]) > 100
    assert len(stops.seconds) == 2 and max(stops.seconds) < 60 and min(stops.updates) > 20  # and not 1 s for an update
    assert 2 <= max(stops.unconfirmed) <= 3, "Its worker waits, and does not fill the memory."
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert transitions(tfdpg.load_agent(saved)) == transitions(agent) <= agent.env_steps


@pytest.mark.hours
def test_checkpoints_that_lack_a_shard_hold_its_earlier_rows(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter(), replay_size=200_000)

    class StopsShardProcess(keras.callbacks.Callback):
        rows = ()

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = len(self.rows) > 10
            if epoch and not self.model.stop_training:
                saved = max(tmp_path.iterdir(), key=lambda path: int(path.name))
                self.rows = np.load(saved / "replay-1.npz")["rows"]
                if len(self.rows) > 10:
                    shard = agent.learner.remote_replay.shards[1]
                    self.pid = ray.get(shard.actor.__ray_call__.remote(lambda _: os.getpid()))
                    os.kill(self.pid, signal.SIGSTOP)

    stops = StopsShardProcess()
    options = SHORT | {"epochs": 10**6, "steps_per_epoch": 100, "callbacks": [Checkpoint(tmp_path, keep=1), stops]}
    with pytest.warns(UserWarning, match="shard 1 did not send|restored from a"):
        distributed.fit(agent, counter, **options)
    os.kill(stops.pid, signal.SIGKILL)
    (saved,) = tmp_path.iterdir()
    np.testing.assert_array_equal(np.load(saved / "replay-1.npz")["rows"], stops.rows)
    assert int(saved.name) == agent.env_steps
    for resumed in (agent, tfdpg.load_agent(saved)):
        (observations,) = resumed.replay.observation(np.arange(resumed.replay.size))
        np.testing.assert_array_equal(observations[-len(stops.rows) :], stops.rows[:, :2])


@pytest.mark.slow
def test_a_checkpoint_holds_the_transitions_that_are_counted(local_ray, tmp_path):
    agent = AGENTS["DDPG"](Counter())

    def wait_for_uncounted(epoch, logs):
        time.sleep(0.5)  # workers store steps that are not counted yet

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=wait_for_uncounted), Checkpoint(tmp_path, keep=None)]
    distributed.fit(agent, counter, **SHORT, callbacks=callbacks)
    saved = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(saved) == 2
    for each in saved:
        loaded = tfdpg.load_agent(each)
        assert transitions(loaded) == loaded.env_steps == int(each.name)
        stored = loaded.replay.transitions()
        np.testing.assert_array_equal(stored["next_observations"][:, 1], stored["observations"][:, 1] + 1)


class LosesChunk(keras.callbacks.Callback):
    """Passes rows to a shard whose process ended before the shard fetched them."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            shard = self.model.learner.remote_replay.shards[0]
            owner = ray.remote(Owner).remote()
            (rows,) = ray.get(owner.put.remote())
            ray.kill(owner)
            time.sleep(3)  # until Ray has noticed
            self.call = shard.actor.store.remote(0, None, rows)
            shard.unconfirmed[self.call] = 0


class Owner:
    def put(self):
        return [ray.put(np.zeros(10**5))]


@pytest.mark.hours
def test_rows_that_are_lost_on_their_way_do_not_end_training(local_ray):
    agent = AGENTS["DDPG"](Counter())
    loses = LosesChunk()
    distributed.fit(agent, counter, **SHORT, callbacks=[loses])
    assert agent.epoch == 2 and len(agent.replay) == agent.env_steps
    with pytest.raises(ray.exceptions.ObjectLostError):
        ray.get(loses.call)


@pytest.mark.slow
def test_options_that_replay_shards_do_not_support(local_ray):
    for name, value in (("reward_shaper", abs), ("recorders", ["somewhere"]), ("epochs_per_round", 1)):
        with pytest.raises(ValueError, match=f"`replay_shards` must be 0 with `{name}`"):
            distributed.fit(tfdpg.TD3(Counter(), **SMALL | {name: value}), counter, **SHORT)
    with pytest.raises(ValueError, match="`replay_shards` must be 0 with `replay_device`"):
        distributed.fit(tfdpg.TD3(Counter(), **SMALL, device="cpu:0", replay_device="cpu:0"), counter, **SHORT)
    with pytest.raises(ValueError, match="`replay_size` must .*each of 2 shards"):
        distributed.fit(AGENTS["DDPG"](Counter(), replay_size=3), counter, **SHORT)
    agent = AGENTS["DDPG"](Counter())
    with pytest.raises(ValueError, match="reward is not finite at 10 steps of"):
        distributed.fit(agent, lambda: Counter(bad="reward", bad_at=23), **SHORT)
