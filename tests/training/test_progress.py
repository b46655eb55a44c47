"""What training prints."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL
from tests.environments import Counter
from tfdpg.agents.declarations import metrics
from tfdpg.training.callbacks.progress import ProgressBar, format_duration, format_number, resolve

MEANS = ("return", "episode_length", "terminated", "loss_q", "loss_pi", "q1")
SHORT = {"epochs": 2, "steps_per_epoch": 20}


@pytest.mark.parametrize(
    "value, text",
    [
        (1000, "1,000"),
        (12_345_678, "12,345,678"),
        (-1324.8432, "−1,324.8"),
        (200.0, "200"),
        (99.999, "100"),
        (11.9110, "11.91"),
        (-1.5, "−1.5"),
        (0.012345, "0.0123"),
        (-0.5, "−0.5"),
        (0.0, "0"),
        (1.234e-5, "1.23e-05"),
        (1.234e9, "1.23e+09"),
        (np.inf, "inf"),
    ],
)
def test_numbers_as_people_write_them(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize("seconds, text", [(0.4, "0s"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_the_line_of_an_epoch_has_the_numbers_of_its_logs(capsys):
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL)
    agent.fit(env, **SHORT, verbose=0)
    assert capsys.readouterr().out == ""
    logs = agent.fit(env, **SHORT).history  # no terminal, so a line for each epoch
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        expected = [f"{name} {format_number(logs[name][epoch])}" for name in MEANS]
        assert line.split(" · ")[0] == f"Epoch {epoch + 1}/2" and re.fullmatch(r"\d+s", line.split(" · ")[1])
        assert line.split(" · ")[2:] == [f"env_steps {60 + 20 * epoch}", *expected]
    agent.fit_offline(None, **SHORT)
    assert f" · updates {agent.updates:,} · loss_q " in capsys.readouterr().out.splitlines()[-1]


def test_the_bar(capsys, monkeypatch):
    monkeypatch.setattr("tfdpg.training.callbacks.progress.INTERVAL", 0)
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL, **EAGER)
    logs = agent.fit(env, **SHORT, verbose=1).history
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "Epoch 1/2" and lines[2] == "Epoch 2/2" and lines[4:] == [""]
    drawn = lines[3].split("\r")[1:]
    assert len(drawn) == 5
    assert re.match(r"10/20 ━{10}─{10} \d+s left · env_steps 30 · return 15 · ", drawn[1])  # or longer
    last = [f"{name} {format_number(logs[name][1])}" for name in MEANS]
    end = re.sub(r" \d+s ", " 0s ", drawn[-1].rstrip(), count=1)  # or a second or more, on a machine that is busy
    assert end == " · ".join(["20/20 " + 20 * "━" + " 0s", "env_steps 40", *last])
    assert all(len(after) >= len(before.rstrip()) for before, after in zip(drawn, drawn[1:], strict=False))


def test_a_bar_that_is_cut_short_ends_its_line(capsys):
    class Error(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("mine")

    env = Counter()
    with pytest.raises(RuntimeError, match="mine"):
        tfdpg.DDPG(env, **SMALL).fit(env, **SHORT, verbose=1, callbacks=[Error()])
    assert capsys.readouterr().out.endswith("\n")


class Output(io.StringIO):
    def __init__(self, encoding, is_terminal):
        super().__init__()
        self.own = encoding
        self.is_terminal = is_terminal

    encoding = property(lambda self: self.own)

    def isatty(self):
        return self.is_terminal


def test_verbose_auto(monkeypatch):
    monkeypatch.delenv("PYCHARM_HOSTED", raising=False)
    assert [resolve(verbose) for verbose in (0, 1, 2)] == [0, 1, 2]
    for is_terminal, verbose in ((True, 1), (False, 2)):
        monkeypatch.setattr("sys.stdout", Output("utf-8", is_terminal))
        assert resolve("auto") == verbose
    monkeypatch.setattr("sys.stdout", None)
    assert resolve("auto") == 2
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert resolve("auto") == 1
    keras.config.disable_interactive_logging()
    try:
        assert resolve("auto") == 2
    finally:
        keras.config.enable_interactive_logging()


def bar_of(output, monkeypatch):
    """What is drawn and printed of an epoch of 20 steps."""
    monkeypatch.setattr("sys.stdout", output)
    bar = ProgressBar()
    bar.set_model(types.SimpleNamespace(metrics=metrics(["q1", "q2"])))
    bar.set_params({"epochs": 1, "steps": 20, "verbose": 1})
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    logs = {"env_steps": 10.0, "return": -1324.8, "episode_length": 200.0, "loss_q": 0.0123, "loss_pi": 1.5, "q1": -1.5}
    bar.on_train_batch_end(9, logs)
    bar.on_epoch_end(0, logs)
    return output.getvalue()


def test_ascii_where_the_output_takes_nothing_else(monkeypatch):
    shown = bar_of(Output("cp1252", False), monkeypatch)
    assert shown.isascii() and "10/20 ==========.......... 0s left - env_steps 10 - return -1,324.8" in shown


def test_a_drawing_fits_the_terminal_and_the_last_line_is_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    running, last = bar_of(Output("utf-8", True), monkeypatch).split("\r")[1:]
    assert running.endswith("env_steps 10") and len(running) < 60
    assert last.endswith("q1 −1.5\n") and len(last) > 60


@pytest.mark.slow
def test_no_line_of_tensorflow_s_within_a_bar():
    code = (
        "import tensorflow, gymnasium as gym, tfdpg; env = gym.make('Pendulum-v1');"
        "agent = tfdpg.TD3(env, update_after=100, start_steps=100, hidden_units=(8, 8));"
        "agent.fit(env, epochs=1, steps_per_epoch=300)"
    )
    master, slave = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    shown = bytearray()
    with subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=env):
        os.close(slave)
        with contextlib.suppress(OSError):  # the other end is closed
            while read := os.read(master, 4096):
                shown += read
    os.close(master)
    before, bar = shown.decode().split("Epoch 1/1\r\n")
    assert "Compiled cluster using XLA!" in before
    assert all(re.match(r" ?\d+/300 ", drawn) for drawn in bar.split("\r")[1:-1]) and bar.count("\n") == 1
