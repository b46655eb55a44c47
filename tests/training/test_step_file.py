import keras
import numpy as np
import pytest

from tests.agents.roster import AGENTS, fit_briefly
from tests.environments import Counter
from tfdpg.training.callbacks import StepFile, read_step_file


def test_the_file_holds_the_steps(tmp_path):
    assert read_step_file(tmp_path / "env_steps") == 0
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    for steps in (20, 40):
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=[StepFile(tmp_path / "env_steps")])
        assert read_step_file(tmp_path / "env_steps") == steps == agent.env_steps
        assert (tmp_path / "env_steps").read_text().split() == [str(steps)]
    assert (tmp_path / "env_steps").stat().st_size == 20


def test_the_file_is_text_whenever_the_process_is_killed(tmp_path):
    """Each write replaces all of the file, so that another process never reads a part of a number."""
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((tmp_path / "env_steps").read_text())
    )
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    callbacks = [StepFile(tmp_path / "env_steps"), look]
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=callbacks)
    assert [int(text) for text in seen] == sorted({int(text) for text in seen}) and int(seen[-1]) == 20
    assert {(len(text), text[-1]) for text in seen} == {(20, "\n")}


@pytest.mark.parametrize(
    ("content", "steps"),
    [
        (np.int64(123_456).tobytes(), 123_456),  # as version 0.2.0 wrote it
        (np.int64(np.iinfo(np.int64).max).tobytes(), np.iinfo(np.int64).max),
        (b"9223372036854775807\n", np.iinfo(np.int64).max),
        (b"12\n", 12),
        (b"", 0),
        (b"123", 0),
        (b"1 2\n", 0),
        (b"-4\n", 0),
        (b"9" * 10_000, 0),
    ],
)
def test_files_of_earlier_versions_and_damaged_files_are_read(tmp_path, content, steps):
    (tmp_path / "env_steps").write_bytes(content)
    assert read_step_file(tmp_path / "env_steps") == steps
