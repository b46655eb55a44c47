"""The command line, on runs of all kinds."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import QUIET, TINY, train
from tfdpg import cli
from tfdpg.cli.run_options import best_log

pytestmark = brief


def test_the_best_policy_is_chosen_by_a_number(tmp_path, capsys):
    for given, expected in (
        ("return", ("val_return", "max")),
        ("success", ("val_success_rate", "max")),
        ("cost", ("val_info_cost", "min")),
        ("max:cost", ("val_info_cost", "max")),
        ("power", ("val_info_power", "max")),
        ("min:terminated", ("val_terminated", "min")),
    ):
        assert best_log(given, "val_") == expected
    assert train("--run-dir", tmp_path / "run", "--best-by", "min:truncated") == 0
    assert tfdpg.load(tmp_path / "run/seed-0/best").metadata["scores"]["val_truncated"] == 0
    capsys.readouterr()
    assert cli.main(["export", str(tmp_path / "run/seed-0"), str(tmp_path / "model")]) == 0
    shown = capsys.readouterr().out.splitlines()[1]
    assert shown == "the policy with the best evaluation (return 15, episode length 5, terminated 1, truncated 0)"
    assert train("--run-dir", tmp_path / "other", "--best-by", "least:cost") == 1
    assert "`best_by` must be a name, min:NAME or max:NAME. Received: best_by='least:cost'" in capsys.readouterr().err
    assert train("--run-dir", tmp_path / "other", "--best-by", "cost") == 1
    assert "ExportBest monitors 'val_info_cost', which is not among the logs" in capsys.readouterr().err


@pytest.mark.slow
def test_resume_goes_on_where_it_was(tmp_path, capsys):
    assert train("--run-dir", tmp_path / "twice") == 0
    before = tfdpg.load_agent(tmp_path / "twice/seed-0/checkpoints/60")
    assert cli.main(["train", "--resume", str(tmp_path / "twice/seed-0"), "--epochs", "4"]) == 0
    after = tfdpg.load_agent(tmp_path / "twice/seed-0/checkpoints/120")
    assert (after.epoch, after.updates) == (4, before.updates + 60)
    earlier, later = before.replay.transitions(), after.replay.transitions()
    for name in ("observation", "action", "reward"):
        np.testing.assert_array_equal(later[name][: len(earlier[name])], earlier[name])
    assert len((tmp_path / "twice/seed-0/progress.csv").read_text().splitlines()) == 5
    assert len((tmp_path / "twice/seed-0/progress.txt").read_text().splitlines()) == 5
    before = (tmp_path / "twice/seed-0/run.json").read_text()
    for changes, kept in (([], ""), (["--epochs", "3", "--pi-lr", "0.5"], "; nothing was changed")):
        assert cli.main(["train", "--resume", str(tmp_path / "twice/seed-0"), *changes]) == 0
        assert f"is complete: 4 epochs{kept}. To continue: --epochs 5 or more." in capsys.readouterr().out
    assert (tmp_path / "twice/seed-0/run.json").read_text() == before


@pytest.mark.slow
def test_the_path_of_a_run_may_hold_characters_of_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = "[a]*?\\b/run/seed-0"
    assert train("--run-dir", "[a]*?\\b/run", *QUIET) == 0
    assert cli.main(["train", "--resume", run, "--epochs", "3"]) == 0
    assert cli.main(["evaluate", run, "--checkpoint", "best", "--episodes", "1"]) == 0
    assert cli.main(["evaluate", f"{run}/export", "--episodes", "1"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["[a]*?\\b"]


@pytest.mark.slow
def test_a_run_with_a_memory_goes_on_and_is_evaluated(tmp_path, capsys):
    memory = "--recurrent gru --recurrent-units 3 2 --remembers observation action reward --run-eagerly"
    drawn = "--gradient-steps 1 --sequence-length 3 --burn-in 2"
    run = tmp_path / "runs/seed-0"
    assert train("--run-dir", run.parent, *memory.split(), *drawn.split()) == 0
    assert cli.main(["train", "--resume", str(run), "--epochs", "3", "--sequence-length", "4"]) == 0
    agent = tfdpg.load_agent(run / "checkpoints/90")
    assert agent.options.recurrent_units == (3, 2) and agent.options.remembers == ("observation", "action", "reward")
    assert agent.options.sequence_length == 4 and agent.updates == 16
    assert cli.main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert cli.main(["inspect", str(run / "best")]) == 0
    assert "episode 2: return 15.000, length 5" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:This training ends at .* it makes no update")
def test_vector_environments_and_own_networks(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_networks.py").write_text(
        "import keras\n"
        "def build(spec):\n"
        "    x = keras.Input((2,))\n"
        "    h = keras.layers.Dense(5, activation='tanh')(x)\n"
        "    return {'pi': keras.Model(x, keras.layers.Dense(spec.act_dim, activation='tanh')(h))}\n"
        "def wrong(spec):\n"
        "    return {'actor': None}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert train("--run-dir", "r", "--num-envs", "3", "--networks", "my_networks:build", *QUIET) == 0
    agent = tfdpg.load_agent(tmp_path / "r/seed-0/checkpoints/60")
    assert set(agent.parts.given) == {"pi"} and agent.pi.layers[1].units == 5
    assert len(agent.replay.state()["heads"]) == 3
    assert train("--run-dir", "s", "--networks", "my_networks:wrong") == 1
    assert "['actor']" in capsys.readouterr().err
    td7 = ["train", "td7", "--env", "Pendulum-v1", "--networks", "my_networks:build", "--run-dir", "t"]
    assert cli.main(td7) == 1
    assert capsys.readouterr().err.endswith("q_optimizer, recorders, reward_shaper for TD7. Received: ['pi']\n")


@pytest.mark.slow
def test_acer_trains_on_discrete_actions_and_is_evaluated_and_inspected(tmp_path, capsys):
    options = ["--hidden-units", "8", "--n-steps", "5", "--c", "inf", "--delta", "inf", "--replay-start", "20"]
    options += ["--env", "CartPole-v1", "--num-envs", "2", "--steps-per-epoch", "40", "--epochs", "2"]
    options += ["--validation-episodes", "1", "--verbose", "0", "--jit-compile", "False"]
    assert cli.main(["train", "acer", *options, "--run-dir", str(tmp_path)]) == 0
    run = str(tmp_path / "seed-0")
    assert cli.main(["train", "--resume", run, "--epochs", "3"]) == 0
    capsys.readouterr()
    for source in (run, f"{run}/export"):
        assert cli.main(["evaluate", source, "--episodes", "2", "--seed", "5"]) == 0
    first, second = capsys.readouterr().out.split("length: mean")[:2]
    assert first.splitlines()[:2] == second.splitlines()[1:3] and "episode 2: return" in first
    assert cli.main(["inspect", f"{run}/export"]) == 0
    shown = capsys.readouterr().out
    for line in ("pi(x: float32[batch, 4]) -> pi: int64[batch]", "q1(x: float32[batch, 4], a: int64[batch]) -> q1"):
        assert line in shown
    assert "v(x: float32[batch, 4]) -> v: float32[batch]" in shown and "probs: float32[batch, 2]" in shown
    bad = ["train", "acer", *options, "--run-dir", str(tmp_path / "bad")]
    assert cli.main([*bad, "--num-envs", "1", "--actors", "2"]) == 1
    assert "one that explores with noise" in capsys.readouterr().err
    assert cli.main([*bad, "--sigma", "0.5"]) == 1
    assert "`sigma` does nothing where actions are Discrete(2)" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:This training ends at .* it makes no update")
def test_target_return_stops_early(tmp_path):
    assert train("--run-dir", tmp_path / "r", "--target-return", "15", *QUIET) == 0
    assert tfdpg.load_agent(tmp_path / "r/seed-0/checkpoints/30").epoch == 1


INTERRUPTED = (signal.SIGINT, 130)
ENDED = (signal.SIGTERM, 143)


ASYNC = ["--num-envs", "2", "--vectorization", "async"]


@pytest.mark.parametrize(
    "number, status, vector_flags",
    [
        pytest.param(*INTERRUPTED, [], id="SIGINT-one", marks=pytest.mark.slow),
        pytest.param(*ENDED, ASYNC, id="SIGTERM-async", marks=pytest.mark.slow),
        pytest.param(*ENDED, [], id="SIGTERM-one", marks=pytest.mark.slow),
        pytest.param(*INTERRUPTED, ASYNC, id="SIGINT-async", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, number, status, vector_flags):
    code = "import sys, tests.environments; from tfdpg.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train", "ddpg", "--env", "tfdpg-test/Counter-v0", *TINY]
    command += ["--steps-per-epoch", "100", "--epochs", "100000", "--verbose", "0", "--run-dir", str(tmp_path)]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen([*command, *vector_flags], start_new_session=True, **pipes)
    while not (tmp_path / "seed-0/checkpoints").exists():
        time.sleep(0.2)
        assert process.poll() is None
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"Resume with: tfdpg train --resume {tmp_path}/seed-0" in errors
    assert "tfdpg: Training was interrupted" in errors or "tfdpg: ended by SIGTERM." in errors
    assert vector_flags or "Traceback" not in errors  # the processes of the sub-environments print their own
    checkpoint = max((tmp_path / "seed-0/checkpoints").iterdir(), key=lambda path: int(path.name))
    assert tfdpg.load_agent(checkpoint).env_steps == int(checkpoint.name)


BROKEN = """
from tests.environments import Counter


class Broken(Counter):
    def step(self, action):
        raise KeyError("gripper")
"""


def test_what_an_environment_raises_is_named_in_the_first_line_and_then_where(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    assert train("--run-dir", tmp_path / "run", env="broken:Broken") == 1
    error = capsys.readouterr().err
    assert error.startswith("tfdpg: KeyError: 'gripper'\n") and 'broken.py", line 7, in step' in error
