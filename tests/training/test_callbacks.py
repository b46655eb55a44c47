"""Each of Keras' own callbacks in a real `fit`: it works, or its error says why not and what to use."""

import csv
import json
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tfdpg.training.callbacks import ProgressLogger, StopAtReturn


def fit(callbacks, epochs=3, agent=None, verbose=0, learns=False, initial_epoch=0, kind=tfdpg.DDPG, **changes):
    """Without updates where a callback does not look at them, and else with few that are not compiled."""
    agent = agent or kind(Counter(), **SMALL | (EAGER if learns else {"update_after": 1000}) | changes)
    options = {"epochs": epochs, "steps_per_epoch": 20, "callbacks": callbacks, "verbose": verbose}
    options |= {"initial_epoch": initial_epoch}
    options |= {"validation_env": Counter(), "validation_episodes": 1}
    return agent, fit_briefly(agent, Counter(), **options)


def rates(agent):
    return [round(float(optimizer.learning_rate.numpy()), 8) for optimizer in agent.optimizer.optimizers]


def scalars(directory, suffix=".v2"):
    found = {}
    for file in directory.glob(f"*{suffix}"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                kind = value.metadata.plugin_data.plugin_name
                found.setdefault((kind, value.tag), {})[event.step] = tf.make_ndarray(value.tensor)
    return found


def test_csv_logger(tmp_path):
    agent, history = fit([keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))], learns=True)
    fit([keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)], epochs=2, agent=agent)
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(float(row["env_steps"])) for row in rows] == [20, 40, 60, 80, 100]
    assert {"return", "loss_q", "q1", "steps_per_second", "val_return"} <= set(rows[0])
    assert float(rows[2]["val_return"]) == history.history["val_return"][2]


def test_history_is_returned_and_kept():
    own = keras.callbacks.History()
    agent, history = fit([own])
    assert history is own is agent.history
    assert history.epoch == [0, 1, 2]


def test_tensorboard(tmp_path):
    callbacks = [
        keras.callbacks.TensorBoard(str(path), update_freq=freq, histogram_freq=1, write_steps_per_second=True)
        for path, freq in ((tmp_path, 1), (tmp_path / "epoch", "epoch"))
    ]
    agent, history = fit(callbacks, learns=True)
    for_each_epoch = scalars(tmp_path / "epoch/train")
    assert not [tag for _, tag in for_each_epoch if tag.startswith("batch_")]
    assert len(for_each_epoch["scalars", "epoch_loss_q"]) == 3
    train = scalars(tmp_path / "train")
    validation = scalars(tmp_path / "validation")
    assert {step: float(value) for step, value in train["scalars", "epoch_return"].items()} == {0: 15, 1: 15, 2: 15}
    np.testing.assert_allclose(float(train["scalars", "epoch_loss_q"][2]), history.history["loss_q"][2], rtol=1e-6)
    assert float(validation["scalars", "epoch_return"][1]) == 15
    assert {f"epoch_learning_rate_{name}_adam" for name in agent.networks} <= {tag for _, tag in train}
    histograms = [tag for kind, tag in train if kind == "histograms"]
    assert len(histograms) == sum(len(layer.weights) for layer in agent.layers) > 0
    assert len(train["scalars", "batch_env_steps"]) == 12


def test_tensorboard_graph_of_the_update(tmp_path):
    fit([keras.callbacks.TensorBoard(str(tmp_path), write_graph=True)], update_after=0, start_steps=0)
    graphs = [
        event
        for file in (tmp_path / "train").glob("*.v2")
        for record in tf.data.TFRecordDataset(str(file))
        if (event := tf.compat.v1.Event.FromString(record.numpy())).graph_def
    ]
    assert graphs


def test_model_checkpoint_of_weights(tmp_path):
    path = tmp_path / "{epoch}.weights.h5"
    agent, _ = fit([keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)])
    other = tfdpg.DDPG(Counter(), **SMALL, seed=3)
    other.load_weights(tmp_path / "3.weights.h5")
    for a, b in zip(agent.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (tmp_path / "1.weights.h5").exists()


def test_model_checkpoint_of_everything(tmp_path):
    callback = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_return", save_best_only=True)
    fit([callback])
    assert tfdpg.load_agent(tmp_path / "best.keras").env_steps == 20


def test_model_checkpoint_by_environment_steps(tmp_path):
    path = tmp_path / "{env_steps}.weights.h5"
    fit([keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True, save_freq=10)])
    assert {file.name for file in tmp_path.iterdir()} == {f"{n}.0.weights.h5" for n in (10, 20, 30, 40, 50, 60)}


