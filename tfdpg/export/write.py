"""Write SavedModels: signatures, verification, warm-up requests and `tfdpg.json`."""

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import gymnasium
import keras
import numpy as np
import tensorflow as tf

from tfdpg import files
from tfdpg.acting import NumpyCritic, NumpyPolicy, RecurrentSpec, greedy_forward
from tfdpg.acting.stored import load_critics, load_numpy_policy, save_numpy_policy
from tfdpg.export import verify
from tfdpg.export.describe import signature_facts
from tfdpg.export.references import REFERENCES, write_references
from tfdpg.export.signatures import Signature, count
from tfdpg.export.tf_agents import methods, with_signatures_of
from tfdpg.export.warmup import write_warmup
from tfdpg.exported.policy import NUMPY_POLICY, is_value, packed_inputs, recurrent_metadata
from tfdpg.exported.statistics import STATISTICS, DataStatistics, to_text
from tfdpg.exported.versions import (
    AGENT_WEIGHTS,
    FORMAT,
    METADATA,
    check_directory,
    move_to_next_version,
    new_directory,
)
from tfdpg.networks import in_half_precision
from tfdpg.spec import Spec

LENGTHS = (5, 3)
"""The number of steps of the sequences in each of `verify.BATCHES`."""


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
    statistics: DataStatistics | None = None,
    weights: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """Write a new version of a model, verify it, and only then move it into place.

    Args:
        directory: the model directory, which is created if it does not exist.
        spec: the spaces.
        networks: the networks that the signatures may call, by name; `policy` is the evaluation policy.
        signatures: the exported functions by name. `pi` is exported as `serving_default` as well.
        examples: raw observations by input name, at least seven. Seven of them are for the verification and the warm-up
            requests, and all of them for the reference outputs that `tfdpg verify` compares with.
        metadata: entries of `tfdpg.json` besides spaces, signatures and library versions.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.
        actor: a built-in policy in NumPy; None for other policies.
        critics: built-in critics in NumPy, by the names of their signatures.
        library: the library whose signatures are added; see `with_signatures_of`.
        statistics: those of the training data, for `tfdpg drift`; None if there are no data.
        weights: the arrays of `agent.npz`, from which an agent is made; empty for no such file.

    Returns:
        The directory of the new version.

    Raises:
        NotADirectoryError: `directory` is a file.
        ValueError: the library is unknown.
        ExportError: the exported model does not compute what the networks compute.
        tfdpg.files.DiskFullError: the disk is full. Earlier versions are unchanged.
    """
    directory = Path(directory)
    signatures = with_signatures_of(library, spec, signatures, recurrent_spec)
    check_directory(directory)
    functions = {name: signature.concrete(spec) for name, signature in signatures.items()}
    variables = {id(variable): variable for function in functions.values() for variable in function.variables}
    called = [each for each in networks.values() if any(id(variable.value) in variables for variable in each.variables)]

    def required_bytes() -> int:
        """Return the size of the weights, of those in `policy.npz`, and of the graphs."""
        numpy_networks = [] if actor is None else [actor, *critics.values()]
        sizes = [variable.numpy().nbytes for variable in variables.values()]
        sizes += [network.weights.nbytes for network in numpy_networks]
        return sum(sizes) + sum(function.graph.as_graph_def().ByteSize() for function in functions.values())

    with new_directory(directory, required_bytes=required_bytes) as scratch:
        module: Any = tf.Module()
        # raw variables: a tracked Keras model loads in Python, but not in TensorFlow Serving's loader
        module.raw = list(variables.values())
        for name, method in (methods(spec, signatures) if library else {}).items():
            setattr(module, name, method)
        # in notebooks, TensorFlow logs the name of the temporary directory, twice
        with verify.quiet("tensorflow", logging.WARNING):
            tf.saved_model.save(module, str(scratch), signatures=functions | {"serving_default": functions["pi"]})
        spread = np.linspace(0, count(examples) - 1, verify.BATCHES[-1]).astype(np.int64)
        few = {name: values[spread] for name, values in examples.items()}
        cases = _cases(spec, signatures, few)
        half_precision = any(map(in_half_precision, called))
        references = {name: signature.reference(spec) for name, signature in signatures.items()}
        with verify.in_float32():
            _verify(
                scratch, spec, networks["policy"], signatures, references, cases, few, recurrent_spec, half_precision
            )
            if actor is not None:
                _write_numpy_policy(scratch / NUMPY_POLICY, actor, critics, references, cases)
            write_references(scratch / REFERENCES, signatures, references, examples, recurrent_spec, half_precision)
        if weights:
            np.savez(scratch / AGENT_WEIGHTS, **cast(Any, weights))
        write_warmup(scratch, directory.resolve().name, cases)
        if statistics is not None:
            (scratch / STATISTICS).write_text(to_text(statistics))
        values = [name for name, each in functions.items() if is_value(name, each.structured_outputs)]
        description = {
            "format": FORMAT,
            "export_format": "tf_saved_model",
            **metadata,
            **({} if recurrent_spec is None else recurrent_metadata(recurrent_spec)),
            **spec.to_json(),
            "signatures": {
                name: {"file": "saved_model.pb"} | signature_facts(function, spec, recurrent_spec, values)
                for name, function in functions.items()
            },
            "left_out": {},
            # not from the installed distributions: TensorFlow may be installed as another one, such as tensorflow-cpu
            "versions": {"tfdpg": importlib.metadata.version("tfdpg")}
            | {each.__name__: each.__version__ for each in (tf, keras, gymnasium, np)},
        }
        files.write_manifest(scratch, METADATA, description)
        return move_to_next_version(scratch, directory)


