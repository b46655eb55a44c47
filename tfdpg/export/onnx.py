"""ONNX: a file for each signature."""

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdpg.export.contract import signature_facts
from tfdpg.export.source import Source
from tfdpg.export.verify import Run, quiet

OPSET = 17
AFTER = "_next"
"""How the name of an output ends that is called like an input: the part of a state after a step."""


def write(source: Source, directory: Path, quantize: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Writes the signatures that ONNX has the operations for; gives their files, and of the others the reasons."""
    files = {}
    left_out = {}
    for name in source.signatures:
        model = _converted(source, name)
        if absent := sorted(set(_absent(model.graph))):
            left_out[name] = f"ONNX has no {', '.join(absent)}"
        else:
            files[name] = f"{name}.onnx"
            (directory / files[name]).write_bytes(model.SerializeToString())
    return files, left_out


def _converted(source: Source, name: str) -> Any:
    import tf2onnx.convert

    inputs = source.inputs(name)

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {output_name(key, inputs): tensor for key, tensor in source.signatures[name](*tensors).items()}

    with quiet("tf2onnx", logging.CRITICAL):  # which tells of every operation that there is not
        model, _ = tf2onnx.convert.from_function(
            tf.function(call, autograph=False),
            list(inputs.values()),
            opset=OPSET,
            custom_op_handlers={"SelectV2": (_select, [])},
        )
    _name_axes(model.graph, source, name)
    return model


def _name_axes(graph: Any, source: Source, name: str) -> None:
    """Name the free axes of inputs and outputs `batch`, `time` and `levels`; tf2onnx gives each axis its own number."""
    inputs = source.inputs(name)
    facts = signature_facts(inputs, source.signatures[name].structured_outputs, source.spec, source.recurrent_spec)
    shapes = {one["name"]: one["shape"] for one in facts["inputs"]}
    shapes |= {output_name(one["name"], inputs): one["shape"] for one in facts["outputs"]}
    for tensor in (*graph.input, *graph.output):
        for axis, word in zip(tensor.type.tensor_type.shape.dim, shapes[tensor.name], strict=True):
            if isinstance(word, str):
                axis.dim_param = word
    del graph.value_info[:]  # the axes of other tensors, which runtimes infer


def _select(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts SelectV2 as Where. tf2onnx multiplies by 0 and 1, with which NaN is in both branches."""
    node.type = "Where"


def output_name(name: str, inputs: Collection[str]) -> str:
    """What an output is called: in an ONNX graph `h` cannot be an input and an output."""
    return name + AFTER if name in inputs else name


def _absent(graph: Any) -> Iterator[str]:
    """The operations of a graph, and of those within it, that ONNX has not."""
    from onnx import defs

    for node in graph.node:
        if not defs.has(node.op_type, OPSET, node.domain):
            yield node.op_type
        for attribute in node.attribute:
            yield from _absent(attribute.g)


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Computes signatures with ONNX Runtime."""
    import onnxruntime

    sessions: dict[str, Any] = {}

    def call(name: str, inputs: Any) -> dict[str, Any]:
        if name not in sessions:
            path = str(directory / f"{name}.onnx")
            sessions[name] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in sessions[name].get_outputs()]
        names = [key.removesuffix(AFTER) if key.removesuffix(AFTER) in inputs else key for key in outputs]
        return dict(zip(names, sessions[name].run(outputs, dict(inputs)), strict=True))

    yield call
