"""LiteRT: all signatures in one file, for phones and small devices."""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

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
    names = [name for name in source.signatures if name not in left_out]
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
    with tempfile.TemporaryDirectory() as scratch:
        source.save(scratch, names)
        converter = tf.lite.TFLiteConverter.from_saved_model(scratch, signature_keys=names)
        if quantize:
            # the weights; activations are quantized row by row when it runs, and so need no ranges
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def _missing(error: Exception) -> list[str]:
    text = str(error)
    return sorted(set(re.findall(r"'tf\.(\w+)' op is neither", text))) or [text.strip().splitlines()[0]]


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Computes signatures with LiteRT's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter: Any = Interpreter(model_path=str(directory / FILE))
    yield lambda name, inputs: _call(interpreter, name, inputs)


def _call(interpreter: Any, name: str, inputs: Inputs) -> dict[str, Any]:
    return interpreter.get_signature_runner(name)(**inputs)
