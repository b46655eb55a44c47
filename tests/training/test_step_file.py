import time

import keras
import numpy as np
import pytest

from tests.agents.roster import AGENTS, fit_briefly
from tests.environments import Counter
from tfdpg.training.callbacks import StepFile, read_step_file, step_line


def test_the_file_holds_the_steps(tmp_path):
    assert read_step_file(tmp_path / "trained.txt") == (0, 0)
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    for steps in (20, 40):
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=[StepFile(tmp_path / "trained.txt")])
        assert read_step_file(tmp_path / "trained.txt")[0] == steps == agent.env_steps
        assert (tmp_path / "trained.txt").read_text().split()[0] == str(steps)
    assert (tmp_path / "trained.txt").stat().st_size == 33


def test_the_seconds_count_from_a_given_time(tmp_path):
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    callbacks = [StepFile(tmp_path / "trained.txt", time.monotonic() - 65)]
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=callbacks)
    steps, seconds = read_step_file(tmp_path / "trained.txt")
    assert steps == 20 and 65 <= seconds < 120


def test_the_file_is_text_whenever_the_process_is_killed(tmp_path):
    """Each write replaces all of the file, so that another process never reads a part of a number."""
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((tmp_path / "trained.txt").read_text())
    )
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    callbacks = [StepFile(tmp_path / "trained.txt"), look]
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=callbacks)
    steps = [int(text.split()[0]) for text in seen]
    assert steps == sorted({*steps}) and steps[-1] == 20
    assert {(len(text), text[-1]) for text in seen} == {(33, "\n")}


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        (step_line(np.iinfo(np.int64).max, 1e9), (np.iinfo(np.int64).max, 1e9)),
        (step_line(12, 3.06), (12, 3.1)),
        ("12 3.0\n", (12, 3.0)),
    ],
)
def test_files_are_read(tmp_path, content, counts):
    (tmp_path / "trained.txt").write_text(content)
    assert read_step_file(tmp_path / "trained.txt") == counts


@pytest.mark.parametrize("content", ["", "123", "1 2\n", "-4 3.0\n", "1 nan\n", "9" * 10_000])
def test_damaged_files_count_from_0_and_say_so(tmp_path, content):
    (tmp_path / "trained.txt").write_text(content)
    with pytest.warns(UserWarning, match=r"trained\.txt is damaged: the seconds of training count from 0 again\."):
        assert read_step_file(tmp_path / "trained.txt") == (0, 0)
