"""The benchmarks, without the runs that they are about."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

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
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu

    return gpu


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


def test_the_matrix_products_of_an_update_are_those_that_it_computes(gpu):
    agent = gpu.filled_agent(16, 8, "cpu:0", None, 1000)
    computed = []

    def note(kind, inputs, attributes, outputs, *rest):
        if kind == "MatMul":
            parameters = dict(zip(attributes[::2], attributes[1::2], strict=True))
            inner = inputs[0].shape[0 if parameters["transpose_a"] else 1]
            computed.append(2 * inner * int(np.prod(outputs[0].shape)))

    batch = agent.data.unpack(tuple(tf.constant(part[0]) for part in agent.data.example(1)))
    op_callbacks.add_op_callback(note)
    try:
        agent.update(batch, tf.constant(gpu.POLICY_DELAY, tf.int64))
    finally:
        op_callbacks.remove_op_callback(note)
    assert sum(computed) == gpu.flops(16, 8, policy_delay=1)
    always = [product.flops for product in gpu.matrix_products(16, 8) if product.times >= 1]
    rest = gpu.flops(16, 8, policy_delay=1) - sum(always)
    assert gpu.flops(16, 8) == sum(always) + rest / gpu.POLICY_DELAY


def test_the_bytes_of_an_update_are_those_that_are_sent(gpu):
    for place in (None, "cpu:0"):
        agent = gpu.filled_agent(16, 8, "cpu:0", place, 1000)
        packed, _ = agent.data.sample_for_update(0, 3)
        assert sum(part.nbytes for part in packed) == 3 * gpu.bytes_sent(8, place is not None)


def test_the_report_of_a_gpu_compares_it_with_one_core(gpu):
    size = {"part": "updates", "width": 1024, "batch": 2048}
    there = {"place": "gpu:0", "tf32": True}
    work = gpu.flops(1024, 2048)
    records = [
        {"part": "tests", "status": 0, "said": "7 passed"},
        {"part": "rates", **there, "flops_per_second": 100 * work},
        size | there | {"replay": "host", "updates_per_second": 20.0, "peak_device_bytes": 2_000_000},
        size | there | {"replay": "device", "updates_per_second": 40.0, "peak_device_bytes": 3_000_000},
        size | {"place": "one core", "updates_per_second": 1.0},
        size | {"place": "all cores", "left_out": "it is slow"},
        {"part": "steps", **there, "replay": "host", "steps_per_second": 500.0},
        {"part": "steps", "place": "one core", "steps_per_second": 700.0},
    ]
    text = gpu.report(records, "gpu:0")
    assert "| 1024 | 2,048 | 50.3 | 20 | 40 | 1 |  |" in text
    assert "gpu:0, TF32 on, replay on device is 40 times as fast as one core (reaches the goal of 20)" in text
    assert "takes 2.5 times as long as its matrix products" in text and "(reaches the goal of at most 3)" in text
    assert "500 steps/s on gpu:0, slower than: stay on the CPU (700 steps/s)" in text
    assert "3 MB: gpu:0, TF32 on, replay on device, width 1024, batch 2,048" in text
    records[3]["updates_per_second"] = 10.0
    lines = gpu.verdicts(records, "gpu:0")
    assert "host is 20 times" in lines[0] and "5 times" in lines[1] and "misses the goal of at most 3" in lines[1]


def test_estimates_show_where_a_gpu_pays(gpu):
    assert gpu.estimate(64, 64, True) > gpu.estimate_on_core(64, 64)
    assert 20 * gpu.estimate(1024, 2048, True) < gpu.estimate_on_core(1024, 2048)
    for batch in (256, 16384):
        assert gpu.estimate(256, batch, True) < gpu.estimate(256, batch, False)


def test_what_was_measured_is_not_measured_again(gpu):
    arguments = gpu.with_defaults(gpu.parser().parse_args(["--quick", "--batches", "8", "16"]))
    place = {"place": "one core"}
    assert [each["batch"] for each in gpu.missing([], "updates", place, arguments)] == [8, 16]
    records = [{"part": "updates", "place": "one core", "width": 16, "batch": 8, "updates_per_second": 3.0}]
    assert gpu.missing(records, "updates", place, arguments) == [{"part": "updates", **place, "width": 16, "batch": 16}]
    assert len(gpu.missing(records, "updates", {"place": "all cores"}, arguments)) == 2
    assert gpu.missing(records, "steps", place, arguments) == [{"part": "steps", **place}]


@pytest.mark.slow
def test_measurements_on_a_device_are_saved(tmp_path):
    command = [sys.executable, str(FOLDER / "gpu.py"), "--quick", "--device", "cpu:0", "--part", "rates"]
    results = []
    for _ in range(2):
        subprocess.run([*command, "--out", str(tmp_path / "out")], check=True, capture_output=True)
        results.append((tmp_path / "out.json").read_text())
    assert results[0] == results[1]
    assert [record["tf32"] for record in json.loads(results[0])] == [True, False]
    assert all(record["flops_per_second"] > 1e8 for record in json.loads(results[0]))
    assert "flops_per_second" in (tmp_path / "out.md").read_text()
