"""Export to C: a built-in policy as one header, `policy.h`, verified with the system's compiler."""

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.acting import load_critics, load_numpy_policy
from tfdpg.arguments import reject
from tfdpg.export.source import Source
from tfdpg.export.verify import Inputs, Run
from tfdpg.exported import NUMPY_POLICY, ExportError, named_recurrent_inputs
from tfdpg.formats.c_header import c_header

HEADER = "policy.h"
WEIGHTS = "policy.c"
PREFIX = re.compile("[a-z][a-z0-9_]*")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
MAIN = """\
#include <stdio.h>
#include <string.h>
#include "policy.h"

int main(int argc, char **argv) {
    float x[PREFIX_X], a[PREFIX_A];
CRITICS
    (void)argv, (void)strcmp;
#ifdef PREFIX_STATE
    prefix_state state;
    prefix_start(&state);
    if (argc > 1) fwrite(&state, sizeof state, 1, stdout);
    while (fread(x, sizeof x, 1, stdin) == 1 && fread(&state, sizeof state, 1, stdin) == 1) {
        prefix_pi(x, a, &state);
        fwrite(a, sizeof a, 1, stdout);
        fwrite(&state, sizeof state, 1, stdout);
    }
#else
    (void)argc;
    while (fread(x, sizeof x, 1, stdin) == 1) {
        prefix_pi(x, a);
        fwrite(a, sizeof a, 1, stdout);
    }
#endif
    return 0;
}
"""
"""A program that reads observations and recurrent states from standard input, and writes actions and recurrent states
to standard output, all as float32. With an argument it first writes the initial recurrent state; or, if there are
critics, it reads observations and actions, and writes the values of the critic that the argument names."""
CRITIC = """\
    if (argc > 1 && !strcmp(argv[1], "NAME")) {
        while (fread(x, sizeof x, 1, stdin) == 1 && fread(a, sizeof a, 1, stdin) == 1) {
            float q = prefix_NAME(x, a);
            fwrite(&q, sizeof q, 1, stdout);
        }
    }
"""
"""The part of the program for one critic."""


def checked_prefix(prefix: str | None, model: str) -> str:
    """Return the prefix of all names in the header.

    Args:
        prefix: the user's choice; None makes it of the model's name, in lower case and with _ for all characters but
            letters and digits.
        model: the model's name.

    Raises:
        ValueError: names with this prefix are not C identifiers.
    """
    if prefix is None:
        prefix = re.sub("[^a-z0-9]+", "_", model.lower()).strip("_")
        return prefix if PREFIX.fullmatch(prefix) else f"policy_{prefix}".strip("_")
    if not PREFIX.fullmatch(prefix):
        raise reject("prefix", "a C identifier of lower-case letters, digits and _ that begins with a letter", prefix)
    return prefix


def write(
    source: Source, directory: Path, quantize: str | None, prefix: str = "policy", weights_in_c_file: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Write `policy.h` with the policy and the built-in critics.

    Args:
        source: the SavedModel.
        directory: the directory for the files.
        quantize: None.
        prefix: the prefix of the names in the header.
        weights_in_c_file: whether `policy.c` defines the weights, instead of the header.

    Returns:
        The file of each signature in the header, and for each other signature the reason.

    Raises:
        ExportError: the policy is not a built-in network in float32.
    """
    weights_path = source.version / NUMPY_POLICY
    if not weights_path.exists():
        raise ExportError(
            "The policy cannot be exported to C, because it is not a built-in network in float32: the SavedModel has "
            f"no {NUMPY_POLICY}"
        )
    facts = source.metadata
    trained = facts.get("environment") or {}
    title = f"The policy of {facts['agent']}{' on ' + trained['id'] if trained else ''}, by tfdpg"
    title = re.sub(r"[^\w .,:/-]", "_", f"{title} {facts['versions']['tfdpg']}.", flags=re.ASCII)  # part of the C code
    actor = load_numpy_policy(weights_path, source.spec, source.recurrent_spec)
    critics = load_critics(weights_path, source.spec)
    if unfit := [name for name in critics if not PREFIX.fullmatch(name)]:
        raise ExportError(f"The name of a critic must be a C identifier in lower case. Received: {unfit[0]!r}")
    header, weights = c_header(actor, title, critics, prefix, WEIGHTS if weights_in_c_file else None)
    (directory / HEADER).write_text(header)
    if weights_in_c_file:
        (directory / WEIGHTS).write_text(f'#include "{HEADER}"\n\n{weights}')
    files = dict.fromkeys(("pi", *critics), HEADER)
    reasons = {name: "it is not in the header" for name in source.cases if name not in files}
    if "initial_state" in reasons:
        reasons["initial_state"] = f"it is {prefix}_start"
    return files, reasons


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Compile the header with the system's compiler, and compute signatures with it, one row after the other.

    Raises:
        ExportError: there is no compiler, or the header does not compile.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise ExportError(
            f"Exporting to C needs a C compiler, because the header is verified. Expected one of "
            f"{', '.join(COMPILERS)} on the PATH; there is none."
        )
    with tempfile.TemporaryDirectory() as scratch:
        header = (directory / HEADER).read_text()
        (prefix,) = re.findall(r"^#ifndef (\w+)_POLICY_H$", header, re.MULTILINE)
        critics = re.findall(rf"float {prefix.lower()}_(\w+)\(const float \*x, const float \*a\)", header)
        program = MAIN.replace("CRITICS\n", "".join(CRITIC.replace("NAME", name) for name in critics))
        (Path(scratch) / "main.c").write_text(program.replace("PREFIX", prefix).replace("prefix", prefix.lower()))
        weights = [str(path.absolute()) for path in [directory / WEIGHTS] if path.exists()]
        command = [compiler, *FLAGS, f"-I{directory.absolute()}", "main.c", *weights, "-o", "main", "-lm"]
        compiled = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if compiled.returncode:
            raise ExportError(f"The header does not compile: {compiled.stderr[:2000]}")
        spec = source.spec
        program = Path(scratch) / "main"

        def run_program(*arguments: str, rows: bytes = b"") -> np.ndarray:
            completed = subprocess.run([program, *arguments], input=rows, capture_output=True, check=True)
            return np.frombuffer(completed.stdout, np.float32)

        def call(name: str, inputs: Inputs) -> dict[str, Any]:
            if name == "initial_state":
                state = np.tile(run_program("start"), (int(inputs["batch"]), 1))
                return named_recurrent_inputs(source.recurrent_spec, state)
            arrays = [inputs[key] for key in source.inputs(name)]
            count = len(arrays[0])
            rows = np.concatenate([values.reshape(count, -1) for values in arrays], axis=1, dtype=np.float32).tobytes()
            if name != "pi":
                return {name: run_program(name, rows=rows)}
            actions, state = np.split(run_program(rows=rows).reshape(count, -1), [spec.act_dim], axis=1)
            outputs = named_recurrent_inputs(source.recurrent_spec, state)
            outputs["pi"] = actions if spec.actions is None else actions[:, 0].astype(np.int64)
            return {one["name"]: outputs[one["name"]] for one in source.facts("pi")["outputs"]}

        yield call
