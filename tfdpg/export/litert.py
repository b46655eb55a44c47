"""LiteRT: all signatures in one file, for phones and small devices."""

import contextlib
import copy
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.python.convert_phase import ConverterError

from tfdpg.export.contract import in_order
from tfdpg.export.onnx import output_name
from tfdpg.export.source import Source
from tfdpg.export.verify import Inputs, Run

FILE = "model.tflite"
ABSENT = {"TensorListReserve", "Erfc", "Ndtri"}
"""Operations that signatures have, and LiteRT has not."""
POLICY = ("pi", "initial_state")
"""What is quantized: that an action hardly differs can be said in half-ranges, and nothing like it of a value."""


def write(source: Source, directory: Path, quantize: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Writes the signatures that LiteRT has the operations for; gives their files, and of the others the reasons."""
    left_out = {}
    for name in source.signatures:
        absent = sorted(ABSENT & {node.op for node in source.nodes(name)})
        if quantize and name not in POLICY:
            left_out[name] = f'quantize="{quantize}" is for the policy'
        elif absent:
            left_out[name] = f"LiteRT has no {', '.join(absent)}"
        elif source.batch is not None and any(None in each.shape for each in source.inputs(name).values()):
            left_out[name] = "with a fixed batch, the length of sequences is not fixed"
    # subgraph 0, which runtimes run if no signature is named, must be the policy
    names = sorted((name for name in source.signatures if name not in left_out), key=lambda name: name != "pi")
    try:
        content = _converted(source, names, quantize)
    except ConverterError:  # which of them it was
        for name in names:
            try:
                _converted(source, [name], quantize)
            except ConverterError as error:
                half = " in half precision" if source.in_half_precision() else ""
                left_out[name] = f"LiteRT has no {', '.join(_missing(error))}{half}"
        names = [name for name in names if name not in left_out]
        content = _converted(source, names, quantize) if names else b""
    (directory / FILE).write_bytes(content)
    return dict.fromkeys(names, FILE), left_out


def _converted(source: Source, names: Sequence[str], quantize: str | None) -> bytes:
    """Convert signatures into a file that has them in the order of `names`."""
    # the converter sorts signatures by name
    sorting = {f"s{index:03}_{name}": name for index, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as scratch:
        source.save(scratch, sorting)
        converter = tf.lite.TFLiteConverter.from_saved_model(scratch, signature_keys=list(sorting))
        if quantize:
            # the weights; activations are quantized row by row when it runs, and so need no ranges
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        model: Any = schema.ModelT.InitFromPackedBuf(bytearray(converter.convert()), 0)
    for signature in model.signatureDefs:
        signature.signatureKey = sorting[signature.signatureKey.decode()].encode()
        graph = model.subgraphs[signature.subgraphIndex]
        graph.name = signature.signatureKey
        for tensors in (signature.inputs, signature.outputs):
            order = in_order([each.name.decode() for each in tensors], source.spec, source.recurrent_spec)
            tensors.sort(key=lambda each, order=order: order.index(each.name.decode()))
        _separate_outputs(signature.outputs, graph)
        graph.inputs = np.array([each.tensorIndex for each in signature.inputs], np.int32)
        graph.outputs = np.array([each.tensorIndex for each in signature.outputs], np.int32)
        _name_tensors(graph, signature)
    builder = _AlignedBuilder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _separate_outputs(outputs: Sequence[Any], graph: Any) -> None:
    """Give each output of a signature a tensor of its own, by which runtimes find it.

    The converter merges equal outputs, such as `q1` and `q2` of an agent with one critic. For each further output, the
    operator that computes the tensor is repeated.
    """
    used: set[int] = set()
    for output in outputs:
        if output.tensorIndex in used:
            output.tensorIndex = _repeated(graph, output.tensorIndex)
        used.add(output.tensorIndex)


def _repeated(graph: Any, index: int) -> int:
    """Compute a tensor a second time, and return the new tensor's index."""
    first = len(graph.tensors)
    producers = [operator for operator in graph.operators if index in operator.outputs]
    if not producers:  # a constant
        graph.tensors.append(copy.copy(graph.tensors[index]))
        return first
    repeated = copy.copy(producers[0])
    results = list(repeated.outputs)
    graph.tensors += [copy.copy(graph.tensors[result]) for result in results]
    repeated.outputs = np.arange(first, first + len(results), dtype=np.int32)
    graph.operators.append(repeated)
    return first + results.index(index)


def _name_tensors(graph: Any, signature: Any) -> None:
    """Give tensors the names of the signature's inputs and outputs; see `output_name`."""
    inputs = [each.name.decode() for each in signature.inputs]
    for each in signature.inputs:
        graph.tensors[each.tensorIndex].name = each.name
    for each in signature.outputs:
        graph.tensors[each.tensorIndex].name = output_name(each.name.decode(), inputs).encode()


class _AlignedBuilder(flatbuffers.Builder):
    """Aligns the content of buffers to 16 bytes, as LiteRT's schema requires; the generated code does not."""

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:
        return super().StartVector(elemSize, numElems, 16 if elemSize == 1 else alignment)


def _missing(error: Exception) -> list[str]:
    text = str(error)
    return sorted(set(re.findall(r"'tf\.(\w+)' op is neither", text))) or [text.strip().splitlines()[0]]


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Computes signatures with LiteRT's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter: Any = Interpreter(model_path=str(directory / FILE))

    def call(name: str, inputs: Inputs) -> dict[str, Any]:
        runner = interpreter.get_signature_runner(name)
        return runner(**inputs) if source.batch is None else _in_batches(runner, source.batch, inputs)

    yield call


def _in_batches(runner: Any, batch: int, inputs: Inputs) -> dict[str, Any]:
    """Call a signature that takes `batch` rows for any number of rows; the last call repeats its last row."""
    first = next(iter(inputs.values()))
    count = len(first) if np.ndim(first) else int(first)  # `initial_state` takes a number of rows
    found = []
    for start in range(0, count, batch):
        rows = np.minimum(np.arange(start, start + batch), count - 1)
        found.append(runner(**{name: values[rows] if np.ndim(values) else values for name, values in inputs.items()}))
    return {name: np.concatenate([part[name] for part in found])[:count] for name in found[0]}
