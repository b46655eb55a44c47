"""Training on the requests and responses of a served policy: logs of TensorFlow Serving."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tests.training.serving_logs import Client, log_of, write
from tfdpg.export import read_prediction_logs
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.transitions import gather_transitions
from tfdpg.training.data.datasets import load_into

SPEC = tfdpg.Spec.of(Counter())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An exported policy's signatures, as a server has them; its critics and its policy are those of no training."""
    agent = tfdpg.DDPG(Counter(), **SMALL)
    weights = [np.random.default_rng(i).normal(size=w.shape) * 0.3 for i, w in enumerate(agent.get_weights())]
    agent.set_weights(weights)
    return tf.saved_model.load(str(agent.export(tmp_path_factory.mktemp("served") / "model"))).signatures


@pytest.fixture
def two(served, tmp_path):
    """A log of two clients that take turns, not evenly, the clients, and the order of their requests."""
    second = Counter(length=4, ends="truncated")
    second.episode = 9
    clients = Client(Counter(length=3), "a"), Client(second, "b")
    turns = [0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0]
    logs = [clients[turn].step(served, as_numbers=place % 2 == 0) for place, turn in enumerate(turns)]
    x = np.zeros((1, 2), np.float32)
    a = np.zeros((1, 1), np.float32)
    logs.insert(5, log_of(served, "q1", {"x": x, "a": a}, "a")[0])
    logs.insert(9, prediction_log_pb2.PredictionLog(session_run_log=prediction_log_pb2.SessionRunLog()))
    files = write(tmp_path / "1.tfrecord", logs[:6]), write(tmp_path / "2.tfrecord", logs[6:])
    return files, clients, turns


def in_turns(clients, turns, part):
    """A part of what the clients took, in the order of the log."""
    steps = [iter(client.took) for client in clients]
    return np.array([next(steps[turn])[part] for turn in turns])


def rows(buffer):
    """The transitions that a ring holds, each as (s, a, r, discount, s'), in no order."""
    packed = gather_transitions(buffer, buffer.transition_slots(), 1, 0.5)[0]
    weight = buffer.obs_width + buffer.spec.act_dim + 2
    return sorted(map(tuple, np.round(np.delete(packed, weight, axis=1).astype(np.float64), 6).tolist()))


def true_rows(clients):
    """The same of what really happened, but for those that a log cannot have: it lacks the observation after a cut."""
    found = []
    for client in clients:
        for place, (observation, action, reward, terminated, truncated, following) in enumerate(client.took):
            if not truncated and (terminated or place + 1 < len(client.took)):
                discount = 0.0 if terminated else 0.5
                found.append((*observation, *action, reward, discount, *following))
    return sorted(tuple(np.round(np.float64(row), 6).tolist()) for row in found)


def without_ends(rows):
    """A terminal transition's next observation counts for nothing."""
    return [row if row[4] else row[:5] for row in rows]


def test_the_rows_are_those_of_what_happened(two):
    files, clients, turns = two
    rewards, terminations, truncations = (in_turns(clients, turns, part) for part in (2, 3, 4))
    buffer = ReplayBuffer(SPEC, 100)
    data = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
    load_into(buffer, {"prediction_logs": files, **data})
    expected = true_rows(clients)
    assert len(expected) == 11 and len(set(expected)) == 11 == len({row[2] for row in expected})
    assert without_ends(rows(buffer)) == without_ends(expected)
    of_clients = {name: {c.name: [step[i] for step in c.took] for c in clients} for i, name in enumerate(data, start=2)}
    for form in ({"prediction_logs": files[0].parent, **of_clients}, read_prediction_logs(files, SPEC) | data):
        again = ReplayBuffer(SPEC, 100)
        load_into(again, form)
        assert rows(again) == rows(buffer)
    one_after_another = ReplayBuffer(SPEC, 100)
    load_into(one_after_another, {"prediction_logs": files, **data, "client_ids": [0] * len(turns)})
    assert rows(one_after_another) != rows(buffer)


def test_it_trains(two):
    files, clients, turns = two
    agent = tfdpg.DDPG(SPEC, **SMALL, run_eagerly=True, pi_lr=1e-5)  # too slow to come to its bounds
    data = {
        "prediction_logs": files,
        "rewards": in_turns(clients, turns, 2),
        "terminations": in_turns(clients, turns, 3),
    }
    data |= {"truncations": in_turns(clients, turns, 4), "actions": -in_turns(clients, turns, 1)}
    history = agent.fit_offline(data, epochs=1, steps_per_epoch=5, verbose=0)
    assert agent.updates == 5 and np.isfinite(history.history["loss"]).all()
    done = sorted(row[2] for row in rows(agent.replay))
    np.testing.assert_allclose(done, sorted(-row[2] for row in true_rows(clients)), atol=1e-6)  # what was done instead