def test_early_stopping_restores_the_best_weights():
    class Falling(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = -epoch
            if epoch == 0:
                self.weights = self.model.get_weights()

    falling = Falling()
    stopping = keras.callbacks.EarlyStopping("score", mode="max", patience=2, restore_best_weights=True)
    agent, history = fit([falling, stopping], epochs=9, learns=True)
    assert len(history.epoch) == 3
    for a, b in zip(agent.get_weights(), falling.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    observation = np.array([[1.0, 2.0]], np.float32)
    np.testing.assert_allclose(agent.act(observation, explore=False), agent.predict(observation), rtol=1e-4, atol=1e-6)


def test_backup_and_restore_goes_on_at_the_epoch(tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit([keras.callbacks.BackupAndRestore(str(tmp_path / "backup")), Crash()])
    agent, history = fit([keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))])
    assert history.epoch == [2]
    assert agent.env_steps == 20  # weights come back; replay and counters do not: use tfdpg.callbacks.Checkpoint


def test_reduce_lr_on_plateau_moves_every_optimizer():
    callback = keras.callbacks.ReduceLROnPlateau("val_return", factor=0.5, patience=1)
    agent, history = fit([callback], pi_lr=1e-3, q_lr=4e-3)
    assert rates(agent) == [2.5e-4, 1e-3]
    np.testing.assert_allclose(history.history["learning_rate_q1_adam"], [4e-3, 4e-3, 2e-3], rtol=1e-6)


def test_learning_rate_scheduler_takes_effect_without_a_new_trace():
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.0 if epoch else rate)
    agent, _ = fit([scheduler], 2, learns=True, run_eagerly=False)
    assert rates(agent) == [0.0, 0.0]
    before = agent.networks["q1"].get_weights()
    agent.learn(updates=3)
    for a, b in zip(before, agent.networks["q1"].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert agent.train_function.experimental_get_tracing_count() == 1


def test_a_learning_rate_below_0_is_refused():
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 1e-3 * (1 - epoch))
    agent = tfdpg.DDPG(Counter(), **SMALL | EAGER)
    with pytest.raises(ValueError, match="The learning rate of the optimizer 'pi_adam' must be at least 0.*: -0.001"):
        fit([scheduler], agent=agent)
    assert agent.epoch == 2


def test_callbacks_of_others_read_the_configuration_of_each_optimizer():
    agent = tfdpg.DDPG(Counter(), **SMALL, pi_lr=1e-3, q_lr=4e-3)
    config = agent.optimizer.get_config()
    assert {name: round(each["learning_rate"], 8) for name, each in config.items()} == {
        "pi_adam": 1e-3,
        "q1_adam": 4e-3,
    }
    assert not hasattr(agent.optimizer, "learning_rate")
    with pytest.raises(AttributeError, match="`agent.optimizers`"):
        _ = agent.optimizer.learning_rate


@pytest.mark.slow
def test_terminate_on_nan():
    class Diverge(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if logs["env_steps"] == 35:
                logs["loss"] = np.nan

    agent, history = fit([keras.callbacks.TerminateOnNaN()], learns=True)
    assert len(history.epoch) == 3
    agent, history = fit([Diverge(), keras.callbacks.TerminateOnNaN()], epochs=9)
    assert len(history.epoch) == 2 and agent.env_steps == 35


def test_lambda_callback_sees_every_hook():
    seen = []
    hooks = ("epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end")
    callback = keras.callbacks.LambdaCallback(
        **{f"on_{hook}": lambda index, logs, hook=hook: seen.append(hook) for hook in hooks},
        on_train_begin=lambda logs: seen.append("train_begin"),
        on_train_end=lambda logs: seen.append("train_end"),
    )
    fit([callback], epochs=1)
    assert seen == [
        "train_begin",
        "epoch_begin",
        *["train_batch_begin", "train_batch_end"] * 4,
        "epoch_end",
        "train_end",
    ]


def test_progbar_logger_of_one_s_own(capsys):
    fit([keras.callbacks.ProgbarLogger()], epochs=1, verbose=2)
    shown = capsys.readouterr().out
    assert shown.count("20/20") == 1 and "steps_per_second" in shown
    fit([], epochs=1, verbose=2)
    assert "steps_per_second" not in capsys.readouterr().out


@pytest.mark.slow
def test_remote_monitor():
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"
    fit([keras.callbacks.RemoteMonitor(root, path="/", send_as_json=True)], update_after=0, start_steps=0)
    server.shutdown()
    server.server_close()
    assert [row["epoch"] for row in received] == [0, 1, 2] and received[0]["val_return"] == 15


def test_orbax_checkpoint_is_refused_with_what_to_use(tmp_path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            callback = keras.callbacks.OrbaxCheckpoint(str(tmp_path))
    except ImportError as error:
        assert "orbax" in str(error).lower()
        callback = keras.callbacks.OrbaxCheckpoint.__new__(keras.callbacks.OrbaxCheckpoint)
    with pytest.raises(ValueError, match="OrbaxCheckpoint cannot .*tfdpg.callbacks"):
        fit([callback])


def test_checkpoint_every_and_keep(tmp_path):
    fit(
        [tfdpg.callbacks.Checkpoint(tmp_path / "all", every=2, keep=None), tfdpg.callbacks.Checkpoint(tmp_path / "two")]
    )
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"40", "60"}
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"40", "60"}
    assert tfdpg.load_agent(tmp_path / "two/60").epoch == 3


