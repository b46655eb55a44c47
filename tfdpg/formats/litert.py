"""Export to LiteRT, for phones and small devices: one file with all signatures."""

import contextlib
import copy
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf

from tfdpg.compat.tensorflow import lite_converter_error, lite_schema
from tfdpg.export.source import Source
from tfdpg.export.verify import Inputs, Run, quiet
from tfdpg.formats.onnx import output_name

FILE = "model.tflite"
ABSENT = {"TensorListReserve", "Erfc", "Ndtri"}
"""Operations of signatures that LiteRT does not have."""
POLICY = ("pi", "initial_state")
"""The signatures that are quantized. The error of an action can be judged in units of the action scale; values have no
such unit."""


def write(source: Source, directory: Path, quantize: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Write the signatures whose operations LiteRT has; return their file, and for the others the reasons."""
    left_out = {}
    for name in source.cases:
        absent = sorted(ABSENT & {node.op for node in source.nodes(name)})
        if quantize and name not in POLICY:
            left_out[name] = f'quantize="{quantize}" is for the policy'
        elif absent:
            left_out[name] = f"LiteRT has no {', '.join(absent)}"
        elif source.batch is not None and any(None in each.shape for each in source.inputs(name).values()):
            left_out[name] = "with a fixed batch, the length of sequences is not fixed"
    # subgraph 0, which runtimes run if no signature is named, must be the policy
    names = sorted((name for name in source.cases if name not in left_out), key=lambda name: name != "pi")
    converter_error = lite_converter_error()
    try:
        content = _converted(source, names, quantize)
    except converter_error:  # find the signatures that cannot be converted
        for name in names:
            try:
                _converted(source, [name], quantize)
            except converter_error as error:
                half = " in half precision" if source.in_half_precision() else ""
                left_out[name] = f"LiteRT has no {', '.join(_missing(error))}{half}"
        names = [name for name in names if name not in left_out]
        content = _converted(source, names, quantize) if names else b""
    (directory / FILE).write_bytes(content)
    return dict.fromkeys(names, FILE), left_out


def _converted(source: Source, names: Sequence[str], quantize: str | None) -> bytes:
    """Convert signatures into a file that has them in the order of `names`."""
    # prefixes, because the converter sorts signatures by name
    sorting = {f"s{index:03}_{name}": name for index, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as scratch:
        with quiet("tensorflow", logging.WARNING):  # as in `write`
            source.save(scratch, sorting)
        converter = tf.lite.TFLiteConverter.from_saved_model(scratch, signature_keys=list(sorting))
        if quantize:
            # quantizes the weights; the runtime quantizes activations row by row, so they need no ranges
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        model = lite_schema().ModelT.InitFromPackedBuf(bytearray(converter.convert()), 0)
    for signature in model.signatureDefs:
        name = sorting[signature.signatureKey.decode()]
        graph = model.subgraphs[signature.subgraphIndex]
        graph.name = signature.signatureKey = name.encode()
        facts = source.facts(name)
        inputs = [one["name"] for one in facts["inputs"]]
        graph.inputs = _arrange(graph, signature.inputs, {each: each for each in inputs})
        outputs = {one["name"]: output_name(one["name"], inputs) for one in facts["outputs"]}
        graph.outputs = _arrange(graph, signature.outputs, outputs)
    builder = _AlignedBuilder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _arrange(graph: Any, tensors: list[Any], names: dict[str, str]) -> np.ndarray:
    """Sort and name the inputs or outputs of a signature, and return the indices of their tensors.

    Runtimes find outputs by their tensors, so each of them must have a tensor of its own. The converter merges equal
    outputs, such as `q1` and `q2` of an agent with one critic. For each further output, the operator that computes the
    tensor is repeated.

    Args:
        graph: the signature's graph.
        tensors: the inputs or outputs, which are changed in place.
        names: the names of the tensors by those of the inputs or outputs, in order.
    """
    order = list(names)
    tensors.sort(key=lambda each: order.index(each.name.decode()))
    used: list[int] = []
    for each in tensors:
        if each.tensorIndex in used:
            each.tensorIndex = _repeated(graph, each.tensorIndex)
        used.append(each.tensorIndex)
    for index, name in zip(used, names.values(), strict=True):
        graph.tensors[index].name = name.encode()
    return np.array(used, np.int32)


def _repeated(graph: Any, index: int) -> int:
    """Repeat the operator that computes a tensor, and return the index of the new tensor."""
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


class _AlignedBuilder(flatbuffers.Builder):
    """Aligns the content of buffers to 16 bytes, as LiteRT's schema requires; the generated code does not."""

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:
        return super().StartVector(elemSize, numElems, 16 if elemSize == 1 else alignment)


def _missing(error: Exception) -> list[str]:
    text = str(error)
    return sorted(set(re.findall(r"'tf\.(\w+)' op is neither", text))) or [text.strip().splitlines()[0]]


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Return a function that computes signatures with LiteRT's interpreter."""
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
