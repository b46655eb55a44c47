"""An agent in a user's own file, `examples/conservative_td3.py`: everything that tfdpg's agents do works for it."""

import ast
import copy
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from examples import conservative_td3
from examples.conservative_td3 import ConservativeTD3
from examples.redq import REDQ
from examples.td3_bc import TD3BC
from tests.agents.roster import EAGER, SMALL, brief
from tests.docs.pages import ROOT, fences, formatted
from tests.environments import RandomWalk
from tests.training.test_foreign_files import edited
from tfdpg import cli
from tfdpg.agents.options import TD3Options
from tfdpg.files import CheckpointError
from tfdpg.networks import TransitionBatch
from tfdpg.training.checkpoints.checkpoint import state_of

pytestmark = brief

QUICK = SMALL | EAGER | {"hidden_units": (4,), "batch_size": 4}
SCHEDULE = {"epochs": 2, "steps_per_epoch": 30, "verbose": 0}
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.normal(size=(5, 2)).astype(np.float32)
MODULE = "own_agent"
CLASS = f"{MODULE}:ConservativeTD3"


@pytest.fixture(scope="module")
def agent():
    """A trained agent, which tests leave as it is."""
    agent = ConservativeTD3(RandomWalk(), **QUICK)
    agent.fit(RandomWalk(), **SCHEDULE)
    return agent


@pytest.fixture
def saved(agent, tmp_path):
    agent.save(tmp_path / "agent")
    return tmp_path / "agent"


def assert_equal(agent, other):
    """Weights, optimizers, counters, random states and the replay buffer."""
    assert state_of(agent) == state_of(other)
    for name, variables in agent.parts.variables.items():
        for variable, another in zip(variables, other.parts.variables[name], strict=True):
            np.testing.assert_array_equal(variable, another, name, strict=True)
    np.testing.assert_array_equal(agent.replay.rows[: agent.replay.size], other.replay.rows[: other.replay.size])


def test_the_loss_is_that_of_td3_and_the_gap():
    td3 = tfdpg.TD3(RandomWalk(), **QUICK)
    zero, conservative = (ConservativeTD3(RandomWalk(), **QUICK, conservatism=weight) for weight in (0.0, 3.0))
    at_policy = td3.networks["pi"](BATCH.observation)
    networks = [td3.networks[name] for name in ("q1", "q2")]
    gaps = [q([BATCH.observation, at_policy]) - q([BATCH.observation, BATCH.action]) for q in networks]
    for counter in (1, 2):
        counter = tf.constant(counter, tf.int64)
        first = [each.update(BATCH, counter)["loss_q"] for each in (td3, zero, conservative)]
        if counter == 1:
            np.testing.assert_allclose(first[2], first[0] + 3.0 * sum(gaps), rtol=1e-4, atol=1e-5)
    for expected, weights in zip(td3.get_weights(), zero.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, expected)
    assert not np.allclose(conservative.networks["q1"].get_weights()[0], td3.networks["q1"].get_weights()[0])


