"""What TensorBoard reads, from real event files."""

import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context

import tfdpg
from tests.agents.roster import EAGER, SMALL, brief
from tests.environments import Counter

pytestmark = brief


def fit(agent, log_dir, epochs=2, steps=50, interval=20, callbacks=(), **options):
    writer = tfdpg.callbacks.ScalarWriter(log_dir, write_interval=interval)
    options |= {"validation_env": Counter(), "validation_episodes": 1, "verbose": 0}
    return agent.fit(Counter(), epochs=epochs, steps_per_epoch=steps, callbacks=[*callbacks, writer], **options)


def scalars(log_dir):
    """What is in the event files: for each tag its steps and values, in the order in which the files were written."""
    found = collections.defaultdict(list)
    for file in sorted(log_dir.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found[value.tag].append((event.step, tf.make_ndarray(value.tensor).item()))
    return dict(found)


def steps(found, tag):
    return [step for step, _ in found[tag]]


def values(found, tag):
    return [value for _, value in found[tag]]


def test_a_run_has_one_x_axis_a_prefix_for_each_tag_and_nothing_twice(tmp_path):
    agent = tfdpg.DDPG(Counter(), **SMALL, act_noise_schedule=tfdpg.exploration.Linear(1.0, 0.0, 100))
    history = fit(agent, tmp_path).history
    assert [path.suffix for path in tmp_path.iterdir()] == [".tfdpg"]
    found = scalars(tmp_path)
    assert {tag.split("/")[0] for tag in found} == {"train", "validation", "time", "diagnosis"}
    assert all(len(set(steps(found, tag))) == len(found[tag]) for tag in found)
    update_phases = (
        "train/return",
        "time/steps_per_second",
        *(f"diagnosis/{log}" for log in ("loss_q", "q1", "td_error", "noise_factor", "learning_rate_pi_adam")),
    )
    for tag in update_phases:
        assert steps(found, tag) == [20, 40, 60, 80, 100], tag
    epochs = "train/episode_length", "train/return_std", "diagnosis/q1_std", "validation/return"
    for tag in (*epochs, "validation/episode_length", "validation/best_return"):
        assert steps(found, tag) == [50, 100], tag
    logged = {log.removeprefix("val_") for log in history} - {"env_steps"}
    own = {"noise_factor", "best_return", *(f"learning_rate_{name}_adam" for name in agent.networks)}
    assert {tag.split("/")[1] for tag in found} == logged | own
    assert values(found, "diagnosis/noise_factor") == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    np.testing.assert_allclose(values(found, "validation/return"), history["val_return"], rtol=1e-6)


def test_what_rounds_log_is_averaged_over_the_interval(tmp_path):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs)

    fit(tfdpg.DDPG(Counter(), **SMALL, **EAGER), tmp_path, epochs=1, callbacks=[Watch()])
    found = scalars(tmp_path)
    losses = [logs.get("loss_q", np.nan) for logs in seen]
    assert [logs["env_steps"] for logs in seen[4:8]] == [25, 30, 35, 40] and np.isfinite(losses[4:8]).all()
    assert dict(found["diagnosis/loss_q"])[40] == pytest.approx(np.mean(losses[4:8]), rel=1e-6)
    assert dict(found["diagnosis/loss_q"])[50] == pytest.approx(np.mean(losses[8:10]), rel=1e-6)  # the end of training


def test_steps_after_the_last_update_phase_are_not_averaged(tmp_path):
    """In real time, the control loop may take some while training ends."""

    class OneMore(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.data.schedule.env_steps += 1

    agent = tfdpg.DDPG(Counter(), **SMALL, **EAGER)
    fit(agent, tmp_path, epochs=1, steps=40, callbacks=[OneMore()])
    assert agent.env_steps == 41 and steps(scalars(tmp_path), "train/return") == [20, 40]


def test_the_best_return_outlives_worse_ones_and_what_was_not_measured_is_left_out(tmp_path):
    class Score(keras.callbacks.Callback):
        scores = iter([1.0, 3.0, 2.0, 2.5])

        def on_epoch_end(self, epoch, logs=None):
            logs["val_return"] = next(self.scores)

    agent = tfdpg.DDPG(Counter(), **SMALL | {"update_after": 1000})
    fit(agent, tmp_path, epochs=3, callbacks=[Score()])
    fit(agent, tmp_path, epochs=1, callbacks=[Score()])
    found = scalars(tmp_path)
    assert values(found, "validation/best_return") == [1, 3, 3, 3] and values(found, "validation/return")[-1] == 2.5
    assert "diagnosis/q1_std" not in found and not any(math.isnan(v) for tag in found for v in values(found, tag))


def test_a_training_that_goes_on_replaces_what_was_written_of_later_steps(tmp_path):
    def untimed(log_dir):
        return {tag: written for tag, written in scalars(log_dir).items() if not tag.startswith("time/")}

    agent = tfdpg.DDPG(Counter(), **SMALL | {"update_after": 1000})
    fit(agent, tmp_path / "whole")
    agent.save(tmp_path / "saved")
    fit(agent, tmp_path / "whole")

    (tmp_path / "cut").mkdir()
    for file in sorted((tmp_path / "whole").iterdir()):
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes())
    killed = max((tmp_path / "cut").iterdir())
    killed.write_bytes(killed.read_bytes()[:-10])  # its process was killed while it wrote
    others = tf.summary.create_file_writer(str(tmp_path / "cut"), filename_suffix=".of_others")
    with others.as_default(step=10_000):
        tf.summary.scalar("of_others", 1.0)
    others.close()
    fit(tfdpg.load_agent(tmp_path / "saved"), tmp_path / "cut")
    found = untimed(tmp_path / "cut")
    lost = untimed(tmp_path / "whole")
    assert found.pop("of_others") == [(10_000, 1.0)]
    assert found == lost and steps(lost, "validation/return") == [50, 100, 150, 200]


