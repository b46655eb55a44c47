"""Exported models of unknown origin: those that could do anything but compute are refused before they are loaded."""

import functools
import pickle
import shutil

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tfdpg
from tests.agents.roster import SMALL, brief, needs, parametrize_agents
from tests.commands import QUIET, train
from tests.exported.foreign import Module, Resource, X, save, saver_function, write_manifest
from tests.exported.test_shipped import FOLDER, MODELS
from tfdpg import cli, export
from tfdpg.export.verify import in_session
from tfdpg.exported import ExportError, check_safe
from tfdpg.exported.operations import SAVER, STATEFUL, STATELESS


def load(version):
    """Load a model in both ways in which tfdpg does, and call it."""
    tfdpg.load(version)(X[0])
    with in_session(version) as run:
        run("pi", {"x": X})


def check_refused(version, message, *paths):
    """Check that both loaders refuse a model, with a message and before it could write one of the paths."""
    with pytest.raises(ExportError, match=f"(?s){message}.*trusted=True.*--trusted"):
        tfdpg.load(version)(X[0])
    with pytest.raises(ExportError, match=message), in_session(version):
        pass
    assert not any(path.exists() for path in paths)


def effects(path):
    """Return operations with side effects, by name; those that write, write to `path`."""
    return {
        "WriteFile": lambda: tf.io.write_file(str(path), "text"),
        "ReadFile": lambda: tf.io.read_file("/etc/hostname"),
        "MatchingFiles": lambda: tf.io.matching_files("/etc/*"),
        "EagerPyFunc": lambda: tf.py_function(path.touch, [], []),
        "PyFunc": lambda: tf.numpy_function(path.touch, [], []),
        "PrintV2": lambda: tf.print("text", output_stream=f"file://{path}"),
        "RestoreV2": lambda: tf.raw_ops.RestoreV2(
            prefix="/etc/model", tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32]
        ),
        "SaveV2": lambda: tf.raw_ops.SaveV2(
            prefix=str(path), tensor_names=["x"], shape_and_slices=[""], tensors=[tf.zeros(1)]
        ),
        "ImmutableConst": lambda: tf.raw_ops.ImmutableConst(
            dtype=tf.float32, shape=[1], memory_region_name="/etc/hostname"
        ),
        "DebugIdentity": lambda: tf.raw_ops.DebugIdentity(input=tf.zeros(1), debug_urls=[f"file://{path}"]),
        "TextLineDataset": lambda: tf.raw_ops.TextLineDataset(
            filenames="/etc/hostname", compression_type="", buffer_size=0
        ),
        "InitializeTableFromTextFileV2": lambda: tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64),
            filename="/etc/hostname",
            key_index=-2,
            value_index=-1,
        ),
    }


@pytest.mark.parametrize("operation", effects(None))
def test_an_operation_with_effects_is_refused_by_its_name(tmp_path, operation):
    version = save(tmp_path / "model", Module(effects(tmp_path / "harm")[operation]))
    message = rf"holds `{operation}` \(in .*, which .*'pi'"
    check_refused(version, message, tmp_path / "harm")


@pytest.mark.parametrize("place", ["create", "initialize"])
def test_functions_that_only_a_loader_runs_are_checked(tmp_path, place):
    module = Module(lambda: tf.raw_ops.VarIsInitializedOp(resource=module.resource.resource_handle))
    module.resource = Resource(**{place: effects(tmp_path / "harm")["WriteFile"]})
    version = save(tmp_path / "model", module)
    (tmp_path / "harm").unlink(missing_ok=True)
    check_refused(version, "it holds `WriteFile`", tmp_path / "harm")
    tfdpg.load(version, trusted=True)(X[0])
    assert (tmp_path / "harm").read_text() == "text"  # without the check, the file is written


def test_trusted_models_run(tmp_path):
    version = save(tmp_path / "model", Module(effects(tmp_path / "harm")["WriteFile"]))
    policy = tfdpg.load(version, trusted=True)
    assert pickle.loads(pickle.dumps(policy)).trusted and not (tmp_path / "harm").exists()
    policy(X[0])
    assert (tmp_path / "harm").exists()