class StoppedError(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.env_steps >= 43:
            raise StoppedError


@pytest.mark.slow
def test_a_resumed_training_equals_an_uninterrupted_one(agent, tmp_path):
    stopped = ConservativeTD3(RandomWalk(), **QUICK)
    with pytest.raises(StoppedError):
        stopped.fit(RandomWalk(), **SCHEDULE, callbacks=[StopAt()])
    stopped.save(tmp_path / "agent")
    resumed = tfdpg.load_agent(tmp_path / "agent", agent_class=ConservativeTD3)
    assert resumed.updates < agent.updates
    resumed.fit(RandomWalk(), **SCHEDULE, initial_epoch=resumed.epoch)
    assert_equal(agent, resumed)


def test_copies_and_descriptions(agent):
    copied = copy.deepcopy(agent)
    assert type(copied) is ConservativeTD3 and copied.options == agent.options
    assert_equal(agent, copied)
    lines = []
    agent.summary(print_fn=lines.append)
    changed = ConservativeTD3(RandomWalk(), **QUICK, conservatism=0.5)
    assert lines[0] == repr(agent) and repr(agent).startswith("<ConservativeTD3 on ")
    assert "q1: " in "\n".join(lines) and "conservatism=0.5" in repr(changed)
    assert changed.get_config()["conservatism"] == 0.5
    with pytest.raises(ValueError, match="`conservatism` must be"):
        ConservativeTD3(RandomWalk(), conservatism=-1)
    with pytest.raises(TypeError, match="conservatism"):
        ConservativeTD3(RandomWalk(), conservativ=1)


def test_offline_training_and_callbacks(agent, saved, tmp_path):
    offline = ConservativeTD3(RandomWalk(), **QUICK)
    offline.fit_offline(
        saved,
        epochs=1,
        steps_per_epoch=3,
        validation_env=RandomWalk(),
        validation_episodes=1,
        verbose=0,
        callbacks=[tfdpg.callbacks.ExportBest(tmp_path / "best"), tfdpg.callbacks.Checkpoint(tmp_path / "checkpoints")],
    )
    best = tfdpg.load(tmp_path / "best")
    assert best.metadata["agent"] == "ConservativeTD3"
    np.testing.assert_allclose(best(OBSERVATIONS), offline.predict(OBSERVATIONS), rtol=1e-4, atol=1e-5)
    loaded = tfdpg.load_agent(tmp_path / "checkpoints/0", agent_class=ConservativeTD3, conservatism=2.0)
    assert loaded.updates == 3 and loaded.options.conservatism == 2.0


def test_it_acts_in_numpy(agent, monkeypatch):
    observation = OBSERVATIONS[0]
    expected = agent.predict(observation)

    def fail(*inputs, **options):
        pytest.fail("The policy's network was called.")

    acting = copy.deepcopy(agent)
    monkeypatch.setattr(acting.networks["pi"], "call", fail)
    np.testing.assert_allclose(acting.act(observation, explore=False), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(acting.policy()(observation), expected, rtol=1e-5, atol=1e-6)
    assert acting.evaluate(RandomWalk(), 1)["episode_length"] == 30


MAIN = """
#include <stdio.h>
#include "policy.h"
int main(void) {
    float x[2], a[1];
    while (fread(x, sizeof x, 1, stdin) == 1) {
        policy_pi(x, a);
        fwrite(a, sizeof a, 1, stdout);
    }
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_exports_act_as_it_does(agent, tmp_path):
    expected = agent.predict(OBSERVATIONS)
    version = agent.export(tmp_path / "model")
    np.testing.assert_allclose(tfdpg.load(version)(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tfdpg.load(version).numpy()(OBSERVATIONS), expected, rtol=1e-5, atol=1e-6)
    agent.export(tmp_path / "c", format="c", prefix="policy")
    (tmp_path / "c/main.c").write_text(MAIN)
    subprocess.run(["cc", "-std=c99", "main.c", "-o", "main", "-lm"], cwd=tmp_path / "c", check=True)
    found = subprocess.run([tmp_path / "c/main"], input=OBSERVATIONS.tobytes(), capture_output=True, check=True)
    actions = np.frombuffer(found.stdout, np.float32).reshape(expected.shape)
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_it_is_converted(agent, tmp_path, format):
    agent.export(tmp_path / "model", format=format)  # which compares the outputs with the agent's
    assert (tmp_path / "model/tfdpg.json").exists()


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module with the same class, which leaves a file when it is imported."""
    source = Path(conservative_td3.__file__).read_text()
    harm = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"
    (tmp_path / f"{MODULE}.py").write_text(source.replace("import tfdpg\n", f"import tfdpg\n{harm}"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield tmp_path / "imported"
    sys.modules.pop(MODULE, None)


def test_the_class_is_given_or_imported_if_trusted(agent, saved, own_module):
    given = tfdpg.load_agent(saved, agent_class=ConservativeTD3)
    assert_equal(agent, given)
    edited(saved, lambda description: description.update(agent=CLASS))
    with pytest.raises(ValueError, match="not part of tfdpg") as error:
        tfdpg.load_agent(saved)
    for part in (repr(CLASS), "trusted=True", "agent_class=ConservativeTD3"):
        assert part in str(error.value)
    moved = tfdpg.load_agent(saved, agent_class=ConservativeTD3)  # to another module
    assert type(moved) is ConservativeTD3 and not own_module.exists() and MODULE not in sys.modules
    trusted = tfdpg.load_agent(saved, trusted=True)
    assert own_module.exists() and type(trusted) is sys.modules[MODULE].ConservativeTD3
    assert_equal(agent, trusted)


def test_another_class_is_rejected(saved, tmp_path):
    class Other(ConservativeTD3):
        pass

    for wrong in (Other, tfdpg.TD3):
        with pytest.raises(ValueError, match="`agent_class` .*saved.*:ConservativeTD3"):
            tfdpg.load_agent(saved, agent_class=wrong)
    for wrong in (RandomWalk, "ConservativeTD3"):
        with pytest.raises(ValueError, match="`agent_class` must be a subclass of"):
            tfdpg.load_agent(saved, agent_class=wrong)
    tfdpg.TD3(RandomWalk(), **QUICK).save(tmp_path / "td3")
    with pytest.raises(ValueError, match="`agent_class` must .*was saved, 'TD3'"):
        tfdpg.load_agent(tmp_path / "td3", agent_class=ConservativeTD3)
    assert type(tfdpg.load_agent(tmp_path / "td3", agent_class=tfdpg.TD3)) is tfdpg.TD3


def test_a_class_without_an_import_path_is_given_again(tmp_path):
    def local():
        class TD3(ConservativeTD3):  # whose name is that of an agent of tfdpg
            pass

        return TD3

    kind = local()
    kind(RandomWalk(), **QUICK).save(tmp_path / "agent")
    for trusted in (False, True):
        with pytest.raises(ValueError, match="'TD3', .*no import path.*agent_class=TD3"):
            tfdpg.load_agent(tmp_path / "agent", trusted=trusted)
    with pytest.raises(ValueError, match="must be the class that was saved"):
        tfdpg.load_agent(tmp_path / "agent", agent_class=tfdpg.TD3)
    assert type(tfdpg.load_agent(tmp_path / "agent", agent_class=kind)) is kind


@pytest.mark.parametrize(
    "name", ["os:system", f"{MODULE}:nothing", "no_such_module:X", f"{MODULE}:x:y", ".relative:X", "json:"]
)
def test_a_trusted_path_must_lead_to_an_agent(saved, own_module, name):
    edited(saved, lambda description: description.update(agent=name))
    with pytest.raises(ValueError, match="imported only with trusted=True"):
        tfdpg.load_agent(saved)
    assert not own_module.exists()
    with pytest.raises(ValueError, match="(imported|a subclass of).*agent_class="):
        tfdpg.load_agent(saved, trusted=True)


@pytest.mark.parametrize("name", ["SAC", "", 3, None])
def test_a_name_that_is_neither_is_an_error_of_the_file(saved, name):
    edited(saved, lambda description: description.update(agent=name))
    with pytest.raises(CheckpointError, match="Unknown agent class in"):
        tfdpg.load_agent(saved, trusted=True)


def test_a_constructor_without_options_is_named(saved):
    class Undecorated(tfdpg.Agent):
        def __init__(self, env):
            super().__init__(env, TD3Options(), tfdpg.TD3.declare)

        update = tfdpg.TD3.update

    edited(saved, lambda description: description.update(agent=":Undecorated"))
    with pytest.raises(ValueError, match="takes_options"):
        tfdpg.load_agent(saved, agent_class=Undecorated)


LAYER = """
import keras
@keras.saving.register_keras_serializable("own")
class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs
def policy():
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(1, "tanh")(Doubled()(x)))
"""


def test_the_module_of_a_trusted_class_registers_its_layers_first(own_module, tmp_path):
    with open(tmp_path / f"{MODULE}.py", "a") as file:
        file.write(LAYER)
    module = importlib.import_module(MODULE)
    agent = module.ConservativeTD3(RandomWalk(), pi=module.policy(), **QUICK)
    agent.save(tmp_path / "agent")
    del sys.modules[MODULE]
    keras.saving.get_custom_objects().pop("own>Doubled")
    again = tfdpg.load_agent(tmp_path / "agent", trusted=True)
    np.testing.assert_array_equal(again.predict(OBSERVATIONS), agent.predict(OBSERVATIONS))


@pytest.mark.parametrize(
    "name, expected",
    [
        (CLASS, f"tfdpg.load_agent(directory, trusted=True), which imports its class {CLASS!r}"),
        (":ConservativeTD3", "agent_class=ConservativeTD3): the class 'ConservativeTD3' was defined in a script"),
    ],
)
def test_commands_name_the_way_to_load_a_saved_agent(saved, own_module, capsys, tmp_path, name, expected):
    edited(saved, lambda description: description.update(agent=name))
    for command in (
        ["train", "--resume", saved],
        ["evaluate", saved],
        ["export", saved, tmp_path / "new"],
        ["inspect", saved],
        ["convert", saved, tmp_path / "new", "--format", "c"],
        ["serve", saved],
    ):
        assert cli.main([str(word) for word in command]) == 1
        shown = capsys.readouterr().err
        assert expected in shown and shown.count("\n") == 1
    assert not own_module.exists()


@pytest.mark.slow
def test_a_run_with_a_checkpoint_of_another_class_is_refused_even_if_trusted(saved, own_module, capsys, tmp_path):
    arguments = (
        "--env tfdpg-test/Walk-v0 --hidden-units 4 --batch-size 4 --start-steps 10 --update-after 10 --verbose 0"
    )
    more = "--epochs 1 --steps-per-epoch 40 --validation-episodes 1 --replay-size 500 --seeds 0"
    assert cli.main(["train", "td3", *arguments.split(), *more.split(), "--run-dir", str(tmp_path / "run")]) == 0
    run = tmp_path / "run/seed-0"
    shutil.rmtree(run / "checkpoints/40")
    shutil.copytree(edited(saved, lambda description: description.update(agent=CLASS)), run / "checkpoints/40")
    for command in (
        ["train", "--resume", run, "--epochs", "2"],
        ["evaluate", run],
        ["evaluate", run, "--checkpoint", "40"],
    ):
        assert cli.main([*map(str, command), "--trusted"]) == 1
        assert f"must be the class that was saved, {CLASS!r}" in capsys.readouterr().err
    assert not own_module.exists()


@pytest.mark.slow
def test_it_trains_on_ray_from_a_script(tmp_path):
    """Its class is in `__main__` there, and workers import neither it nor TensorFlow."""
    script = """
        import sys
        import ray, tfdpg
        from tests.agents.roster import SMALL
        from tests.distributed.environments import counter

        exec(open(sys.argv[1]).read())
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
        agent = ConservativeTD3(counter(), **SMALL)
        options = dict(epochs=1, steps_per_epoch=60, actors=2, chunk=10, verbose=0)
        tfdpg.distributed.fit(agent, counter, callbacks=[tfdpg.callbacks.Checkpoint("checkpoints")], **options)
        agent = tfdpg.load_agent(f"checkpoints/{agent.env_steps}", agent_class=ConservativeTD3)
        tfdpg.distributed.fit(agent, counter, **options | {"epochs": 2, "initial_epoch": 1})
        assert agent.env_steps >= 120 and agent.updates > 90 and agent.epoch == 2
        print("trained")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), conservative_td3.__file__]
    path = os.environ | {"PYTHONPATH": str(Path(conservative_td3.__file__).parents[1])}  # workers import `tests`
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "trained" in done.stdout, done.stderr


BATCH = TransitionBatch(
    *(tf.constant(RNG.uniform(-1, 1, (4, n)), tf.float32) for n in (2, 1)),
    *(tf.constant(RNG.uniform(0, 1, 4), tf.float32) for _ in range(2)),
    tf.ones(4),
    tf.constant(RNG.normal(size=(4, 2)), tf.float32),
)


def test_redq_takes_the_smaller_value_of_two_random_target_critics_and_the_mean_of_all():
    agent = REDQ(RandomWalk(), **QUICK, policy_delay=1)
    drawn = [agent.next_critics(tf.constant(i, tf.int64)).indices.numpy().tolist() for i in range(1, 40)]
    assert {len({*each}) for each in drawn} == {2} and {i for each in drawn for i in each} == set(range(10))
    pi, networks = agent.networks["pi"], [agent.networks[f"q{i}"] for i in range(1, 11)]
    counter = tf.constant(1, tf.int64)
    inputs = [BATCH.next_observation, agent.target_action(BATCH, counter)]
    smallest = np.minimum(*(agent.targets[f"q{i + 1}"](inputs) for i in drawn[0]))
    target = BATCH.reward + BATCH.discount * smallest
    expected = sum(np.square(target - q([BATCH.observation, BATCH.action])) for q in networks)
    measured = agent.update(BATCH, counter)
    np.testing.assert_allclose(measured["loss_q"], expected, rtol=1e-4)
    np.testing.assert_allclose(
        agent.policy_loss(BATCH),
        -np.mean([q([BATCH.observation, pi(BATCH.observation)]) for q in networks], axis=0),
        rtol=1e-4,
    )
    with pytest.raises(ValueError, match="`subset` must not be larger than `critics`.*subset=3, critics=2"):
        REDQ(RandomWalk(), critics=2, subset=3)


@pytest.mark.slow
def test_a_subclass_with_ten_critics_is_trained_saved_loaded_and_exported(tmp_path):
    agent = REDQ(RandomWalk(), **QUICK | {"gradient_steps": 2, "update_every": 1})
    history = agent.fit(RandomWalk(), epochs=1, steps_per_epoch=15, verbose=0).history
    names = tuple(f"q{i}" for i in range(1, 11))
    assert agent.updates == 2 * 5 and {*names} <= history.keys()
    agent.save(tmp_path / "agent")
    agent = tfdpg.load_agent(tmp_path / "agent", agent_class=REDQ)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    assert policy.critics == names and policy.metadata["critics"] == 10
    assert "q10" in dir(policy) and not hasattr(policy, "q11")
    actions, *values = policy.pi_and_q(OBSERVATIONS)
    for name, found in zip(names, values, strict=True):
        expected = agent.networks[name]([OBSERVATIONS, actions])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.q3(OBSERVATIONS, actions), values[2], rtol=1e-5)
    with pytest.raises(ValueError, match="`name` must be one of q1, .*Received: name='v'"):
        policy.value("v", OBSERVATIONS, actions)


def test_the_weight_of_cloning_rises_where_the_policy_is_further_from_the_data_than_it_may():
    near, far = (TD3BC(RandomWalk(), **QUICK, distance=each, weight_lr=0.1, policy_delay=1) for each in (1e-3, 9.0))
    pi, q1 = near.networks["pi"], near.networks["q1"]
    action = pi(BATCH.observation)
    distance = np.mean(np.square(action - BATCH.action), axis=-1)
    value = q1([BATCH.observation, action]).numpy()
    np.testing.assert_allclose(near.policy_loss(BATCH), distance - value / np.abs(value).mean(), rtol=1e-4)
    weights = []
    for agent in (near, far):
        measured = [agent.update(BATCH, tf.constant(i, tf.int64))["weight"] for i in (1, 2)]
        np.testing.assert_array_equal(measured[0], np.ones(4))
        weights.append(float(measured[1][0]))
    np.testing.assert_allclose(weights, np.exp([0.1, -0.1]), rtol=1e-3)  # Adam's first step is the learning rate
    with pytest.raises(TypeError, match="bc_weight"):
        TD3BC(RandomWalk(), bc_weight=1.0)


def code_lines(path):
    """The lines of a file that are neither blank, nor comments, nor docstrings."""
    source = (ROOT / path).read_text()
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and _is_text(node.value)]
    docs = {line for node in texts for line in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and i not in docs for i, line in lines)


def _is_text(value):
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@pytest.mark.parametrize("name, lines", [("conservative_td3", 20), ("redq", 45), ("td3_bc", 45), ("sac", 90)])
def test_the_examples_are_short(name, lines):
    assert code_lines(f"examples/{name}.py") <= lines


def test_the_page_quotes_the_examples():
    examples = {line for name in ("conservative_td3", "redq", "td3_bc") for line in formatted(f"examples/{name}.py")}
    quoted = [line for fence in fences("docs/changing-a-loss.md", "py") for line in fence.code.splitlines()]
    assert len(quoted) > 50 and {line for line in quoted if line not in examples} == set()
