"""`tfdpg drift`: the arithmetic, and the command with logs and recorded steps."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.training.serving_logs import log_of, write
from tfdpg import cli
from tfdpg.diagnosis import drift
from tfdpg.diagnosis.drift import CANNOT_TELL, DRIFT, NO_DRIFT, compare, compare_all, population_stability_index
from tfdpg.exported.statistics import summarize

SHIPPED = Path(__file__).parents[1] / "exported_models/td3-halfcheetah"


def component(values, steps=1):
    column = np.asarray(values, np.float32)
    return summarize(column, column[:, None])._replace(steps=steps)


def compared(values, reference, of="log", limit=0.2, steps=1):
    return compare("x", np.asarray(values, np.float32), component(reference, steps), (len(reference),) * 2, of, limit)


def test_the_index_of_counts_that_were_compared_by_hand():
    # with half a count added: shares 0.3, 0.7 and 0.5, 0.5: -0.2 ln 0.6 + 0.2 ln 1.4
    assert population_stability_index([2.5, 6.5], [4.5, 4.5]) == pytest.approx(0.2 * np.log(1.4 / 0.6))
    assert population_stability_index([10, 20, 70], [1, 2, 7]) == pytest.approx(0, abs=0.02)
    assert population_stability_index([7, 0], [7, 0]) == 0


def test_the_index_is_the_divergence_in_both_directions():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts, expected = rng.integers(0, 50, (2, 7))
        p, q = ((each + 0.5) / (each + 0.5).sum() for each in (counts, expected))
        both = float(keras.losses.kl_divergence(p, q) + keras.losses.kl_divergence(q, p))
        assert population_stability_index(counts, expected) == pytest.approx(both, rel=1e-5)


def test_the_index_of_normal_distributions_is_that_of_theory():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=200_000)
    for shift in (0.0, 0.3, 0.6):
        found = compared(rng.normal(shift, size=200_000), reference)
        assert found.psi == pytest.approx(shift**2, rel=0.1, abs=1e-3)  # of infinitely many bins, shift^2
        assert found.verdict == (DRIFT if shift > 0.45 else NO_DRIFT)


def test_a_verdict_is_seldom_wrong_and_few_correlated_observations_give_none():
    rng = np.random.default_rng(0)
    reference = component(rng.normal(size=5000), steps=10)
    verdicts = {}
    for shift, count in ((0, 6000), (1, 6000), (0, 100), (0.45, 6000)):
        walks = rng.normal(size=(200, count // 10)).repeat(10, axis=1) + shift  # each value stays for 10 steps
        found = [compare("x", walk, reference, (5000, 50_000), "log", 0.2).verdict for walk in walks.astype(np.float32)]
        verdicts[shift, count] = {each: found.count(each) / 200 for each in (DRIFT, NO_DRIFT, CANNOT_TELL)}
    assert verdicts[0, 6000][NO_DRIFT] == 1 and verdicts[1, 6000][DRIFT] == 1
    assert verdicts[0, 100][CANNOT_TELL] > 0.9
    assert max(verdicts[0.45, 6000][DRIFT], verdicts[0.45, 6000][NO_DRIFT]) < 0.15  # the index is the limit


def test_values_closer_together_than_in_training_are_drift_only_between_logs():
    rng = np.random.default_rng(0)
    training = rng.normal(size=5000)
    narrow = 0.3 + rng.normal(scale=0.1, size=5000)
    assert compared(narrow, training, "log").verdict == DRIFT
    found = compared(narrow, training, "training")
    assert found.verdict == NO_DRIFT and found.is_in_range and found.psi > 0.2
    for moved in (training + 1, training * 2, np.full(5000, 0.3), np.where(training > 1.6, np.nan, training)):
        assert compared(moved, training, "training").verdict == DRIFT
    for moved in (narrow + 0.5, narrow - 1):  # inside the range of the training data, so only the mean tells
        assert compared(moved, training, "training").verdict == DRIFT
    assert compared(narrow[:20], training, "training").verdict == CANNOT_TELL


def test_each_condition_alone_is_drift():
    rng = np.random.default_rng(0)
    training = rng.normal(size=5000)

    def verdict_of(far, share):
        """Return the verdict on values near 0, of which a share is far away on both sides."""
        values = rng.normal(scale=0.1, size=5000)
        values[: round(5000 * share)] = np.resize([far, -far], round(5000 * share))
        return compared(values, training, "training").verdict

    assert (verdict_of(9, 0.04), verdict_of(6, 0.04)) == (DRIFT, NO_DRIFT)  # deviations 1.8 and 1.2
    assert (verdict_of(3, 0.06), verdict_of(3, 0.04)) == (DRIFT, NO_DRIFT)  # shares outside 6 % and 4 %


@pytest.mark.parametrize(
    "changed, outside, missing",
    [
        (lambda x: x + 3, 0.75, 0),
        (lambda x: 2.5 * x, 0.35, 0),
        (lambda x: np.where(np.arange(len(x)) % 20 == 0, np.nan, x), 0.02, 0.05),
        (lambda x: np.full_like(x, 0.1), 0, 0),
    ],
    ids=["offset", "gain", "missing", "stuck"],
)
def test_the_changed_component_comes_first(changed, outside, missing):
    values = np.random.default_rng(0).normal(size=(2, 3, 4000)).astype(np.float32)
    names = "abc"
    reference = {name: component(each) for name, each in zip(names, values[0], strict=True)}
    now = dict(zip(names, values[1], strict=True)) | {"b": changed(values[1, 1])}
    first, *others = compare_all(now, reference, (4000, 4000), "training", 0.2)
    assert (first.name, first.verdict, [each.verdict for each in others]) == ("b", DRIFT, [NO_DRIFT] * 2)
    assert first.outside == pytest.approx(outside, abs=0.03) and first.logged.missing == pytest.approx(missing)
    assert first.is_stuck == (first.logged.deviation == 0)


def test_constants_integers_and_all_missing():
    assert compared([1.0] * 500, [1.0] * 500, "training").verdict == NO_DRIFT
    assert compared([1.5] * 500, [1.0] * 500, "training").verdict == DRIFT
    coins = np.arange(2000) % 2
    assert compared(coins, coins).psi < 1e-6 and compared(coins + 1, coins).verdict == DRIFT
    found = compared([np.nan] * 500, coins, "training")
    assert found.verdict == DRIFT and np.isnan(found.outside) and found.to_json()["mean"] is None
    mass = np.where(np.arange(5000) % 2 == 0, 0.0, np.arange(5000))  # half of the values are equal
    assert compared(mass, mass).psi < 1e-6


def test_a_single_value_is_a_fault_if_there_are_many_independent_observations():
    values = np.random.default_rng(0).normal(size=5000)
    for steps, verdict in ((1, DRIFT), (50, DRIFT), (2000, CANNOT_TELL)):  # a goal may stay the same in an episode
        found = compared(np.full(2000, 0.1), values, "training", steps=steps)
        assert (found.verdict, found.is_stuck) == (verdict, verdict == DRIFT)


def test_narrow_bins_are_joined():
    quantiles = np.array([-5, 0, 0.1, 0.2, 1, 2, 2.1, 3, 3.9, 4, 4.2], np.float32)
    given = component(np.arange(100.0))._replace(quantiles=quantiles)
    assert drift.joined_bins(given, 0.5).tolist() == [0, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5, 6, 7]
    assert drift.joined_bins(given, 0).tolist() == [*range(13)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model directory with two versions, and logs of both: the second version has a fault of a sensor."""
    directory = tmp_path_factory.mktemp("drift")
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL | EAGER | {"start_steps": 600, "update_after": 600, "replay_size": 2000})
    fit_briefly(agent, "Pendulum-v1", epochs=1, steps_per_epoch=600)
    versions = [agent.export(directory / "model") for _ in range(2)]
    signatures = tf.saved_model.load(str(versions[0])).signatures
    seen = agent.replay.transitions()["observations"]
    logs = []
    for i, x in enumerate(np.resize(seen, (4, 300, 3))):
        number, label = 1 + i % 2, ("stable", "canary")[i % 2]
        log, _ = log_of(signatures, "pi", {"x": x + np.float32([0, 0, 20]) * (number == 2)})
        log.predict_log.request.model_spec.version_label = label
        log.predict_log.response.model_spec.version.value = number
        log.log_metadata.sampling_config.sampling_rate = 0.5  # drift does not need every request
        logs.append(log)
    (directory / "logs").mkdir()
    write(directory / "logs/1", logs)
    return directory