def test_checkpoint_refuses_the_directory_of_another_training(tmp_path):
    agent, _ = fit([tfdpg.callbacks.Checkpoint(tmp_path)])
    fit([tfdpg.callbacks.Checkpoint(tmp_path)], agent=agent, epochs=1)
    with pytest.raises(ValueError, match=r"another training run.*\[60, 80\].* 0 env"):
        fit([tfdpg.callbacks.Checkpoint(tmp_path)])
    assert tfdpg.load_agent(tmp_path / "80").env_steps == 80


@pytest.mark.slow
def test_export_best_exports_improvements_only(tmp_path):
    class Score(keras.callbacks.Callback):
        def __init__(self, scores):
            super().__init__()
            self.scores = iter(scores)

        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = next(self.scores)

    def best(scores, keep):
        return [Score(scores), tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="score", keep=keep)]

    agent, _ = fit(best([1.0, 0.5, 2.0], keep=None), learns=True, update_every=20)
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["1", "2"]
    assert tfdpg.load(tmp_path / "best").metadata["scores"]["score"] == 2.0
    fit(best([1.5, 3.0], keep=1), epochs=2, agent=agent)  # a resumed training run must exceed 2.0
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["3"]
    policy = tfdpg.load(tmp_path / "best")
    assert policy.metadata["scores"]["score"] == 3.0
    np.testing.assert_allclose(policy(np.ones((2, 2))), agent.predict(np.ones((2, 2))), rtol=1e-4, atol=1e-5)


def test_the_best_may_have_the_smallest_value(tmp_path):
    best = tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="env_steps", keep=None, mode="min")
    agent, _ = fit([best])
    assert best.best == 20 and [path.name for path in (tmp_path / "best").iterdir()] == ["1"]
    again = tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="env_steps", keep=None, mode="min")
    fit([again], epochs=1, agent=agent)
    assert again.best == 20 and [path.name for path in (tmp_path / "best").iterdir()] == ["1"]
    with pytest.warns(UserWarning, match="version 1 of an earlier training run, with env_steps=20"):
        fit([again], epochs=1)  # a new agent
    with pytest.raises(ValueError, match="`mode` must be 'max' or 'min'"):
        tfdpg.callbacks.ExportBest(tmp_path / "best", mode="auto")


def test_a_damaged_best_is_named_and_beaten(tmp_path):
    best = tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="env_steps")
    agent, _ = fit([best], epochs=1)
    (tmp_path / "best/1/tfdpg.json").write_text("{}")
    with pytest.warns(UserWarning, match="best score .*is unknown: .*best/1/"):
        fit([tfdpg.callbacks.ExportBest(tmp_path / "best", monitor="env_steps")], epochs=1, agent=agent)
    assert tfdpg.load(tmp_path / "best").metadata["scores"]["env_steps"] == 40


def test_export_best_without_its_log():
    with pytest.raises(ValueError, match="'no_such_log'.*such as 'val_return'"):
        fit([tfdpg.callbacks.ExportBest("unused", monitor="no_such_log")])


def test_stop_at_return():
    assert len(fit([StopAtReturn(15)])[1].epoch) == 1
    assert len(fit([StopAtReturn(15.1)])[1].epoch) == 3
    with pytest.raises(ValueError, match="StopAtReturn monitors 'test_return'"):
        fit([StopAtReturn(15, monitor="test_return")])


SPINNING_UP = (
    "Epoch AverageEpRet StdEpRet MaxEpRet MinEpRet AverageTestEpRet StdTestEpRet MaxTestEpRet MinTestEpRet EpLen "
    "TestEpLen TotalEnvInteracts AverageQ1Vals StdQ1Vals MaxQ1Vals MinQ1Vals AverageQ2Vals StdQ2Vals MaxQ2Vals "
    "MinQ2Vals LossPi LossQ Time"
).split()


