"""The benchmarks, without the runs that they are about."""

import json
import os
import sys
from pathlib import Path

import pytest

from tfdpg.agents.options import OPTIONS
from tfdpg.recipes import AGENTS, RECIPES

FOLDER = Path(__file__).parents[1] / "examples" / "benchmarks"


@pytest.fixture
def time_to_score(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import time_to_score

    return time_to_score


@pytest.fixture
def throughput(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import throughput

    return throughput


@pytest.fixture
def called(time_to_score, monkeypatch):
    """Calls the script with arguments; each run takes two minutes, and prints its result."""
    started = []

    def run(script, cores, *words):
        arguments = time_to_score.parser().parse_args(words)
        assert arguments.child and cores == [1]
        contestant = arguments.contestant[0]
        task = arguments.task[0]
        seed = arguments.seeds[0]
        started.append((contestant, task, seed))
        return json.loads(json.dumps(time_to_score.Run(contestant, task, seed, seed == 0, 2.0, 30_000, 2600.0)))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["time_to_score.py", "--core", "1", *words])
        started.clear()
        time_to_score.main()
        return list(started)

    monkeypatch.setattr(time_to_score.pinned, "in_pinned_process", run)
    return call


def train_until_stopped(contestant, task, seed, should_stop):
    while not should_stop(None):
        pass


def test_goes_on_where_its_csv_ends(called, tmp_path):
    words = ["--task", "Hopper-v5", "--contestant", "tfdpg TD3", "--out", str(tmp_path / "new/runs.csv")]
    first = called(*words, "--seeds", "0", "--minutes", "2")
    assert first == [("tfdpg TD3", "Hopper-v5", 0)]
    assert called(*words, "--seeds", "0", "1", "--minutes", "2") == [("tfdpg TD3", "Hopper-v5", 1)]
    assert called(*words, "--seeds", "0", "1", "--minutes", "2") == []
    assert called(*words, "--seeds", "0", "1", "--minutes", "3") == [("tfdpg TD3", "Hopper-v5", 1)]  # it stopped short


def test_a_report_of_nothing_says_so(called, tmp_path):
    with pytest.raises(SystemExit, match="There is no run in .*none.csv"):
        called("--report", "--out", str(tmp_path / "none.csv"))


def test_reports_ratios_to_the_fastest_of_the_others(called, time_to_score, tmp_path, capsys):
    file = tmp_path / "runs.csv"
    for name, minutes in (("tfdpg TD3", (20, 40)), ("sb3 TD3", (90, 90)), ("sbx SAC", (30, 60)), ("sbx TD3", (10, 99))):
        for seed in (0, 1):
            reached = name != "sbx TD3" or seed == 0
            run = time_to_score.Run(name, "Hopper-v5", seed, reached, float(minutes[seed]), 200_000, 2600.0)
            time_to_score.append(file, run)
    assert called("--report", "--out", str(file)) == []
    printed = {line[:20].rstrip(): line for line in capsys.readouterr().out.splitlines()}
    assert "20.0, 40.0" in printed["tfdpg TD3"] and printed["tfdpg TD3"].endswith("1.50x")
    assert "10.0, >99.0" in printed["sbx TD3"]


def test_a_run_ends_with_two_evaluations_in_a_row(time_to_score, monkeypatch):
    returns = iter([8000.0, 6000.0, 7000.0, 8001.0, 9000.0])
    monkeypatch.setattr(time_to_score, "evaluate", lambda env, act: next(returns))
    monkeypatch.setattr(time_to_score, "train", train_until_stopped)
    run = time_to_score.measure("tfdpg TD3", "HalfCheetah-v5", 0, 1.0, 10**6, 7500)
    assert run.reached and run.steps == 4 * time_to_score.EVERY and run.score == 7500.5


def test_a_run_ends_with_its_budget(time_to_score, monkeypatch):
    monkeypatch.setattr(time_to_score, "evaluate", lambda env, act: 0.0)
    monkeypatch.setattr(time_to_score, "train", train_until_stopped)
    run = time_to_score.measure("tfdpg TD3", "HalfCheetah-v5", 0, 1.0, 20_000, 7500)
    assert not run.reached and run.steps == 20_000


def test_throughput_shows_one_core_and_two(throughput, capsys):
    def measured(speed):
        return {"steps_per_second": speed, "peak_megabytes": 900.0, "seconds_to_first_learning": 9.0}

    speeds = {"tfdpg, 50 after 50": (300, 450), "tfdpg, 1 after 1": (200, 200), "sbx, 50 after 50": (250, 300)}
    on = {name: {"0": measured(one), "0,1": measured(two)} for name, (one, two) in speeds.items()}
    limit = {"flops": 4e8, "flops_per_second": 1e11, "update_seconds": 5e-3, "share": 0.8}
    throughput.report("HalfCheetah-v5", {"rounds": [on], "limit": limit})
    lines = capsys.readouterr().out.splitlines()
    ratios = {line[:26]: [word for word in line[26:].split() if word.endswith("x")] for line in lines[3:-1]}
    assert ratios[f"{'tfdpg, 50 after 50':20}{'0,1':>6}"] == ["1.50x", "1.00x", "0.44x"]
    assert ratios[f"{'sbx, 50 after 50':20}{'0,1':>6}"] == ["1.20x", "1.50x", "0.67x"]


def test_each_recipe_is_a_contestant(time_to_score):
    assert list(time_to_score.recipes()) == [f"tfdpg {name}" for name in RECIPES]
    for agent, options in zip(AGENTS.values(), time_to_score.recipes().values(), strict=True):
        assert OPTIONS[agent](**options).values().items() >= options.items()


def test_mistakes_are_said_before_and_failures_behind_what_failed(throughput, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["throughput.py", "--rounds", "0"])
    with pytest.raises(SystemExit, match="2"):
        throughput.main()
    assert "--rounds: must be at least 1. Received: 0" in capfd.readouterr().err
    (tmp_path / "needs.py").write_text("import no_such_library")
    with pytest.raises(SystemExit, match=r"needs.py --child x failed.*\[benchmark\]"):
        throughput.pinned.in_pinned_process(str(tmp_path / "needs.py"), sorted(os.sched_getaffinity(0)), "--child", "x")
    assert "No module named 'no_such_library'" in capfd.readouterr().err
