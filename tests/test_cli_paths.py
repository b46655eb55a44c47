"""Messages about paths, screens and videos. None of them needs TensorFlow."""

import dataclasses
import json

import pytest

from tfdpg import cli
from tfdpg.cli import run_paths as paths
from tfdpg.cli import video_recording
from tfdpg.cli.run_options import RunConfig, resume_command

CONFIG = RunConfig(agent="ddpg", seed=0, env="Pendulum-v1", env_kwargs={}, options={"epochs": 1})


def make_run(directory):
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(dataclasses.asdict(CONFIG)))
    return directory


def make_model(directory):
    (directory / "1").mkdir(parents=True)
    (directory / "1/saved_model.pb").touch()
    return directory


@pytest.fixture
def error(capsys):
    def error(*arguments):
        assert cli.main([str(a) for a in arguments]) == 1
        text = capsys.readouterr().err
        assert text.startswith("tfdpg: ") and text.count("\n") == 1
        return text.removeprefix("tfdpg: ").rstrip()

    return error


def test_a_path_that_is_something_else_is_called_what_it_is(tmp_path, error):
    run = make_run(tmp_path / "p/seed-10")
    model = make_model(tmp_path / "model")
    parent = tmp_path / "p"
    make_run(tmp_path / "p/seed-2")
    (tmp_path / "file").touch()
    assert error("inspect", run) == f"No exported model in {run}: it is a run; its exported models are not written yet"
    for name in ("best", "export"):
        make_model(run / name)
    expected = f"it is a run; its exported models are {run}/best and {run}/export"
    assert error("inspect", run) == f"No exported model in {run}: {expected}"
    assert error("export", model, tmp_path / "x") == f"No run in {model}: it is an exported model"
    assert error("export", model / "1", tmp_path / "x") == f"No run in {model}/1: it is an exported model"
    assert error("train", "--resume", model) == f"No run in {model}: it is an exported model"
    assert error("plot", model) == f"No run to plot in {model}: it is an exported model"
    held = f"it holds the runs {parent}/seed-2, {run}; name one"
    assert error("evaluate", parent) == f"No run and no exported model in {parent}: {held}"
    assert error("export", parent, tmp_path / "x") == f"No run in {parent}: {held}"
    assert error("inspect", tmp_path) == f"No exported model in {tmp_path}: {held}"
    all_of = f"{held}, or {parent} for all of its runs"
    assert error("train", "--resume", tmp_path) == f"No run in {tmp_path}: {all_of}"
    assert error("evaluate", tmp_path / "file").endswith("file: it is a file")
    other = make_run(tmp_path / "other")
    expected = f"The model directory must not be a run directory. Received: {other}"
    assert error("export", run, other) == expected
    assert (
        error("evaluate", run, "--max-ep-len", 0) == "`max_ep_len` must be a positive integer. Received: max_ep_len=0"
    )
    checkpoint = run / "checkpoints/30"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").touch()
    assert error("evaluate", checkpoint).endswith(f"30: it is a checkpoint; its run is {run}")
    assert error("plot", parent) == f"No run to plot in {parent}: {run}, {parent}/seed-2 has no epoch yet"
    nothing = "no directory at or below it has run.json and progress.csv, and there is no .csv file"
    assert error("plot", checkpoint) == f"No run to plot in {checkpoint}: {nothing}"


def test_a_run_that_has_not_got_far_says_so(tmp_path, error):
    run = make_run(tmp_path / "run")
    assert error("evaluate", run).startswith(f"{run} has no checkpoint yet")
    assert error("evaluate", run, "--checkpoint", "best").startswith(f"{run} has no best policy yet")
    assert error("export", run, tmp_path / "x").startswith(f"{run} has no best policy yet")
    assert error("export", run, tmp_path / "x", "--checkpoint", "latest").startswith(f"{run} has no checkpoint yet")


def test_the_command_that_goes_on_has_what_it_needs(tmp_path):
    assert resume_command(tmp_path, CONFIG, "--jobs", "2") == f"tfdpg train --resume {tmp_path} --jobs 2"
    for change in (
        {"env": "tests.environments:Counter"},
        {"env_kwargs": {"xml_file": "./robot.xml"}},
        {"networks": "mine:build"},
        {"options": CONFIG.options | {"replay_dir": "rows"}},
        {"distributed": {"actors": 1, "ray_address": "auto"}},
    ):
        config = dataclasses.replace(CONFIG, **change)
        assert resume_command(tmp_path / "a run", config) == f"tfdpg train --resume '{tmp_path}/a run' --trusted"


def test_what_a_run_keeps_cannot_change(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    for flag in ("--hidden-units", "--env", "--num-envs", "--networks", "--seeds", "--run-dir", "--actors"):
        assert cli.main(["train", "--resume", str(run), flag, "3"]) == 2
        assert f"{flag} cannot change: a run keeps what it was started with." in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(run), "--overwrite"]) == 2
    assert "--overwrite is for new runs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", str(run), "--help"])
    shown = capsys.readouterr().out
    assert "--epochs {None}|INT" in shown and "(default: 1)" in shown
    assert "--pi-lr" in shown and "--hidden-units" not in shown
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", "--help"])
    assert "--batch-size" in (general := capsys.readouterr().out) and "--pi-lr" not in general


def test_directories_of_runs(tmp_path, monkeypatch):
    assert str(paths.parent_of("TD3", "a.b:dm_control/x-v0")) == "runs/td3-a.b-dm_control-x-v0"
    for expected in ("x", "x-2"):
        with paths.next_free(tmp_path / "runs/x") as found:
            assert found == tmp_path / "runs" / expected
            (found / "seed-0").mkdir()
    with paths.next_free(tmp_path / "runs/x") as found:
        assert found.is_dir()
    assert not found.exists()
    (make_run(tmp_path / "foreign") / "run.json").write_text('{"speed": 3}')
    with pytest.raises(ValueError, match="run.json is damaged"):
        paths.check_free(tmp_path / "foreign", overwrite=True)


def test_without_a_screen_nothing_is_rendered(tmp_path, monkeypatch, error):
    model = make_model(tmp_path / "model")
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert error("evaluate", model, "--render") == video_recording.NO_SCREEN and "--video" in video_recording.NO_SCREEN
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    for env_id in ("Pendulum-v1", "InvertedPendulum-v5"):
        made = video_recording.evaluation_env(None, env_id, True, None, None, False, model)
        if env_id == "Pendulum-v1":
            with made as env:
                env.reset()
        else:
            with pytest.raises(ValueError, match="needs a screen"), made:
                pass
    monkeypatch.setenv("DISPLAY", ":0")
    video_recording.check(render=True, video=None)


def test_videos_have_formats_that_can_be_written(tmp_path, error):
    model = make_model(tmp_path / "model")
    for name in ("video.xyz", "video"):
        expected = "must be a file that ends with .mp4, .mkv, .mov, .avi, .gif. Received:"
        assert f"{expected} {tmp_path / name}" in error("evaluate", model, "--video", tmp_path / name)
