"""C: a stock policy as one header, `policy.h`, tried with the system's compiler."""

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
from tfdpg.export.c_header import c_header
from tfdpg.export.source import Source
from tfdpg.export.verify import Inputs, Run
from tfdpg.exported import NUMPY_POLICY, ExportError, named_recurrent_inputs

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
#ifdef PREFIX_Q1
    while (argc > 1 && fread(x, sizeof x, 1, stdin) == 1 && fread(a, sizeof a, 1, stdin) == 1) {
        float q = prefix_q1(x, a);
#ifdef PREFIX_Q2
        q = strcmp(argv[1], "q2") ? q : prefix_q2(x, a);
#endif
        fwrite(&q, sizeof q, 1, stdout);
    }
#endif
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
"""From observations and states to actions and states, as float32, on its standard input and output. With an argument it
begins with the state of an episode's start, or goes from observations and actions to the values of the critic named."""


def prefix_of(name: str) -> str:
    """Make the prefix of names in C from a model's name: in lower case, with _ for all but letters and digits."""
    found = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")
    return found if PREFIX.fullmatch(found) else f"policy_{found}".strip("_")


def check_prefix(prefix: str) -> None:
    """Raises `ValueError` unless names that begin with `prefix` are C identifiers."""
    if not PREFIX.fullmatch(prefix):
        raise reject("prefix", "a C identifier of lower-case letters, digits and _ that begins with a letter", prefix)


def write(
    source: Source, directory: Path, quantize: str | None, prefix: str = "policy", weights_in_c_file: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Writes `policy.h`; gives its name for the policy and the stock critics, and why there are no other signatures.

    Args:
        source: the SavedModel.
        directory: where the files go.
        quantize: None.
        prefix: what the names in the header begin with.
        weights_in_c_file: whether `policy.c` defines the weights, in place of the header.

    Raises:
        ExportError: the policy is no stock one, or there is no compiler to try it with.
    """
    if not (source.version / NUMPY_POLICY).exists():
        raise ExportError(
            f"The policy cannot be had in C: it is no stock network in float32, and has no {NUMPY_POLICY}"
        )
    facts = source.metadata
    trained = facts.get("environment") or {}
    title = f"The policy of {facts['agent']}{' on ' + trained['id'] if trained else ''}, by tfdpg"
    actor = load_numpy_policy(source.version / NUMPY_POLICY, source.spec, source.recurrent_spec)
    critics = load_critics(source.version / NUMPY_POLICY, source.spec)
    title = f"{title} {facts['versions']['tfdpg']}."
    weights_file = WEIGHTS if weights_in_c_file else None
    header, weights = c_header(actor, title, critics, prefix, weights_file)
    (directory / HEADER).write_text(header)
    if weights_in_c_file:
        (directory / WEIGHTS).write_text(f'#include "{HEADER}"\n\n{weights}')
    files = dict.fromkeys(("pi", *critics), HEADER)
    reasons = {name: "it is not in the header" for name in source.signatures if name not in files}
    if "initial_state" in reasons:
        reasons["initial_state"] = f"it is {prefix}_start"
    return files, reasons


def compiler() -> str:
    """The system's compiler.

    Raises:
        ExportError: there is none.
    """
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise ExportError(f"A C header is compiled before it is left behind, and there is none of {', '.join(COMPILERS)}.")


@contextlib.contextmanager
def run(source: Source, directory: Path) -> Iterator[Run]:
    """Computes `pi` with the compiled header, for rows one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        (found,) = re.findall(r"^#ifndef (\w+)_POLICY_H$", (directory / HEADER).read_text(), re.MULTILINE)
        (Path(scratch) / "main.c").write_text(MAIN.replace("PREFIX", found).replace("prefix", found.lower()))
        weights = [str(path.absolute()) for path in [directory / WEIGHTS] if path.exists()]
        command = [compiler(), *FLAGS, f"-I{directory.absolute()}", "main.c", *weights, "-o", "main", "-lm"]
        compiled = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if compiled.returncode:
            raise ExportError(f"The header does not compile: {compiled.stderr[:2000]}")
        spec = source.spec
        recurrent_spec = source.recurrent_spec
        program = Path(scratch) / "main"
        leaves = [leaf.name for leaf in spec.leaves]
        parts = (
            {} if recurrent_spec is None else named_recurrent_inputs(recurrent_spec, recurrent_spec.initial_state(1))
        )

        def run_program(*arguments: str, rows: bytes = b"") -> np.ndarray:
            completed = subprocess.run([program, *arguments], input=rows, capture_output=True, check=True)
            return np.frombuffer(completed.stdout, np.float32)

        def call(name: str, inputs: Inputs) -> dict[str, Any]:
            if recurrent_spec is not None and name == "initial_state":
                return named_recurrent_inputs(recurrent_spec, np.tile(run_program("start"), (int(inputs["batch"]), 1)))
            count = len(inputs[leaves[0]])
            if name != "pi":
                given = [inputs[key].reshape(count, -1) for key in (*leaves, "a")]
                return {name: run_program(name, rows=np.concatenate(given, axis=1, dtype=np.float32).tobytes())}
            given = [inputs[key].reshape(count, -1) for key in (*leaves, *parts)]
            found = run_program(rows=np.concatenate(given, axis=1, dtype=np.float32).tobytes()).reshape(count, -1)
            actions, state = np.split(found, [spec.act_dim], axis=1)
            outputs = {"pi": actions if spec.actions is None else actions[:, 0].astype(np.int64)}
            if recurrent_spec is not None:
                outputs |= {
                    key: values
                    for key, values in named_recurrent_inputs(recurrent_spec, state).items()
                    if key in dict(recurrent_spec.parts)
                }
            return outputs

        yield call
