import contextlib
import itertools
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL, fit_briefly
from tests.environments import Counter
from tests.test_files import Disk
from tfdpg import export, files
from tfdpg.files import CheckpointError
from tfdpg.replay import segments


@pytest.fixture
def agent(one):
    """One that has learnt, and learns no more when it goes on."""
    return tfdpg.load_agent(one, update_after=1000)


@pytest.mark.parametrize("file", ["checkpoint.json", "variables.npz", "replay.npz", "rows-0.npz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(saved, tmp_path, file, share):
    path = saved / file
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        tfdpg.load_agent(saved)


@pytest.mark.parametrize("file", ["variables.npz", "replay.npz", "rows-0.npz"])
def test_a_missing_file_and_a_flipped_byte_are_named(saved, tmp_path, file):
    path = saved / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        tfdpg.load_agent(saved)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path} is missing"):
        tfdpg.load_agent(saved)


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="No saved agent"):
        tfdpg.load_agent(tmp_path)


def test_other_spaces_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="observation_space of `env`"):
        tfdpg.load_agent(saved, gym.make("Pendulum-v1"))


def test_a_failed_save_keeps_the_old_one(agent, tmp_path, monkeypatch):
    agent.save(tmp_path / "agent")
    steps = agent.env_steps
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    monkeypatch.setattr(np, "savez", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="The disk is full: .*agent takes"):
        agent.save(tmp_path / "agent")
    monkeypatch.undo()
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == steps
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_an_interrupted_replacement_puts_the_old_one_back(agent, tmp_path, monkeypatch):
    agent.save(tmp_path / "agent")
    steps = agent.env_steps
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    rename = Path.rename

    def interrupted(self, target):
        if Path(target) == tmp_path / "agent" and self.name.startswith(files.SCRATCH):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.save(tmp_path / "agent")
    monkeypatch.undo()
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == steps
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_arguments_that_json_cannot_hold(tmp_path):
    agent = tfdpg.DDPG(gym.make("tfdpg-test/Counter-v0", length=np.int64(3)), **SMALL)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").environment is None
    with pytest.raises(ValueError, match="`activation`"):
        tfdpg.DDPG(Counter(), activation=np.tanh)


def test_a_dict_observation_keeps_its_order(tmp_path):
    space = spaces.Dict(velocity=spaces.Box(-1, 1, (2,)), angle=spaces.Box(-1, 1, (3,)))
    agent = tfdpg.DDPG(tfdpg.Spec(space, Counter.action_space), **SMALL)
    agent.save(tmp_path / "agent")
    observation = space.sample()
    np.testing.assert_array_equal(agent(observation), tfdpg.load_agent(tmp_path / "agent")(observation))


def test_overwriting(agent, tmp_path):
    agent.save(tmp_path / "agent")
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    with pytest.raises(FileExistsError):
        agent.save(tmp_path / "agent", overwrite=False)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == 40
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1").write_text("precious")
    with pytest.raises(FileExistsError, match="not a saved agent"):
        agent.save(tmp_path / "thesis")
    assert (tmp_path / "thesis/chapter1").read_text() == "precious"


