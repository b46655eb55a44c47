"""Untrusted files can only be loaded, or be rejected with an error that names them."""

import json
import os
import shutil
import sys

import h5py
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tests.test_foreign_runs import at_most
from tfdpg import files
from tfdpg.export import read_prediction_logs
from tfdpg.files import CheckpointError
from tfdpg.training.data.datasets import load_into


def edited(directory, edit):
    """The saved agent with its description edited and sealed again, as anybody can."""
    description = json.loads((directory / "checkpoint.json").read_text())
    edit(description)
    del description["files"], description["sha256"]
    (directory / "checkpoint.json").unlink()
    files.write_manifest(directory, "checkpoint.json", description)
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
    with pytest.raises((ValueError, CheckpointError), match=f"{argument}|foreign_|Schedule|no agent"):
        tfdpg.load_agent(saved)
    assert "foreign_code" not in sys.modules
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "foreign_code.py"}


def test_what_is_trusted_or_given_again_is_taken(saved, tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(HARM)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"reward_shaper": {"callable": "own_code:shaper"}, "replay_dir": str(tmp_path / "rows")}
    edited(saved, lambda description: description["arguments"].update(names))
    with pytest.raises(ValueError, match="own_code:shaper.*trusted.*reward_shaper="):
        tfdpg.load_agent(saved, replay_dir=None)
    again = tfdpg.load_agent(saved, reward_shaper=None, replay_dir=None)
    assert again.options.reward_shaper is None and not (tmp_path / "harm").exists()
    trusted = tfdpg.load_agent(saved, trusted=True)
    assert trusted.options.reward_shaper.__module__ == "own_code" and (tmp_path / "harm").exists()
    assert trusted.options.replay_dir == str(tmp_path / "rows") and (tmp_path / "rows").is_dir()


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
        lambda description: description.update(custom_networks=["../pi"]),
        lambda description: description["arguments"].update(gamma=1.5),
        lambda description: description["arguments"].update(device="/job:there/device:CPU:0"),
        lambda description: description["arguments"].update(pi_optimizer={"optimizer": {"class_name": 3}}),
        lambda description: description["arguments"].update(hidden_units=[4, 4]),
        lambda description: description["state"].update(env_steps="x"),
        lambda description: description["state"].update(updates={}),
        lambda description: description["state"].update(last_update_phase=1.5),
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
    with pytest.raises(CheckpointError, match="q1/0 (must be float32|has .*not finite)"):
        tfdpg.load_agent(saved)


def test_the_format_of_before_is_refused_by_name(saved, tmp_path):
    description = json.loads((saved / "checkpoint.json").read_text()) | {"format": 1}
    (saved / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="format 1; .*format 6 only. .*by an older"):
        tfdpg.load_agent(saved)
    (saved / "checkpoint.json").rename(saved / "agent.json")
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint\.json\. An older version of tfdpg saved it"):
        tfdpg.load_agent(saved)


def test_weights_are_not_read_through_links(tmp_path):
    agent = tfdpg.DDPG(Counter(), **SMALL)
    agent.save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "group.weights.h5", "w") as file:
        for name in agent.networks | agent.copies:
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
    with pytest.raises(ValueError, match="is not an HDF5 file, or is damaged"):
        agent.load_weights(tmp_path / "broken.weights.h5")
    for kind in ("group", "array", "storage", "texts"):
        with pytest.raises(ValueError, match="must hold float arrays, without links"):
            agent.load_weights(tmp_path / f"{kind}.weights.h5")


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_weights_that_are_not_finite_are_named_and_not_loaded(tmp_path, number):
    agent = tfdpg.DDPG(Counter(), **SMALL)
    file = tmp_path / "a.weights.h5"
    agent.save_weights(file)
    with h5py.File(file, "a") as opened:
        values = opened["q1/0"][()].astype(np.float64)
        values.flat[:3] = number
        del opened["q1/0"]
        opened["q1/0"] = values
    before = agent.get_weights()
    path = agent.networks["q1"].weights[0].path
    with pytest.raises(ValueError, match=f"^{file} must hold .*: 3 of {values.size} numbers of `{path}` of .*`q1` are"):
        agent.load_weights(file)
    wrong = [np.full_like(weight, number, np.float64) for weight in before]
    with pytest.raises(ValueError, match="^`weights` must be finite weights. Received: .* of .* are NaN or"):
        agent.set_weights(wrong)
    for one, other in zip(before, agent.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_are_not_written_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".a.weights.h5.part").symlink_to(tmp_path / "precious")
    tfdpg.DDPG(Counter(), **SMALL).save_weights(tmp_path / "a.weights.h5")
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "a.weights.h5").is_symlink()


def test_named_pipes_are_refused_and_not_opened(saved, tmp_path):
    agent = tfdpg.load_agent(saved)
    (tmp_path / "data").mkdir()
    agent.replay.save(tmp_path / "replay")
    places = ["x.weights.h5", "x.npz", "x.csv", "data/0.npz", "replay/extra", "logs.tfrecord"]
    for place in places:
        os.mkfifo(tmp_path / place)
    attempts = {
        "x.weights.h5": lambda: agent.load_weights(tmp_path / "x.weights.h5"),
        "x.npz": lambda: load_into(agent.replay, tmp_path / "x.npz"),
        "data/0.npz": lambda: load_into(agent.replay, tmp_path / "data"),
        "replay/extra": lambda: agent.replay.load(tmp_path / "replay"),
        "logs.tfrecord": lambda: read_prediction_logs(tmp_path / "logs.tfrecord", agent.spec),
    }
    with at_most(30):
        for place, attempt in attempts.items():
            with pytest.raises(
                files.UnsafeFileError, match=f"^{tmp_path / place} must be a regular file or a directory"
            ):
                attempt()
        with pytest.raises(ValueError, match="`data` must be a file.*x.csv"):
            agent.fit_offline(tmp_path / "x.csv", epochs=1, steps_per_epoch=1)


def test_links_in_a_directory_of_data_are_not_followed_and_one_that_is_named_is(saved, tmp_path):
    agent = tfdpg.load_agent(saved)
    count = agent.replay.size
    arrays = dict(agent.replay.transitions())
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "elsewhere/0.npz", **arrays)
    agent.replay.save(tmp_path / "replay")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/0.npz").symlink_to(tmp_path / "elsewhere/0.npz")
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
    rows = next((tmp_path / "replay").glob("rows-*"))
    shutil.move(rows, tmp_path / "elsewhere/rows")
    rows.symlink_to(tmp_path / "elsewhere/rows")
    with pytest.raises(
        files.UnsafeFileError, match=f"{tmp_path}/data/0.npz is a symbolic link to {tmp_path}/elsewhere/0"
    ):
        agent.fit_offline(tmp_path / "data", epochs=1, steps_per_epoch=1)
    with pytest.raises(files.UnsafeFileError, match=f"{rows} is a symbolic link to {tmp_path}/elsewhere/rows"):
        agent.replay.load(tmp_path / "replay")
    with pytest.raises(files.UnsafeFileError, match="is a symbolic link to .*, which is not followed"):
        agent.fit_offline(tmp_path / "replay", epochs=1, steps_per_epoch=1)
    with pytest.raises(files.UnsafeFileError, match="is a symbolic link to .*, which is not followed"):
        read_prediction_logs(tmp_path / "data", agent.spec)
    assert agent.replay.size == count
    for named in (tmp_path / "linked", tmp_path / "data/0.npz"):
        buffer = tfdpg.replay.ReplayBuffer(agent.spec, 1000)
        load_into(buffer, named)
        assert len(buffer.transitions()["rewards"]) == len(arrays["rewards"])