def test_a_training_that_begins_leaves_what_is_there(tmp_path):
    for _ in range(2):
        fit(tfdpg.DDPG(Counter(), **SMALL | {"update_after": 1000}), tmp_path, epochs=1)
    assert steps(scalars(tmp_path), "validation/return") == [50, 50]


def hparams_tab(log_dir):
    """What TensorBoard's HPARAMS tab is told: the columns, and a row for each run."""
    runs = EventMultiplexer()
    runs.AddRunsFromDirectory(str(log_dir))
    runs.Reload()
    provider = MultiplexerDataProvider(runs, str(log_dir))
    request = RequestContext()
    context = Context(TBContext(data_provider=provider, logdir=str(log_dir)))
    experiment = context.experiment_from_metadata(request, "", True, context.hparams_metadata(request, ""), [])
    columns = [api_pb2.ColParams(metric=metric.name) for metric in experiment.metric_infos]
    list_request = api_pb2.ListSessionGroupsRequest(
        slice_size=9, allowed_statuses=[0, 1, 2, 3], col_params=columns, include_metrics=True
    )
    rows = list_session_groups.Handler(request, context, "", list_request).run().session_groups
    return experiment.hparam_infos, rows


def test_the_hparams_tab_compares_seeds_and_settings(tmp_path):
    for seed, gamma in ((0, 0.99), (1, 0.9)):
        env = Counter()
        env.spec = type("EnvSpec", (), {"id": "Counter-v0", "kwargs": {"length": 5}})
        agent = tfdpg.TD3(env, **SMALL | {"update_after": 1000}, seed=seed, gamma=gamma)
        fit(agent, tmp_path / f"seed-{seed}")
        fit(agent, tmp_path / f"seed-{seed}", epochs=1)
    columns, rows = hparams_tab(tmp_path)
    first = {column.name for column in columns if column.differs}
    assert {"agent", "environment", "seed", "hidden_units"} <= first and "polyak" not in first
    assert {"gamma", "polyak", "target_update_every", "length"} <= {column.name for column in columns}
    known = [dict(row.hparams.items()) for row in rows]
    assert [(hp["seed"].number_value, hp["gamma"].number_value) for hp in known] == [(0, 0.99), (1, 0.9)]
    assert (known[0]["agent"].string_value, known[0]["environment"].string_value) == ("TD3", "Counter-v0")
    assert known[0]["hidden_units"].string_value == "(8,)" and known[0]["jit_compile"].bool_value is False
    assert "target_update_every" not in known[0]
    metrics = [{value.name.tag: value.value for value in row.metric_values} for row in rows]
    assert metrics == [{"validation/return": 15, "validation/best_return": 15, "train/return": 15}] * 2


def test_an_infinite_option_is_a_text_for_tensorboard_whose_json_has_none(tmp_path):
    agent = tfdpg.ACER(Counter(), hidden_units=(8,), c=math.inf, n_steps=500, jit_compile=False)
    fit(agent, tmp_path, epochs=1)
    assert hparams_tab(tmp_path)[1][0].hparams["c"].string_value == "inf"


def test_a_description_is_written_once(tmp_path):
    agent = tfdpg.DDPG(Counter(), **SMALL | {"update_after": 1000})
    for _ in range(2):
        fit(agent, tmp_path, epochs=1)
    records = [record.numpy() for file in tmp_path.iterdir() for record in tf.data.TFRecordDataset(str(file))]
    assert sum(b"session_start_info" in record for record in records) == 1


def test_offline_training_is_written_by_updates(tmp_path):
    agent = tfdpg.DDPG(Counter(), **SMALL | {"update_after": 1000})
    agent.fit(Counter(), epochs=1, steps_per_epoch=50, verbose=0)
    for _ in range(2):
        writer = tfdpg.callbacks.ScalarWriter(tmp_path, write_interval=20)
        agent.fit_offline(None, epochs=1, steps_per_epoch=100, validation_env=Counter(), callbacks=[writer], verbose=0)
    found = scalars(tmp_path)
    assert steps(found, "diagnosis/loss_q") == steps(found, "time/updates_per_second") == [50, 100, 150, 200]
    assert steps(found, "validation/return") == [100, 200]