def test_epoch_logger_is_spinning_up_s(tmp_path):
    path = tmp_path / "progress.txt"
    agent, history = fit([tfdpg.callbacks.EpochLogger(path)], learns=True, kind=tfdpg.TD3)
    fit([tfdpg.callbacks.EpochLogger(path, append=True)], epochs=1, agent=agent)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert lines[0] == SPINNING_UP and len(lines) == 5
    rows = [dict(zip(SPINNING_UP, map(float, line), strict=True)) for line in lines[1:]]
    assert [row["Epoch"] for row in rows] == [1, 2, 3, 1]
    assert [row["TotalEnvInteracts"] for row in rows] == [20, 40, 60, 80]
    assert rows[0]["AverageEpRet"] == rows[0]["AverageTestEpRet"] == rows[0]["MaxEpRet"] == 15
    assert rows[2]["StdQ2Vals"] == history.history["q2_std"][2] and rows[2]["LossQ"] == history.history["loss_q"][2]
    assert rows[1]["MinQ1Vals"] < rows[1]["AverageQ1Vals"] < rows[1]["MaxQ1Vals"]
    assert 0 < rows[0]["Time"] < rows[2]["Time"]
    path.write_text("Epoch\tAverageQ2Vals\tLossQ\n")  # a file whose columns are those of another agent
    _, history = fit([tfdpg.callbacks.EpochLogger(path, append=True)], epochs=1, learns=True)
    assert path.read_text().splitlines()[1:] == [f"1\tnan\t{history.history['loss_q'][0]}"]


def test_the_kind_of_a_file_or_directory_is_checked_before_training(tmp_path):
    (tmp_path / "file").touch()
    for make in (tfdpg.callbacks.EpochLogger, lambda path: fit([ProgressLogger(str(path))])):
        with pytest.raises(ValueError, match=f"`filename` must be a file .* Received a directory: {tmp_path}$"):
            make(tmp_path)
        with pytest.raises(ValueError, match="`filename` must be a file .*/file/x, and .*/file is a file$"):
            make(tmp_path / "file" / "x")
    for kind in (tfdpg.callbacks.Checkpoint, tfdpg.callbacks.ExportBest, tfdpg.callbacks.ScalarWriter):
        with pytest.raises(ValueError, match="`(directory|log_dir)` must be a directory .*Received a file: .*/file$"):
            kind(tmp_path / "file")
    fit([tfdpg.callbacks.EpochLogger(tmp_path / "new" / "progress.txt")], epochs=1)
    assert len((tmp_path / "new" / "progress.txt").read_text().splitlines()) == 2


def test_a_directory_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # the user may be root, who may write anywhere
    with pytest.raises(ValueError, match="`filename` must be a file that you may write to. Received: .*/x.txt"):
        tfdpg.callbacks.EpochLogger(tmp_path / "x.txt")


def test_progress_goes_on_with_a_file_of_other_columns(tmp_path):
    file = tmp_path / "progress.csv"
    file.write_text("epoch,gone,loss_q,val_return\n0,7.5,0.25,-3.0\n")
    fit([ProgressLogger(str(file), append=True)], epochs=2)
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["epoch"] for row in rows] == ["0", "0", "1"] and all(None not in row for row in rows)
    assert (rows[0]["gone"], rows[0]["loss_q"], rows[0]["env_steps"]) == ("7.5", "0.25", "nan")
    assert [row["gone"] for row in rows[1:]] == ["nan", "nan"] and float(rows[2]["env_steps"]) == 40
    assert [float(row["val_return"]) for row in rows] == [-3, 15, 15]
    assert list(rows[0]) == ["epoch", *sorted(set(rows[0]) - {"epoch"})]


def test_progress_gets_the_columns_of_a_later_epoch(tmp_path):
    class Late(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                logs["late"] = 2.5

    fit([Late(), ProgressLogger(str(tmp_path / "progress.csv"), append=True)], epochs=3)
    with open(tmp_path / "progress.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["epoch"], row["late"]) for row in rows] == [("0", "nan"), ("1", "2.5"), ("2", "nan")]
    assert [float(row["env_steps"]) for row in rows] == [20, 40, 60] and all(None not in row for row in rows)


def test_tables_lose_lines_of_epochs_that_were_not_saved(tmp_path):
    names = {"progress.csv": lambda file: ProgressLogger(str(file), append=True)}
    names["progress.txt"] = lambda file: tfdpg.callbacks.EpochLogger(file, append=True)
    before = {}
    for name, logger in names.items():
        agent, _ = fit([logger(tmp_path / name), tfdpg.callbacks.Checkpoint(tmp_path / name[-3:], keep=None)])
        before[name] = (tmp_path / name).read_text()
        with open(tmp_path / name, "a") as file:
            file.write("3")  # which a kill tore off
        fit([logger(tmp_path / name)], agent=tfdpg.load_agent(tmp_path / name[-3:] / "40"), initial_epoch=2)
        lines = before[name].splitlines()
        others = (tmp_path / name).read_text().splitlines()
        assert lines[:3] == others[:3] and len(lines) == len(others) == 4
        fit([logger(tmp_path / name)], epochs=1)  # of a new agent, which has another past
        assert (tmp_path / name).read_text().splitlines()[:4] == others
