"""Writing a SavedModel with its signatures."""

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import keras
import numpy as np
import tensorflow as tf

from tfdpg import files
from tfdpg.acting import NumpyCritic, NumpyPolicy, RecurrentSpec
from tfdpg.export.contract import signature_facts
from tfdpg.export.numpy_policy import write_numpy_policy
from tfdpg.export.recurrent import check_steps
from tfdpg.export.signature import Signature
from tfdpg.export.tf_agents import methods, with_signatures_of
from tfdpg.export.verify import ATOL, BATCHES, HALF_PRECISION, check_nonfinite, verify
from tfdpg.export.warmup import write_warmup
from tfdpg.exported import FORMAT, METADATA, check_directory, move_to_next_version, recurrent_metadata
from tfdpg.networks import in_half_precision
from tfdpg.spec import Spec

LENGTHS = (5, 3)
"""The steps of sequences in each of `BATCHES`."""


def write(
    directory: str | Path,
    spec: Spec,
    networks: Mapping[str, keras.Model],
    signatures: Mapping[str, Signature],
    examples: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    recurrent_spec: RecurrentSpec | None = None,
    actor: NumpyPolicy | None = None,
    critics: Mapping[str, NumpyCritic] = MappingProxyType({}),
    library: str | None = None,
) -> Path:
    """Writes a new version of a model, verifies it, and only then moves it into place.

    Args:
        directory: the model directory; made if need be.
        spec: the spaces.
        networks: the networks that the signatures may call, by name; `policy` is the evaluation policy.
        signatures: the exported functions by name, `pi` among them, which becomes `serving_default` as well.
        examples: raw observations by input name, at least seven, to verify and to warm up with.
        metadata: what goes into `tfdpg.json` beside spaces and library versions.
        recurrent_spec: what the policy recalls of an episode; None where it has no memory.
        actor: a stock policy's forward pass; None for others.
        critics: those of stock critics beside it, by the names of their signatures.
        library: whose signatures there are to be as well; see `with_signatures_of`.

    Returns:
        The directory of the new version.

    Raises:
        NotADirectoryError: `directory` is a file.
        ValueError: no such library.
        ExportError: the model that was written does not compute what the networks do.
        tfdpg.files.DiskFullError: the disk is full. Earlier versions stay as they are.
    """
    directory = Path(directory)
    signatures = with_signatures_of(library, spec, signatures, recurrent_spec)
    check_directory(directory)
    made = files.make_directory(directory)
    try:
        functions = {name: signature.concrete(spec) for name, signature in signatures.items()}
        networks = _called(networks, functions.values())
        numpy_networks = [] if actor is None else [actor, *critics.values()]
        required_bytes = functools.partial(_nbytes, networks, numpy_networks, [*functions.values()])
        with files.writing(directory, required_bytes), files.scratch_directory(directory) as scratch:
            described_signatures = {name: _described(each, spec, recurrent_spec) for name, each in functions.items()}
            functions |= {"serving_default": functions["pi"]}
            module = _RawVariables(networks.values())
            for name, method in (methods(spec, signatures) if library else {}).items():
                setattr(module, name, method)
            tf.saved_model.save(module, str(scratch), signatures=functions)
            cases = _cases(spec, signatures, examples)
            half_precision = any(map(in_half_precision, networks.values()))
            references = {name: s.reference(spec) for name, s in signatures.items()}
            checks = []
            if recurrent_spec is not None:
                metadata = {**metadata, **recurrent_metadata(recurrent_spec)}
                tolerance = HALF_PRECISION if half_precision else ATOL
                checks = [functools.partial(check_steps, networks["policy"], recurrent_spec, examples, tolerance)]
            leaves = [leaf.name for leaf in spec.leaves]
            rows = [name for name, signature in signatures.items() if signature.axes == 1]
            checks += [functools.partial(check_nonfinite, name, cases[name][-1], leaves) for name in rows]
            verify(scratch, references, cases, half_precision, checks)
            if actor is not None:
                write_numpy_policy(scratch, spec, actor, critics, recurrent_spec, references, cases)
            write_warmup(scratch, directory.resolve().name, cases)
            files.write_manifest(scratch, METADATA, _describe(spec, metadata, described_signatures))
            return move_to_next_version(scratch, directory)
    except BaseException:
        with contextlib.suppress(OSError):  # someone else uses the directory by now
            for path in made:
                path.rmdir()
        raise


