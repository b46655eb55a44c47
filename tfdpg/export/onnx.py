"""ONNX: a file for each signature."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdpg.export.source import Source
from tfdpg.export.verify import Run, quiet

OPSET = 17


def write(source: Source, directory: Path, quantize: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Writes the signatures that ONNX has the operations for; gives their files, and of the others the reasons."""
    files, left_out = {}, {}
    for name in source.signatures:
        model = _converted(source, name)
        if absent := sorted(set(_absent(model.graph))):
            left_out[name] = f"ONNX has no {', '.join(absent)}"
        else:
            files[name] = f"{name}.onnx"
            (directory / files[name]).write_bytes(model.SerializeToString())
    return files, left_out


def _converted(source: Source, name: str) -> Any:
    import tensorflow as tf
    import tf2onnx.convert

    with quiet("tf2onnx", logging.CRITICAL):  # which tells of every operation that there is not
        function = tf.function(source.signatures[name])
        model, _ = tf2onnx.convert.from_function(function, source.inputs(name), opset=OPSET)
    return model


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
        return dict(zip(outputs, sessions[name].run(outputs, dict(inputs)), strict=True))

    yield call