@brief
def test_every_command_refuses_what_is_not_safe_and_not_trusted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(*QUIET, "--run-dir", "runs", "--max-ep-len", "10", env="Pendulum-v1") == 0
    shutil.rmtree("runs/seed-0/best")
    harm = tmp_path / "harm"
    best = tmp_path / "runs/seed-0/best"
    save(best, Module(effects(harm)["WriteFile"]))
    commands = [
        ["evaluate", "runs/seed-0", "--checkpoint", "best", "--episodes", "1"],
        ["evaluate", "runs/seed-0/best", "--episodes", "1"],
        ["export", "runs/seed-0", "exported", "--episodes", "1"],
        ["export", "runs/seed-0", "copied"],
        ["export", "runs/seed-0", "litert", "--format", "litert"],
        ["convert", "runs/seed-0/best", "converted", "--format", "litert"],
        ["inspect", "runs/seed-0/best"],
    ]
    for command in [*commands, ["serve", "runs/seed-0/best", "--port", "0", "--grpc-port", "0"]]:
        capsys.readouterr()
        assert cli.main(command) == 1, command
        error = capsys.readouterr().err
        assert error.startswith("tfdpg: The exported model in") and "`WriteFile`" in error and "--trusted" in error
        assert {path.name for path in tmp_path.iterdir()} == {"runs"}, command
    assert cli.main(["verify", "runs/seed-0/export", "runs/seed-0/best"]) == 2
    assert "best could not be checked" in (error := capsys.readouterr().err) and "`WriteFile`" in error
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    for command in commands[:3]:
        assert cli.main([*command, "--trusted"]) == 0 and harm.read_text() == "text", command
        harm.unlink()


def constant(function, name, text):
    node = function.node_def.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(text))
    return f"{name}:output:0"


def write_while_restoring(path, model):
    """Add an operation as a control input of the restore function's result."""
    function = saver_function(model, "restore")
    node = function.node_def.add(name="harm", op="WriteFile")
    node.input.extend([constant(function, "name", str(path)), constant(function, "text", "text")])
    function.node_def[-4].input.append("^harm")


def restore_a_constant(path, model):
    function = saver_function(model, "restore")
    name = constant(function, "name", str(path))
    (restore,) = (node for node in function.node_def if node.op == "RestoreV2")
    restore.input[0] = name


def restore_beside(path, model):
    """Restore from the argument with a suffix."""
    function = saver_function(model, "restore")
    name = constant(function, "name", f"/../../{path.name}")
    join = function.node_def.add(name="join", op="StringJoin", input=[function.signature.input_arg[0].name, name])
    join.attr["N"].i = 2
    (restore,) = (node for node in function.node_def if node.op == "RestoreV2")
    restore.input[0] = "join:output:0"


def restore_by_saving(path, model):
    saver = model.meta_graphs[0].saver_def
    saver.restore_op_name = saver.save_tensor_name.removesuffix(":0")


def save_by_a_signature(path, model):
    graph = model.meta_graphs[0]
    graph.signature_def["pi"].outputs["saved"].name = graph.saver_def.save_tensor_name


def save_before_a_signature(path, model):
    graph = model.meta_graphs[0]
    name = graph.signature_def["pi"].outputs["pi"].name.partition(":")[0]
    (node,) = (each for each in graph.graph_def.node if each.name == name)
    node.input.append(f"^{graph.saver_def.save_tensor_name.removesuffix(':0')}")


def save_as_initialiser(path, model):
    graph = model.meta_graphs[0]
    name = graph.saver_def.save_tensor_name.removesuffix(":0")
    graph.collection_def["saved_model_main_op"].node_list.value[:] = [name]


def save_to_a_constant(path, model):
    """Call the saving function by a second node as well."""
    graph = model.meta_graphs[0]
    (node,) = (each for each in graph.graph_def.node if each.name == graph.saver_def.save_tensor_name[:-2])
    other = graph.graph_def.node.add()
    other.CopyFrom(node)
    other.name = "other"


def save_in_place_of_another(path, model):
    """Give functions the attribute by which the graph optimizer replaces them by others."""
    for function in model.meta_graphs[0].graph_def.library.function:
        function.attr["api_implements"].s = b"pi"