def test_everything_comes_back(agent, tmp_path):
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert again.data.collector.state() == agent.data.collector.state()
    for name, optimizer in agent.optimizers.items():
        for a, b in zip(optimizer.variables, again.optimizers[name].variables, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    stored = agent.replay.transitions()
    for name, values in again.replay.transitions().items():
        np.testing.assert_array_equal(values, stored[name])
    observation = np.ones(2, np.float32)
    np.testing.assert_array_equal(agent.act(observation), again.act(observation))


def test_weights_files_of_other_networks(agent, tmp_path):
    agent.save_weights(tmp_path / "a.weights.h5")
    deeper = tfdpg.DDPG(Counter(), **SMALL | {"hidden_units": (8, 8)})
    wider = tfdpg.DDPG(Counter(), **SMALL | {"hidden_units": (9,)})
    two_critics = tfdpg.TD3(Counter(), **SMALL)
    two_critics.save_weights(tmp_path / "b.weights.h5")
    for other, file, difference in (
        (wider, "a", r"`dense.*`pi` .*\(2, 9\).*: \(2, 8\)"),
        (deeper, "a", r"`dense.*`pi` .*\(8, 8\).*: \(8, 1\)"),
        (two_critics, "a", "`q2` is missing.*: pi, .*, q1_target"),
        (agent, "b", "`q2` is unknown.*: pi, .*, q1_target"),
    ):
        before = other.get_weights()
        with pytest.raises(ValueError, match=rf"{file}.weights.h5 holds .*{difference}$"):
            other.load_weights(tmp_path / f"{file}.weights.h5")
        for array, same in zip(other.get_weights(), before, strict=True):
            np.testing.assert_array_equal(array, same)
    weights = agent.get_weights()
    with pytest.raises(ValueError, match=r"`dense.*`pi` must .*\(2, 9\).*: \(2, 8"):
        wider.set_weights(weights)
    with pytest.raises(ValueError, match=r"bias` .*`q1_target`.*\(1,\), is missing"):
        agent.set_weights(weights[:-1])
    with pytest.raises(ValueError, match=f"must have {len(weights)} arrays. Received: {len(weights) + 1}"):
        agent.set_weights([*weights, weights[0]])
    with pytest.raises(ValueError, match=".weights.h5"):
        agent.save_weights(tmp_path / "weights.npz")


def test_a_power_cut_at_any_moment_leaves_a_checkpoint_and_a_policy(tmp_path, monkeypatch):
    disk = Disk(tmp_path / "disk", monkeypatch)
    states = []
    monkeypatch.setattr(segments, "MIN_ROWS", 4)
    monkeypatch.setattr(segments, "MIN_BYTES", 0)

    def simulate_power_loss():
        place = disk.copy_after_power_loss(tmp_path / f"cut-{len(states)}")
        states.append((newest_valid(place / "checkpoints"), newest_policy(place / "best")))

    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL | {"update_after": 1000})
    callbacks = [tfdpg.callbacks.Checkpoint(tmp_path / "disk/checkpoints", keep=1)]
    callbacks += [tfdpg.callbacks.ExportBest(tmp_path / "disk/best", monitor="env_steps")]
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20, callbacks=callbacks)
    disk.check = simulate_power_loss
    fit_briefly(agent, env, epochs=2, initial_epoch=1, steps_per_epoch=20, callbacks=callbacks)
    disk.check = lambda: None
    assert len(states) >= 4 and None not in {found for both in states for found in both}
    assert states[0] == (20, 20) or states[0] == (40, 20) and states[-1] == (40, 40)


def newest_valid(directory):
    for steps in reversed(export.versions(directory)):
        with contextlib.suppress(CheckpointError, FileNotFoundError):
            return tfdpg.load_agent(directory / str(steps)).env_steps
    return None


def newest_policy(directory):
    for version in reversed(export.versions(directory)):
        with contextlib.suppress(export.ExportError, FileNotFoundError):
            return tfdpg.load(directory / str(version)).metadata["env_steps"]
    return None


def test_files_of_two_checkpoints_never_mix(agent, tmp_path):
    agent.save(tmp_path / "a")
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    agent.set_weights([weight + 1 for weight in agent.get_weights()])
    agent.save(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    for count in range(1, len(names)):
        for taken in itertools.combinations(names, count):
            mixed = shutil.copytree(tmp_path / "a", tmp_path / "mixed")
            for name in taken:
                shutil.copy(tmp_path / "b" / name, mixed)
            with pytest.raises(CheckpointError, match=f"{mixed}/.* is damaged, or belongs"):
                tfdpg.load_agent(mixed)
            with pytest.raises(CheckpointError):
                agent.fit_offline(mixed, epochs=1, steps_per_epoch=1, verbose=0)
            shutil.rmtree(mixed)


def test_weights_that_are_no_numbers_are_not_saved(agent, tmp_path):
    agent.save(tmp_path / "agent")
    agent.networks["q1"].set_weights([np.full_like(weight, np.inf) for weight in agent.networks["q1"].get_weights()])
    with pytest.raises(FloatingPointError, match="weights of `q1` are not finite, so the"):
        agent.save(tmp_path / "agent")
    assert np.isfinite(tfdpg.load_agent(tmp_path / "agent").get_weights()[0]).all()


def test_a_save_that_was_killed_between_its_renames_is_found_and_tidied(saved, tmp_path):
    (tmp_path / "agent").rename(tmp_path / ".agent.tfdpg-old")
    (tmp_path / ".tfdpg-scratch-killed").mkdir()
    with pytest.warns(UserWarning, match="was interrupted; the agent saved there"):
        again = tfdpg.load_agent(saved)
    again.save(tmp_path / "agent")
    again.save(tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "other"}
