"""What other formats are made of: a verified SavedModel, opened."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.export.contract import in_order
from tfdpg.export.warmup import read_warmup
from tfdpg.exported import LEVELS, loadable, metadata, recurrent_spec_of
from tfdpg.spec import Spec

HALF = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)


class Source(NamedTuple):
    """A verified SavedModel.

    Attributes:
        version: its directory.
        metadata: the content of its `tfdpg.json`.
        spec: the spaces.
        recurrent_spec: what its policy recalls of an episode; None where it has no memory.
        model: keeps the variables of the signatures.
        signatures: functions of tensors by position, by name; every input has a rank.
        cases: for each signature inputs in batches of 1 and 7, on observations of the replay.
        batch: the number of rows that signatures take; None where it is free.
    """

    version: Path
    metadata: dict[str, Any]
    spec: Spec
    recurrent_spec: RecurrentSpec | None
    model: Any
    signatures: Mapping[str, Any]
    cases: Mapping[str, Sequence[dict[str, np.ndarray]]]
    batch: int | None = None

    @classmethod
    def open(cls, version: Path, batch: int | None = None, trusted: bool = False) -> "Source":
        """Opens a version's directory.

        Args:
            version: the directory.
            batch: the number of rows that signatures are to take; None leaves it free.
            trusted: whether to load the SavedModel whatever its operations do.

        Raises:
            ExportError: a file is damaged, missing, changed, or of another export; or an operation is refused.
        """
        facts = metadata(version)
        spec = Spec.from_json(facts)
        recurrent_spec = recurrent_spec_of(spec, facts)
        with loadable(version, trusted) as path:
            model = tf.saved_model.load(path)
        cases = {name: inputs for name, inputs in read_warmup(version).items() if name != "serving_default"}
        signatures = {name: _by_position(model.signatures[name], spec, recurrent_spec, batch) for name in cases}
        return cls(version, facts, spec, recurrent_spec, model, signatures, cases, batch)

    @property
    def observations(self) -> dict[str, np.ndarray]:
        """Seven raw observations by input name."""
        return {leaf.name: self.cases["pi"][-1][leaf.name] for leaf in self.spec.leaves}

    def is_of_rows(self, name: str) -> bool:
        """Whether a signature takes an observation for each row, and no sequences of them."""
        leaf = self.spec.leaves[0]
        given = self.inputs(name).get(leaf.name)
        return given is not None and len(given.shape) == len(leaf.shape) + 1

    def inputs(self, name: str) -> dict[str, tf.TensorSpec]:
        """The inputs of a signature, in their order."""
        return {spec.name: spec for spec in self.signatures[name].structured_input_signature[0]}

    def nodes(self, name: str) -> Iterable[Any]:
        """The nodes of a signature's graph, and of the functions that it calls."""
        graph = self.signatures[name].graph.as_graph_def()
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def

    def in_half_precision(self) -> bool:
        """Whether something is computed in half precision."""
        nodes = (node for name in self.signatures for node in self.nodes(name))
        return any(value.type in HALF for node in nodes for value in node.attr.values())

    def save(self, directory: str, names: Mapping[str, str]) -> None:
        """Writes some of the signatures as a SavedModel.

        Args:
            directory: where it is written.
            names: of the signatures, by the names that they get there.
        """
        module: Any = tf.Module()
        module.model = self.model
        tf.saved_model.save(module, directory, signatures={key: self.signatures[name] for key, name in names.items()})


def _by_position(signature: Any, spec: Spec, recurrent_spec: RecurrentSpec | None, batch: int | None) -> Any:
    """A signature with its inputs in their order, each of them with a rank; `levels` has one for each observation.

    With a number `batch`, all shapes are fixed: inputs and outputs have that many rows, `levels` has as many columns as
    `LEVELS`, and `initial_state` gives that many rows whatever its input says.
    """
    _, given = signature.structured_input_signature
    arguments = {tensor.name: argument for argument, tensor in given.items()}  # a name may have a slash
    names = [arguments[name] for name in in_order(arguments, spec, recurrent_spec)]
    ranked = []
    for tensor in (given[name] for name in names):
        shape: Any = (
            [batch, None if batch is None else len(LEVELS)] if tensor.name == "levels" else tensor.shape.as_list()
        )
        ranked.append(tf.TensorSpec([batch, *shape[1:]] if shape else [], tensor.dtype, tensor.name))

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = dict(zip(names, tensors, strict=True))
        if batch is None:
            return signature(**inputs)
        outputs = signature(**{name: each if each.shape.rank else tf.constant(batch) for name, each in inputs.items()})
        for output in outputs.values():
            output.set_shape([batch, *output.shape[1:]])
        return outputs

    return tf.function(call, autograph=False).get_concrete_function(*ranked)