def save_for_a_gradient(path, model):
    library = model.meta_graphs[0].graph_def.library
    of_the_saver = {saver_function(model, name).signature.name for name in ("save", "restore")}
    others = [each.signature.name for each in library.function if each.signature.name not in of_the_saver]
    library.gradient.add(function_name=others[0], gradient_func=saver_function(model, "save").signature.name)


def place_constant(path, model):
    graph = model.meta_graphs[0]
    (node,) = (each for each in graph.graph_def.node if each.name == graph.saver_def.filename_tensor_name[:-2])
    node.op = "Const"


@pytest.mark.parametrize(
    "edit, operation",
    [
        (write_while_restoring, "WriteFile"),
        (restore_a_constant, "RestoreV2"),
        (restore_beside, "RestoreV2"),
        (restore_by_saving, "ShardedFilename|SaveV2|RestoreV2"),
        (save_by_a_signature, "ShardedFilename|SaveV2"),
        (save_before_a_signature, "ShardedFilename|SaveV2"),
        (save_as_initialiser, "ShardedFilename|SaveV2"),
        (save_to_a_constant, "ShardedFilename|SaveV2"),
        (save_in_place_of_another, "ShardedFilename|SaveV2|RestoreV2"),
        (save_for_a_gradient, "ShardedFilename|SaveV2"),
        (place_constant, "ShardedFilename|SaveV2|RestoreV2"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_file_operations_of_a_saver_that_is_not_tensorflows_are_refused(tmp_path, edit, operation):
    version = save(tmp_path / "model", Module(), functools.partial(edit, tmp_path / "harm"))
    check_refused(version, f"it holds `({operation})`", tmp_path / "harm")


def test_an_unknown_operation_is_refused(tmp_path):
    def edit(model):
        model.meta_graphs[0].graph_def.library.function[0].node_def.add(name="harm", op="OperationOfAnotherLibrary")

    check_refused(save(tmp_path / "model", Module(), edit), "it holds `OperationOfAnotherLibrary`")


def test_a_second_graph_is_checked(tmp_path):
    def edit(model):
        model.meta_graphs.add().graph_def.node.add(name="harm", op="WriteFile")

    check_refused(save(tmp_path / "model", Module(), edit), r"it holds `WriteFile` \(in the graph\)")


def test_assets_outside_of_the_model_are_refused(tmp_path):
    def edit(name, model):
        model.meta_graphs[0].asset_file_def.add(filename=name)

    for name in ("../../secret", "/etc/hostname"):
        version = save(tmp_path / name.replace("/", "-"), Module(), functools.partial(edit, name))
        check_refused(version, f"its asset '{name}' is outside")


def test_links_that_lead_out_of_the_model_are_refused(tmp_path):
    version = save(tmp_path / "model", Module())
    load(version)
    shutil.copytree(version, tmp_path / "stored")
    (tmp_path / "linked").symlink_to(tmp_path / "stored")
    load(tmp_path / "linked")  # an operator's own link to a version
    (version / "variables").rename(tmp_path / "variables")
    (version / "variables").symlink_to(tmp_path / "variables")
    write_manifest(version)
    check_refused(version, f"{version}/variables is a link .*, outside")


def test_a_second_file_that_tensorflow_could_load_is_refused(tmp_path):
    for name in ("saved_model.pbtxt", "saved_model.cpb"):
        version = save(tmp_path / name, Module())
        shutil.copy(version / "saved_model.pb", version / name)
        write_manifest(version)
        check_refused(version, f"{name} could be loaded instead of")


def test_a_file_that_is_not_a_saved_model_is_an_export_error(tmp_path):
    version = save(tmp_path / "model", Module())
    (version / "saved_model.pb").write_bytes(b"\xff" * 100)
    write_manifest(version)
    for call in (functools.partial(tfdpg.load(version), X[0]), functools.partial(check_safe, version)):
        with pytest.raises(ExportError, match="cannot be loaded"):
            call()


def test_every_format_is_made_only_of_a_model_that_is_safe_or_trusted(tmp_path):
    version = save(tmp_path / "model", Module(effects(tmp_path / "harm")["WriteFile"]))
    with pytest.raises(ExportError, match="it holds `WriteFile`"):
        export.convert(version, tmp_path / "converted", "litert")
    with pytest.raises(ExportError, match="it holds `WriteFile`"):
        export.describe(version)
    assert not (tmp_path / "harm").exists() and not (tmp_path / "converted").exists()
    assert "signatures:" in export.describe(version, trusted=True)


def test_the_reviewed_operations_are_tensorflows_and_the_stateful_ones_are_known_to_be():
    for name in STATELESS | STATEFUL | SAVER:
        assert op_def_registry.get(name) is not None, name
    assert not {name for name in STATELESS if op_def_registry.get(name).is_stateful}
    assert {name for name in STATEFUL if not op_def_registry.get(name).is_stateful} == set()
    assert not (STATELESS | STATEFUL) & SAVER


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_are_safe(name):
    check_safe(FOLDER / name / "1")


@keras.saving.register_keras_serializable("tests")
class Own(keras.layers.Layer):
    """A custom layer with many kinds of operations: tables, random numbers, loops, sorting, assertions."""

    def __init__(self, **options):
        super().__init__(**options)
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], [0.0, 0.5, 1.0]), -1.0)
        self.dropout = keras.layers.Dropout(0.1)

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        tf.debugging.assert_all_finite(x, "x")
        noise = tf.random.stateless_normal(tf.shape(x), [1, 2]) + tf.random.normal(tf.shape(x))
        found = self.table.lookup(tf.cast(tf.clip_by_value(x, 0, 3), tf.int32))
        total = keras.ops.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + x / (i + 1.0)), (0.0, x))[1]
        parts = [keras.ops.sort(x), keras.ops.cumsum(x, axis=-1), keras.ops.erf(x), keras.ops.fft((x, x))[0]]
        parts += [keras.ops.einsum("bi,bj->bi", x, x), keras.ops.qr(keras.ops.outer(x[0], x[0]))[0][:1] * x]
        return self.dropout(self.scale * (x + 1e-6 * noise + found + total + sum(parts)), training=True)