def test_without_clients_the_order_is_that_of_the_records(served, tmp_path):
    client = Client(Counter(length=3))
    file = write(tmp_path / "log", [client.step(served) for _ in range(8)])
    ends = {"rewards": [step[2] for step in client.took], "terminations": [step[3] for step in client.took]}
    buffer = ReplayBuffer(SPEC, 100)
    load_into(buffer, {"prediction_logs": str(file), **ends})
    assert without_ends(rows(buffer)) == without_ends(true_rows([client])) and len(rows(buffer)) == 7


def test_rows_of_a_request_are_environments_of_their_own(served, tmp_path):
    steps = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    logs = [log_of(served, name, {"x": x}, "robots")[0] for name, x in zip(("", "pi", "pi_and_q"), steps, strict=True)]
    read = read_prediction_logs(write(tmp_path / "log", logs), SPEC)
    assert read["client_ids"] == ["robots", "robots/1"] * 3
    np.testing.assert_array_equal(read["observations"], steps.reshape(6, 2))
    np.testing.assert_allclose(read["actions"], served["pi"](x=steps.reshape(6, 2))["pi"], rtol=1e-5)
    buffer = ReplayBuffer(SPEC, 100)
    no_ends = dict.fromkeys(("terminations", "truncations"), np.zeros(6, bool))
    load_into(buffer, read | {"rewards": np.arange(6)} | no_ends)
    found = [(row[:2], row[3], row[5:]) for row in rows(buffer)]
    assert found == [((0, 1), 0, (4, 5)), ((2, 3), 1, (6, 7)), ((4, 5), 2, (8, 9)), ((6, 7), 3, (10, 11))]


def test_a_dict_observation(tmp_path):
    agent = tfdpg.DDPG(Counter(as_dict=True), **SMALL)
    served = tf.saved_model.load(str(agent.export(tmp_path / "model"))).signatures
    client = Client(Counter(as_dict=True), "a")
    file = write(tmp_path / "log", [client.step(served) for _ in range(5)])
    buffer = ReplayBuffer(agent.spec, 100)
    true = ReplayBuffer(agent.spec, 100)
    ends = {"rewards": [step[2] for step in client.took], "terminations": [step[3] for step in client.took]}
    load_into(buffer, {"prediction_logs": file, **ends})
    seen = {f"observations/{key}": np.array([step[0][key] for step in client.took]) for key in ("position", "phase")}
    load_into(true, seen | ends | {"actions": [step[1] for step in client.took]})
    assert rows(buffer) == rows(true) and len(rows(buffer)) == 5


def test_model_version_and_label_are_kept_and_select(served, tmp_path):
    logs = []
    for x, answered, label in ((0, 1, "stable"), (1, 2, "canary"), (2, 2, ""), (3, None, "")):
        log = log_of(served, "pi", {"x": np.full((2, 2), x, np.float32)})[0]
        log.predict_log.request.model_spec.ClearField("version")
        if label:
            log.predict_log.request.model_spec.version_label = label
        if answered == 1:
            log.predict_log.response.model_spec.version.value = answered
        elif answered == 2:  # some servers write it here only
            log.log_metadata.model_spec.version.value = answered
        logs.append(log)
    file = write(tmp_path / "log", logs)
    read = read_prediction_logs(file, SPEC)
    assert read["versions"].tolist() == [1, 1, 2, 2, 2, 2, -1, -1] and set(read["models"]) == {"model"}
    assert read["labels"] == ["stable"] * 2 + ["canary"] * 2 + [""] * 4
    for selection, expected in (
        ({"version": 2}, [1, 1, 2, 2]),
        ({"label": "stable"}, [0, 0]),
        ({"label": ""}, [2, 2, 3, 3]),
    ):
        assert read_prediction_logs(file, SPEC, **selection)["observations"][:, 0].tolist() == expected
    message = r"the versions \[1, 2\] and the labels \['canary', 'stable'\]. Received: version=3"
    with pytest.raises(ValueError, match=message):
        read_prediction_logs(file, SPEC, version=3)
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(ValueError, match="`version` must be"):
            read_prediction_logs(file, SPEC, version=wrong)


def changed(log, change):
    log = prediction_log_pb2.PredictionLog.FromString(log.SerializeToString())
    change(log)
    return log


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda log: log.predict_log.ClearField("response"), "the response has no `pi`"),
        (lambda log: log.predict_log.request.inputs.pop("x"), r"`x` must .*\(1, 2\). Received: None"),
        (
            lambda log: log.predict_log.request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.zeros((1, 3)))),
            r"`x` must .*\(1, 2\). Received: \(1, 3\)",
        ),
        (
            lambda log: setattr(log.log_metadata.sampling_config, "sampling_rate", 0.25),
            "and the server logged a sample of 0.25",
        ),
    ],
    ids=["no response", "no input", "another shape", "sampled"],
)
def test_records_that_cannot_be_used_are_named(served, tmp_path, change, message):
    log = log_of(served, "pi", {"x": np.zeros((1, 2), np.float32)})[0]
    file = write(tmp_path / "log", [log, changed(log, change)])
    with pytest.raises(ValueError, match=f"{file} cannot be used: record 1: "):
        read_prediction_logs(file, SPEC)
    with pytest.raises(ValueError, match=message):
        read_prediction_logs(file, SPEC)
    if "sample" in message:
        assert len(read_prediction_logs(file, SPEC, sampled=True)["actions"]) == 2


