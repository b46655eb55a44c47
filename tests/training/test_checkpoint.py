import contextlib
import itertools
import json
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tests.test_files import Disk
from tfdpg import export, files
from tfdpg.training.checkpoint import CheckpointError


@pytest.fixture
def agent():
    env = Counter()
    agent = tfdpg.TD3(env, **SMALL)
    agent.fit(env, epochs=1, steps_per_epoch=30, verbose=0)
    return agent


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    agent = tfdpg.TD3(Counter(), **SMALL)
    agent.fit(Counter(), epochs=1, steps_per_epoch=30, verbose=0)
    directory = tmp_path_factory.mktemp("one") / "agent"
    agent.save(directory)
    return directory


@pytest.fixture
def saved(one, tmp_path):
    """A saved agent, for tests that only read it or spoil it."""
    return shutil.copytree(one, tmp_path / "agent")


@pytest.mark.parametrize("file", ["agent.json", "variables.npz", "replay.npz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(saved, tmp_path, file, share):
    path = saved / file
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        tfdpg.load_agent(saved)


@pytest.mark.parametrize("file", ["variables.npz", "replay.npz"])
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
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
    monkeypatch.setattr(np, "savez", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        agent.save(tmp_path / "agent")
    monkeypatch.undo()
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == steps
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_an_interrupted_replacement_puts_the_old_one_back(agent, tmp_path, monkeypatch):
    agent.save(tmp_path / "agent")
    steps = agent.env_steps
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
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
    agent = tfdpg.TD3(gym.make("tfdpg-test/Counter-v0", length=np.int64(3)), **SMALL)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").environment is None
    with pytest.raises(ValueError, match="`activation`"):
        tfdpg.TD3(Counter(), activation=np.tanh)


def test_a_dict_observation_keeps_its_order(tmp_path):
    space = spaces.Dict(velocity=spaces.Box(-1, 1, (2,)), angle=spaces.Box(-1, 1, (3,)))
    agent = tfdpg.TD3(tfdpg.Spec(space, Counter.action_space), **SMALL)
    agent.save(tmp_path / "agent")
    observation = space.sample()
    np.testing.assert_array_equal(agent(observation), tfdpg.load_agent(tmp_path / "agent")(observation))


def test_overwriting(agent, tmp_path):
    agent.save(tmp_path / "agent")
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
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
    assert again.collector.state() == agent.collector.state()
    for name, optimizer in agent.optimizers.items():
        for a, b in zip(optimizer.variables, again.optimizers[name].variables, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(agent.replay.successor[:30], again.replay.successor[:30])
    observation = np.ones(2, np.float32)
    np.testing.assert_array_equal(agent.act(observation), again.act(observation))


def test_weights_files_of_other_networks(agent, tmp_path):
    agent.save_weights(tmp_path / "a.weights.h5")
    deeper = tfdpg.TD3(Counter(), **SMALL | {"hidden_units": (8,)})
    with pytest.raises(ValueError, match="must hold the weights of"):
        deeper.load_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ValueError, match=".weights.h5"):
        agent.save_weights(tmp_path / "weights.npz")


def test_a_power_cut_at_any_moment_leaves_a_checkpoint_and_a_policy(tmp_path, monkeypatch):
    disk, cuts = Disk(tmp_path / "disk", monkeypatch), []

    def cut():
        place = disk.after_a_power_cut(tmp_path / f"cut-{len(cuts)}")
        cuts.append((newest_sound(place / "checkpoints"), newest_policy(place / "best")))

    env = Counter()
    callbacks = [tfdpg.callbacks.Checkpoint(tmp_path / "disk/checkpoints", keep=1)]
    callbacks += [tfdpg.callbacks.ExportBest(tmp_path / "disk/best", monitor="env_steps")]
    agent = tfdpg.TD3(env, **SMALL)
    agent.fit(env, epochs=1, steps_per_epoch=20, callbacks=callbacks, verbose=0)
    disk.check = cut
    agent.fit(env, epochs=2, initial_epoch=1, steps_per_epoch=20, callbacks=callbacks, verbose=0)
    disk.check = lambda: None
    assert len(cuts) >= 4 and None not in {found for both in cuts for found in both}
    assert cuts[0] == (20, 20) or cuts[0] == (40, 20) and cuts[-1] == (40, 40)


def newest_sound(directory):
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
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
    agent.save(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    for count in range(1, len(names)):
        for taken in itertools.combinations(names, count):
            mixed = shutil.copytree(tmp_path / "a", tmp_path / "mixed")
            for name in taken:
                shutil.copy(tmp_path / "b" / name, mixed)
            with pytest.raises(CheckpointError, match=f"{mixed}/.* is damaged, or belongs to another"):
                tfdpg.load_agent(mixed)
            with pytest.raises(CheckpointError):
                agent.fit_offline(mixed, epochs=1, steps_per_epoch=1, verbose=0)
            shutil.rmtree(mixed)


def edited(directory, edit):
    """The saved agent with its description edited and sealed again, as anybody can."""
    description = json.loads((directory / "agent.json").read_text())
    edit(description)
    del description["files"], description["sha256"]
    (directory / "agent.json").unlink()
    files.seal(directory, "agent.json", description)
    return directory


HARM = """
import pathlib
pathlib.Path(__file__).with_name("harm").touch()
def shaper(reward, step, steps):
    return reward
class Schedule:
    def __init__(self, **fields):
        pass
    def __call__(self, step):
        return 1.0
"""


@pytest.mark.parametrize(
    "argument, value",
    [
        ("gamma", {"object": "foreign_code:Schedule", "fields": {"command": "ls"}}),
        ("act_noise_schedule", {"object": "foreign_code:Schedule", "fields": {}}),
        ("act_noise_schedule", {"callable": "foreign_code:shaper"}),
        ("reward_shaper", {"callable": "foreign_code:shaper"}),
        ("reward_shaper", {"callable": "os:system"}),
        ("act_noise", [{"callable": "foreign_code:shaper"}]),
        ("pi_optimizer", {"optimizer": {"module": "foreign_code", "class_name": "Schedule", "config": {}}}),
        ("replay_dir", "elsewhere"),
        ("recorders", ["elsewhere"]),
        ("seed", {"object": "tfdpg.exploration:Linear", "fields": {}}),
        ("pi_optimizer", {"object": "tfdpg.exploration:Linear", "fields": {}}),
    ],
)
def test_a_saved_agent_runs_no_code_that_its_file_names(saved, tmp_path, monkeypatch, argument, value):
    (tmp_path / "foreign_code.py").write_text(HARM)
    monkeypatch.delitem(sys.modules, "foreign_code", raising=False)  # another test's
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    edited(saved, lambda description: description["arguments"].update({argument: value}))
    with pytest.raises((ValueError, CheckpointError), match=f"{argument}|foreign_code|Schedule|no agent saves"):
        tfdpg.load_agent(saved)
    assert "foreign_code" not in sys.modules
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "foreign_code.py"}


def test_what_is_trusted_or_given_again_is_taken(saved, tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(HARM)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"reward_shaper": {"callable": "own_code:shaper"}, "replay_dir": str(tmp_path / "rows")}
    edited(saved, lambda description: description["arguments"].update(names))
    with pytest.raises(
        ValueError, match=r"`reward_shaper` is 'own_code:shaper' in the file.*trusted=True.*reward_shaper="
    ):
        tfdpg.load_agent(saved, replay_dir=None)
    again = tfdpg.load_agent(saved, reward_shaper=None, replay_dir=None)
    assert again.given["reward_shaper"] is None and not (tmp_path / "harm").exists()
    trusted = tfdpg.load_agent(saved, trusted=True)
    assert trusted.given["reward_shaper"].__module__ == "own_code" and (tmp_path / "harm").exists()
    assert trusted.given["replay_dir"] == str(tmp_path / "rows") and (tmp_path / "rows").is_dir()


def test_an_argument_that_there_is_not_is_an_error_of_the_file(saved, tmp_path):
    edited(saved, lambda description: description["arguments"].update(speed=9))
    with pytest.raises(CheckpointError, match="speed"):
        tfdpg.load_agent(saved)


@pytest.mark.parametrize(
    "edit",
    [
        lambda description: description.update(arguments=None),
        lambda description: description.update(agent=3),
        lambda description: description.update(agent="SAC"),
        lambda description: description.update(state=[]),
        lambda description: description.update(observation_space={"type": "Dict", "spaces": []}),
        lambda description: description.update(own_networks=["../pi"]),
        lambda description: description["arguments"].update(gamma=1.5),
        lambda description: description["arguments"].update(device="/job:there/device:CPU:0"),
        lambda description: description["arguments"].update(pi_optimizer={"optimizer": {"class_name": 3}}),
        lambda description: description["arguments"].update(hidden_units=[4, 4]),
        lambda description: description["state"].update(env_steps="x"),
        lambda description: description["state"].update(updates={}),
        lambda description: description["state"].update(last_round=1.5),
        lambda description: description["state"].update(episode_ended=[1]),
        lambda description: description["state"]["collector"].update(episodes="x"),
        lambda description: description["state"]["collector"]["random_state"].update(uinteger=10**30),
        lambda description: description.pop("format"),
    ],
)
def test_whatever_does_not_fit_is_an_error_of_the_file(saved, edit):
    edited(saved, edit)
    with pytest.raises(CheckpointError):
        tfdpg.load_agent(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array * np.nan,
        lambda array: array.astype(np.complex64),
        lambda array: array.astype(str),
        lambda array: array[..., None],
    ],
)
def test_weights_of_another_kind_are_not_loaded(saved, change):
    with np.load(saved / "variables.npz") as file:
        arrays = dict(file)
    np.savez(saved / "variables.npz", **arrays | {"q1/0": change(arrays["q1/0"])})
    edited(saved, lambda description: None)
    with pytest.raises(CheckpointError, match="q1/0 (must be float32|has numbers that are not finite)"):
        tfdpg.load_agent(saved)


def test_the_format_of_before_is_refused_by_name(saved, tmp_path):
    description = json.loads((saved / "agent.json").read_text()) | {"format": 1}
    (saved / "agent.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="has format 1; this version of tfdpg reads and writes 2"):
        tfdpg.load_agent(saved)


def test_weights_that_are_no_numbers_are_not_saved(agent, tmp_path):
    agent.save(tmp_path / "agent")
    agent.networks["q2"].set_weights([np.full_like(weight, np.inf) for weight in agent.networks["q2"].get_weights()])
    with pytest.raises(FloatingPointError, match="weights of `q2` are not finite, so the agent is not saved"):
        agent.save(tmp_path / "agent")
    assert np.isfinite(tfdpg.load_agent(tmp_path / "agent").get_weights()[0]).all()


def test_a_save_that_was_killed_between_its_renames_is_found_and_tidied(saved, tmp_path):
    (tmp_path / "agent").rename(tmp_path / ".agent.tfdpg-old")
    (tmp_path / ".tfdpg-scratch-killed").mkdir()
    with pytest.warns(UserWarning, match="was cut short; the agent that was there before is loaded"):
        again = tfdpg.load_agent(saved)
    again.save(tmp_path / "agent")
    again.save(tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "other"}


def test_weights_are_not_read_through_links(agent, tmp_path):
    agent.save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "group.weights.h5", "w") as file:
        for name in agent._all_networks():
            file[name] = h5py.ExternalLink(str(tmp_path / "a.weights.h5"), name)
    shutil.copy(tmp_path / "a.weights.h5", tmp_path / "array.weights.h5")
    with h5py.File(tmp_path / "array.weights.h5", "a") as file:
        del file["pi/0"]
        file["pi/0"] = h5py.ExternalLink(str(tmp_path / "a.weights.h5"), "pi/0")
    shutil.copy(tmp_path / "a.weights.h5", tmp_path / "storage.weights.h5")
    (tmp_path / "raw").write_bytes(bytes(64))
    with h5py.File(tmp_path / "storage.weights.h5", "a") as file:
        shape = file["pi/0"].shape
        del file["pi/0"]
        file.create_dataset("pi/0", shape, np.float32, external=[(str(tmp_path / "raw"), 0, 64)])
    shutil.copy(tmp_path / "a.weights.h5", tmp_path / "texts.weights.h5")
    with h5py.File(tmp_path / "texts.weights.h5", "a") as file:
        del file["pi/0"]
        file["pi/0"] = np.full(shape, b"1.0")
    (tmp_path / "broken.weights.h5").write_bytes((tmp_path / "a.weights.h5").read_bytes()[:1000])
    with pytest.raises(ValueError, match="broken.weights.h5 is no HDF5 file, or damaged"):
        agent.load_weights(tmp_path / "broken.weights.h5")
    for kind in ("group", "array", "storage", "texts"):
        with pytest.raises(ValueError, match="must hold real arrays of its own, without links"):
            agent.load_weights(tmp_path / f"{kind}.weights.h5")