def _nbytes(
    networks: Mapping[str, keras.Model], numpy_networks: Iterable[NumpyPolicy | NumpyCritic], functions: Iterable[Any]
) -> int:
    """What a model takes, for the most part: its weights, those in `policy.npz`, and its graphs."""
    weights = sum(np.asarray(variable).nbytes for variable in _variables(networks.values()))
    graphs = sum(function.graph.as_graph_def().ByteSize() for function in functions)
    return weights + sum(each.weights.nbytes for each in numpy_networks) + graphs


def _cases(
    spec: Spec, signatures: Mapping[str, Signature], examples: Mapping[str, np.ndarray]
) -> dict[str, list[dict[str, np.ndarray]]]:
    """The inputs of each signature, in batches of 1 and 7, of sequences of 5 and 3 steps."""
    pi = signatures["pi"]
    rows = {**examples, "a": pi.reference(spec)({**examples, **pi.examples(examples)})["pi"]}
    cases: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in signatures}
    for batch, steps in zip(BATCHES, LENGTHS, strict=True):
        flat = np.arange(batch)
        for name, signature in signatures.items():
            taken = np.add.outer(flat, np.arange(steps)) % BATCHES[-1] if signature.axes == 2 else flat
            inputs = {key: rows[key][taken] for key in examples}
            others = {"a": rows["a"][taken], **signature.examples(inputs)}
            seen = inputs if signature.axes else {}
            cases[name].append(seen | {key: others[key] for key in signature.inputs})
    return cases | {"serving_default": cases["pi"]}


class _RawVariables(tf.Module):
    """Tracks raw variables. A tracked Keras model loads in Python and fails in TensorFlow Serving's loader."""

    def __init__(self, networks: Iterable[keras.Model]):
        super().__init__()
        self.raw = [variable.value for variable in _variables(networks)]


def _called(networks: Mapping[str, keras.Model], functions: Iterable[Any]) -> dict[str, keras.Model]:
    """The networks that functions call: those of which a function reads a variable."""
    read = {id(outside) for function in functions for outside, _ in function.graph.captures}
    return {
        name: network
        for name, network in networks.items()
        if any(id(variable.value.handle) in read for variable in network.variables)
    }


def _variables(networks: Iterable[keras.Model]) -> list[Any]:
    """The variables of networks, each once."""
    return list({id(variable): variable for network in networks for variable in network.variables}.values())


def _described(function: Any, spec: Spec, recurrent_spec: RecurrentSpec | None) -> dict[str, Any]:
    """What `tfdpg.json` says of a signature."""
    inputs = {each.name: each for each in tf.nest.flatten(function.structured_input_signature)}
    return {"file": "saved_model.pb"} | signature_facts(inputs, function.structured_outputs, spec, recurrent_spec)


def _describe(spec: Spec, metadata: Mapping[str, Any], signatures: Mapping[str, Any]) -> dict[str, Any]:
    # their own word: TensorFlow may be installed under another name, such as tensorflow-cpu
    others = {library.__name__: library.__version__ for library in (tf, keras, gymnasium, np)}
    versions = {"tfdpg": importlib.metadata.version("tfdpg"), **others}
    facts = {"signatures": signatures, "left_out": {}, "versions": versions}
    return {"format": FORMAT, "export_format": "tf_saved_model", **metadata, **spec.to_json(), **facts}