def _verify(
    directory: Path,
    spec: Spec,
    policy: Any,
    signatures: Mapping[str, Signature],
    references: Mapping[str, verify.Reference],
    cases: Mapping[str, Sequence[verify.Inputs]],
    examples: verify.Inputs,
    recurrent_spec: RecurrentSpec | None,
    half_precision: bool,
) -> None:
    """Compare the SavedModel in a directory with the networks.

    Args:
        directory: the directory.
        spec: the spaces.
        policy: the evaluation policy.
        signatures: the signatures by name.
        references: compute the expected outputs of the signatures.
        cases: the inputs of the signatures.
        examples: raw observations by input name.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.
        half_precision: whether some of the networks compute in half precision.

    Raises:
        ExportError: they differ.
    """
    with verify.in_session(directory, trusted=True) as run:
        for name, batches in cases.items():
            expected = references.get(name, references["pi"])
            verify.compare_signature(name, run, expected, batches, half_precision, verify.rounded_outputs(spec))
        if recurrent_spec is not None:
            tolerance = verify.HALF_PRECISION if half_precision else verify.ATOL
            verify.check_steps(policy, recurrent_spec, examples, tolerance, run)
        for name, signature in signatures.items():
            if signature.axes == 1 and spec.missing == "hold":
                verify.check_missing(name, cases[name][-1], spec, run, references[name], half_precision)
            elif signature.axes == 1:
                verify.check_nonfinite(name, cases[name][-1], spec, run)


def _cases(
    spec: Spec, signatures: Mapping[str, Signature], examples: Mapping[str, np.ndarray]
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return inputs for each signature, in batches of 1 and 7; sequences have 5 and 3 steps."""
    pi = signatures["pi"]
    action = pi.reference(spec)({**examples, **pi.examples(examples)})["pi"]
    cases: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in signatures}
    for batch, steps in zip(verify.BATCHES, LENGTHS, strict=True):
        flat = np.arange(batch)
        for name, signature in signatures.items():
            taken = np.add.outer(flat, np.arange(steps)) % verify.BATCHES[-1] if signature.axes == 2 else flat
            inputs = {key: values[taken] for key, values in examples.items()}
            others = {"a": action[taken], **signature.examples(inputs)}
            cases[name].append((inputs if signature.axes else {}) | {key: others[key] for key in signature.inputs})
    return cases | {"serving_default": cases["pi"]}


def _write_numpy_policy(
    path: Path,
    actor: NumpyPolicy,
    critics: Mapping[str, NumpyCritic],
    references: Mapping[str, verify.Reference],
    cases: Mapping[str, Sequence[verify.Inputs]],
) -> None:
    """Write `policy.npz` for processes without TensorFlow, load it, and compare the loaded networks with the agent's.

    Args:
        path: the file.
        actor: the policy.
        critics: the critics, by the names of their signatures.
        references: the expected outputs of the signatures.
        cases: the inputs of the signatures.

    Raises:
        ExportError: actions or values differ.
    """
    spec, recurrent_spec = actor.spec, actor.recurrent_spec
    save_numpy_policy(path, actor, critics)
    act = greedy_forward(spec, recurrent_spec, load_numpy_policy(path, spec, recurrent_spec))
    expected = [_joined(references["pi"](inputs)) for inputs in cases["pi"]]
    atol = verify.ATOL * max(map(verify.scale, expected))
    for inputs, wanted in zip(cases["pi"], expected, strict=True):
        verify.compare(f"pi of {NUMPY_POLICY}", act(packed_inputs(spec, recurrent_spec, inputs)), wanted, atol)
    for name, critic in load_critics(path, spec).items():
        for inputs in cases[name]:
            found = critic(packed_inputs(spec, None, inputs), inputs["a"])
            wanted = references[name](inputs)[name]
            atol = verify.ATOL * critic.summand(verify.scale(wanted))
            verify.compare(f"{name} of {NUMPY_POLICY}", found, wanted, atol)


def _joined(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenate the outputs of `pi`: the action, and the parts of the recurrent state."""
    parts = list(outputs.values())
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1) if len(parts) > 1 else parts[0]
