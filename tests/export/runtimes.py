"""The export formats, and clients that run exports in each of them."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.docs.pages import PAGES
from tfdpg.export import verify as verification
from tfdpg.formats.convert import FORMATS

RUNTIMES = {
    "litert": """
        from ai_edge_litert.interpreter import Interpreter
        interpreter = Interpreter(model_path=f"{directory}/model.tflite")
        def run(name, inputs):
            return interpreter.get_signature_runner(name)(**inputs)
        """,
    "onnx": """
        import onnxruntime
        def run(name, inputs):
            session = onnxruntime.InferenceSession(f"{directory}/{name}.onnx")
            return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
        """,
}
CLIENT = """
    import json, sys
    sys.modules["tensorflow"] = sys.modules["keras"] = sys.modules["tfdpg"] = None  # importing them fails
    import numpy as np

    directory = sys.argv[1]
    {runtime}
    answers = []
    for file in sys.argv[2:]:
        inputs, found = dict(np.load(file)), {{}}
        for name, signature in json.load(open(f"{{directory}}/tfdpg.json"))["signatures"].items():
            outputs = run(name, {{one["name"]: inputs[one["name"]] for one in signature["inputs"]}})
            assert set(outputs) == {{one["name"] for one in signature["outputs"]}}
            found[name] = {{key: values.tolist() for key, values in outputs.items()}}
        answers.append(found)
    print(json.dumps(answers))
"""
"""A client program that has only the exported files."""
formats = pytest.mark.parametrize("format", FORMATS)
whole_formats = pytest.mark.parametrize("format", RUNTIMES)
"""The formats that always contain the critics."""


def quickly(*quick):
    """Parametrize a test with the formats that contain the critics and those in `quick`; all but `quick` are slow."""
    names = sorted({*RUNTIMES, *quick})
    params = [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("format", params)


def schema():
    return PAGES["docs/formats.md"].split("<!-- schema -->")[1].split("```json")[1].split("```")[0]


def client(format, directory, batches, scratch):
    """Return what a process without TensorFlow computes with the exported files, for each batch of inputs."""
    given = [scratch / f"inputs-{number}.npz" for number in range(len(batches))]
    for file, inputs in zip(given, batches, strict=True):
        np.savez(file, **inputs)
    code = textwrap.dedent(CLIENT).format(runtime=textwrap.dedent(RUNTIMES[format]))
    command = [sys.executable, "-c", code, *map(str, [directory, *given])]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def verify(directory, references, cases, in_half_precision=False):
    """Load a SavedModel as TensorFlow Serving does, and compare its signatures with the expected outputs."""
    with verification.in_session(directory, trusted=True) as run:
        for name, batches in cases.items():
            reference = references.get(name, references["pi"])
            verification.compare_signature(name, run, reference, batches, in_half_precision)