def run(capsys, *words):
    status = cli.main(["drift", *map(str, words)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_a_canary_is_split_from_the_stable_version(exported, capsys):
    model, logs = exported / "model", exported / "logs"
    status, text, _ = run(capsys, model, logs)
    stable, canary = text.split("\n\nversion 2 of model (canary): 600 observations of 300 clients\n")
    assert stable.startswith(
        "version 1 of model (stable): 600 observations of 300 clients\ncompared with 600 of the 600 training steps"
    )
    assert f"steps of {model}/1\n" in stable and f"steps of {model}/2\n" in canary and "drift of x[2]" not in stable
    assert status == 1 and canary.splitlines()[2].startswith("x[2]") and "drift of x[2] (PSI" in canary
    for selection in (["--version", "2"], ["--label", "canary"]):
        status, text, _ = run(capsys, model, logs, *selection, "--json")
        (only,) = json.loads(text)["logs"]
        assert status == 1 and (only["version"], only["labels"], only["observations"]) == (2, ["canary"], 600)
        worst = only["components"]["observations"][0]
        assert (worst["name"], worst["verdict"], worst["missing"]) == ("x[2]", "drift", 0) and worst["outside"] > 0.9
    status, _, error = run(capsys, model, logs, "--label", "other")
    assert status == 2 and "which have the versions [1, 2] and the labels ['canary', 'stable']" in error
    status, text, _ = run(capsys, model, logs, "--label", "stable", "--fail-above", "5")
    assert status == 0 and text.endswith("no drift (PSI, --fail-above 5)\n")


@pytest.mark.slow
def test_actions_are_compared_on_the_requests_of_one_version(exported, capsys):
    models = [str(exported / f"model/{number}") for number in (1, 2)]
    for words, count in ((["--version", "1"], 600), (["--label", "canary"], 600), ([], 1200)):
        assert cli.main(["compare", *models, "--log", str(exported / "logs"), *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["observations"] == count
    assert cli.main(["compare", *models, "--label", "canary"]) == 1
    assert "`--version` and `--label` select requests" in capsys.readouterr().err


@pytest.mark.slow
def test_another_log_may_be_the_reference(exported, tmp_path, capsys):
    model = exported / "model"
    words = ["evaluate", str(model), "--episodes", "10", "--record", str(tmp_path / "steps")]
    assert cli.main(words) == 0
    capsys.readouterr()
    status, text, _ = run(capsys, model, tmp_path / "steps", "--reference", tmp_path / "steps", "--fail-above", "1")
    assert status == 0 and "x[0]  0.000" in text and "a[0]  0.000" in text and "2,000 observations in" in text
    for form in ("0000.npz", "0000.csv"):
        assert "log: 200 observations" in run(capsys, model, tmp_path / f"steps/{form}")[1]
    status, _, error = run(capsys, model, tmp_path / "steps", "--version", "1")
    assert status == 2 and "recorded steps have neither" in error


@pytest.mark.slow
def test_a_picture_is_drawn(exported, tmp_path, capsys):
    status, text, _ = run(capsys, exported / "model", exported / "logs", "--plot", tmp_path / "drift.png")
    assert status == 1 and text.endswith(f"wrote {tmp_path}/drift.png\n")
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")
    status, _, error = run(capsys, exported / "model", exported / "logs", "--plot", tmp_path / "drift.txt")
    assert status == 2 and "`plot` must end in one of" in error


def test_what_cannot_be_compared_has_status_2(exported, tmp_path, capsys):
    model, logs = exported / "model", exported / "logs"
    tfdpg.export.copy(model / "1", tmp_path / "damaged")
    file = tmp_path / "damaged/1/statistics.json"
    file.write_text(file.read_text().replace('"rows": 600', '"rows": 700'))
    np.savez(tmp_path / "cheetah.npz", observations=np.zeros((2, 17)), actions=np.zeros((2, 6)))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/0000.npz").symlink_to(tmp_path)
    np.savez(tmp_path / "objects.npz", observations=np.array([None]), actions=np.zeros((1, 1)))
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("observations.npy", "text")
    (tmp_path / "no.npz").write_text("text")
    for words, message in (
        ([tmp_path, logs], f"No exported model in {tmp_path}"),
        ([model], "LOG is missing"),
        ([model, tmp_path / "nowhere"], "nowhere does not exist"),
        ([model, logs, "--fail-above", "0"], "`fail_above` must be"),
        ([model, logs, "--version", "-1"], "`version` must be"),
        ([tmp_path / "damaged", logs], f"{file} is damaged"),
        ([SHIPPED, tmp_path / "cheetah.npz"], "has no statistics.json: the replay buffer was empty"),
        ([SHIPPED, tmp_path / "cheetah.npz", "--fail-above", "inf"], "`fail_above` must be"),
        ([SHIPPED, logs], "the input `x` must be of shape"),
        ([model, tmp_path / "steps"], "0000.npz is a symbolic link"),
        ([model, tmp_path / "objects.npz"], "objects.npz is damaged"),
        ([model, tmp_path / "text.npz"], "text.npz is damaged"),
        ([model, tmp_path / "no.npz"], "no.npz is damaged"),
        ([model, logs, "--json", "--reference", tmp_path / "nowhere"], "nowhere does not exist"),
    ):
        status, text, error = run(capsys, *words)
        assert (status, text) == (2, "") and message in error, error


FAULTS = {
    "none": (lambda x: x, 30, 0, None),
    "offset": (lambda x: x + np.float32([0.3, 0, 0]), 10, 1, "x[0]"),
    "gain": (lambda x: x * np.float32([1.3, 1, 1]), 10, 1, "x[0]"),
    "stuck": (lambda x: np.float32([x[0], x[1], 0.5]), 10, 1, "x[2]"),
}
"""For each fault of a sensor: what the policy receives, episodes, the exit status, and the worst component."""


@pytest.mark.slow
def test_faults_of_sensors_are_found_in_the_log_of_a_server(tmp_path, capsys):
    agent = tfdpg.TD3("Pendulum-v1", seed=0, hidden_units=(64, 64), start_steps=1000)
    agent.fit("Pendulum-v1", epochs=1, steps_per_epoch=15_000, verbose=0, validation_env=None)
    agent.export(tmp_path / "td3")
    for name, (fault, episodes, status, worst) in FAULTS.items():
        logs = tmp_path / name
        command = [sys.executable, "-m", "tfdpg", "serve", tmp_path / "td3", "--port", "0", "--grpc-port", "0"]
        with subprocess.Popen([*command, "--log", logs], stdout=subprocess.PIPE, text=True) as server:
            try:
                line = ""
                while "REST at" not in line:
                    line = server.stdout.readline()
                    assert line
                url = f"{re.search(r'http://[^,]+', line)[0]}:predict"
                assert any("ready" in line for line in server.stdout)
                env = gym.make("Pendulum-v1")
                for episode in range(episodes):
                    observation, _ = env.reset(seed=1000 + episode)
                    is_over = False
                    while not is_over:
                        body = json.dumps({"instances": [fault(observation).tolist()]}).encode()
                        with urllib.request.urlopen(url, body, timeout=60) as response:
                            (action,) = json.load(response)["predictions"]
                        observation, _, terminated, truncated, _ = env.step(np.float32(action))
                        is_over = terminated or truncated
                server.send_signal(signal.SIGINT)
                assert server.wait(60) == 0
            finally:
                server.kill()
        found = run(capsys, tmp_path / "td3", logs, "--json")
        assert found[0] == status, (name, found)
        (only,) = json.loads(found[1])["logs"]
        assert (only["version"], only["model"], only["observations"]) == (1, "td3", 200 * episodes)
        assert worst in (None, only["components"]["observations"][0]["name"]), (name, found)
    # 5 % NaN, which `tfdpg serve` refuses and TensorFlow Serving answers with NaN
    signatures = tf.saved_model.load(str(tmp_path / "td3/1")).signatures
    seen = np.array(tfdpg.export.read_prediction_logs(tmp_path / "none", agent.spec)["observations"])
    seen[::20, 1] = np.nan
    file = write(tmp_path / "nan", [log_of(signatures, "pi", {"x": seen})[0]])
    status, text, _ = run(capsys, tmp_path / "td3", file, "--json")
    components = json.loads(text)["logs"][0]["components"]
    worst = components["observations"][0]
    assert status == 1 and worst["name"] == "x[1]" and worst["missing"] == pytest.approx(0.05)
    assert components["actions"][0]["missing"] == pytest.approx(0.05)