def test_operations_of_a_custom_layer_pass(tmp_path):
    module = Module()
    layer = Own()
    layer.build((None, 3))
    module.table = layer.table
    module.variables_of_the_layer = [variable.value for variable in layer.variables]
    module.pi = tf.function(
        lambda x: {"pi": tf.reduce_sum(layer(x), axis=1, keepdims=True)},
        input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")],
        autograph=False,
    )
    load(save(tmp_path / "model", module))


def image_policy():
    inputs = keras.Input((3,))
    image = keras.layers.Reshape((3, 1, 1))(keras.layers.GaussianNoise(0.1)(inputs))
    image = keras.layers.Resizing(8, 8)(image)
    image = keras.layers.MaxPooling2D()(keras.layers.Conv2D(2, 3, padding="same")(image))
    sequence = keras.layers.Reshape((4, 8))(image)
    hidden = keras.layers.MultiHeadAttention(2, 4)(sequence, sequence)
    hidden = keras.layers.LayerNormalization()(keras.layers.Bidirectional(keras.layers.GRU(4))(hidden))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, "gelu")(hidden))
    return keras.Model(inputs, keras.layers.Rescaling(2.0)(keras.layers.Dense(1, "tanh")(hidden)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_exports_with_custom_networks_pass(tmp_path):
    agent = tfdpg.DDPG("Pendulum-v1", pi=image_policy(), **SMALL)
    version = agent.export(tmp_path / "model")
    check_safe(version)
    np.testing.assert_allclose(tfdpg.load(version)(X), agent.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@parametrize_agents("ACER")
def test_fresh_exports_pass(make, tmp_path):
    check_safe(make(gym.make("Pendulum-v1")).export(tmp_path / "model", signatures="tf-agents"))


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
@parametrize_agents()
def test_fresh_exports_of_recurrent_policies_pass(make, tmp_path, recurrent):
    needs(make, "recurrent")
    agent = make(gym.make("Pendulum-v1"), recurrent=recurrent)
    check_safe(agent.export(tmp_path / "model", signatures="tf-agents"))
