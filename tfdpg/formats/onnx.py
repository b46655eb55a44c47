"""Export to ONNX: a file for each signature."""

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdpg.export.source import Source
from tfdpg.export.verify import Run, quiet

AFTER = "_next"
"""The suffix of an output that has the name of an input: a part of the recurrent state after a step."""


def write(source: Source, directory: Path, quantize: str | None, opset: int) -> tuple[dict[str, str], dict[str, str]]:
    """Write the signatures whose operations ONNX has; return their files, and for the others the reasons.

    Args:
        source: the SavedModel.
        directory: where to write the files.
        quantize: None.
        opset: the version of ONNX's operators.
    """
    files = {}
    left_out = {}
    for name in source.cases:
        model = _converted(source, name, opset)
        if absent := sorted(set(_absent(model.graph, opset))):
            left_out[name] = f"ONNX has no {', '.join(absent)} in opset {opset}"
        else:
            files[name] = f"{name}.onnx"
            (directory / files[name]).write_bytes(model.SerializeToString())
    return files, left_out


def _converted(source: Source, name: str, opset: int) -> Any:
    import tf2onnx.convert

    inputs = source.inputs(name)

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {output_name(key, inputs): tensor for key, tensor in source.signatures[name](*tensors).items()}

    with quiet("tf2onnx", logging.CRITICAL):  # it logs every operation that ONNX does not have
        model, _ = tf2onnx.convert.from_function(
            tf.function(call, autograph=False),
            list(inputs.values()),
            opset=opset,
            custom_op_handlers={"SelectV2": (_select, [])},
        )
    _name_axes(model.graph, source, name)
    return model


def _name_axes(graph: Any, source: Source, name: str) -> None:
    """Name the free axes of inputs and outputs `batch`, `time` and `levels`; tf2onnx gives each axis its own number."""
    facts = source.facts(name)
    shapes = {one["name"]: one["shape"] for one in facts["inputs"]}
    shapes |= {output_name(one["name"], shapes): one["shape"] for one in facts["outputs"]}
    for tensor in (*graph.input, *graph.output):
        for axis, word in zip(tensor.type.tensor_type.shape.dim, shapes[tensor.name], strict=True):
            if isinstance(word, str):
                axis.dim_param = word
    del graph.value_info[:]  # runtimes infer the axes of other tensors


def _select(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert SelectV2 to Where; tf2onnx multiplies by 0 and 1 instead, so that NaN in one branch affects the other."""
    node.type = "Where"


def output_name(name: str, inputs: Collection[str]) -> str:
    """Return the name of an output in ONNX, whose graphs cannot have an input and an output of the same name."""
    return name + AFTER if name in inputs else name


def _absent(graph: Any, opset: int) -> Iterator[str]:
    """Yield the operations of a graph, and of the graphs within it, that ONNX does not have."""
    from onnx import defs

    for node in graph.node:
        if not defs.has(node.op_type, opset, node.domain):
            yield node.op_type
        for attribute in node.attribute:
            yield from _absent(attribute.g, opset)


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Return a function that computes signatures with ONNX Runtime."""
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