def test_files_that_are_none(served, tmp_path):
    log = log_of(served, "pi", {"x": np.zeros((1, 2), np.float32)})[0]
    whole = write(tmp_path / "whole", [log]).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="cut must be a TFRecord .*intact record"):
        read_prediction_logs(tmp_path / "cut", SPEC)
    for content in (b"\x0f", b"\x32\x7f" + b"a", b"\x32\xff", b"some text that is none"):
        with tf.io.TFRecordWriter(str(tmp_path / "other")) as writer:
            writer.write(content)
        with pytest.raises(ValueError, match="other cannot be used: record 0: it is no"):
            read_prediction_logs(tmp_path / "other", SPEC)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        read_prediction_logs([tmp_path / "nowhere"], SPEC)
    x = np.zeros((1, 2), np.float32)
    a = np.zeros((1, 1), np.float32)
    write(tmp_path / "critics", [log_of(served, "q1", {"x": x, "a": a})[0]])
    with pytest.raises(ValueError, match="no request for `pi`. .*logs='.*critics'"):
        read_prediction_logs(tmp_path / "critics", SPEC)


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_the_records_before_a_damaged_place_are_kept_and_the_loss_is_told(served, tmp_path, damage):
    client = Client(Counter(length=30), "a")
    file = write(tmp_path / "1", [client.step(served) for _ in range(5)])
    later = write(tmp_path / "2", [client.step(served) for _ in range(3)])
    whole = bytearray(file.read_bytes())
    starts = np.cumsum([0, *(16 + len(each) for each in tf.data.TFRecordDataset(str(file)).as_numpy_iterator())])
    if damage == "truncated":
        kept, lost = 4, 30
        del whole[starts[4] + 30 :]
    else:
        kept = 3
        lost = len(whole) - starts[3]
        whole[starts[3] + 30] ^= 1
    file.write_bytes(whole)
    message = f"{file} .*first {kept} .* {lost} bytes are lost"
    with pytest.warns(UserWarning, match=rf"{message}\.$"):
        steps = read_prediction_logs(file, SPEC)
    np.testing.assert_array_equal(steps["observations"], [step[0] for step in client.took[:kept]])
    with pytest.warns(UserWarning, match=rf"{lost} bytes are lost\. The 1 later files"):
        assert len(read_prediction_logs([file, later], SPEC)["actions"]) == kept
    with pytest.warns(UserWarning, match=rf"{lost} bytes are lost\.$"):
        assert len(read_prediction_logs([file, later], SPEC, sampled=True)["actions"]) == kept + 3
    buffer = ReplayBuffer(SPEC, 50)
    ends = {"rewards": np.ones(kept), "terminations": np.zeros(kept, bool), "truncations": np.zeros(kept, bool)}
    with pytest.warns(UserWarning, match=message):
        load_into(buffer, {"prediction_logs": file, **ends})
    assert rows(buffer)[0][:2] == tuple(client.took[0][0]) and len(rows(buffer)) == kept - 1
    assert len(read_prediction_logs(later, SPEC)["actions"]) == 3  # an intact file gives no warning


def test_rewards_and_ends_that_do_not_fit_are_named_and_nothing_is_stored(two):
    files, clients, turns = two
    buffer = ReplayBuffer(SPEC, 100)
    ends = {"prediction_logs": files, "terminations": np.arange(len(turns)) > 11}
    with pytest.raises(ValueError, match="`rewards` .*of 14 steps. .*: 13 rows"):
        load_into(buffer, {**ends, "rewards": np.zeros(13)})
    with pytest.raises(ValueError, match="7 numbers for client .b.. .*the clients"):
        load_into(buffer, {**ends, "rewards": {"a": np.zeros(7)}})
    with pytest.raises(ValueError, match="7 numbers for client 'b'. Received: 6"):
        load_into(buffer, {**ends, "rewards": {"a": np.zeros(7), "b": np.zeros(6)}})
    with pytest.raises(ValueError, match="'rewards' of client 'b' .* nan in row 0;"):
        load_into(buffer, {**ends, "rewards": {"a": np.zeros(7), "b": np.full(7, np.nan)}})
    with pytest.raises(ValueError, match="`rewards` must be an array if there"):
        load_into(buffer, {"rewards": {"a": [0.0]}, "terminations": [False]})
    assert buffer.added == 0
