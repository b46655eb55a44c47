"""A verified SavedModel, from which the other formats are made."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.export.warmup import read_warmup
from tfdpg.exported import LEVELS, Policy

HALF = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)


class Source(Policy):
    """A policy's SavedModel, which TensorFlow loads when its signatures are first used, with its warm-up requests.

    Args:
        version: the directory of a version.
        batch: the number of rows that signatures take; None leaves it free.
        trusted: whether to load the SavedModel without checking its operations.

    Attributes:
        version: the directory.
        batch: the number of rows that signatures take; None if it is free.

    Raises:
        ExportError: a file is damaged, missing, changed, or of another export.
    """

    def __init__(self, version: Path, batch: int | None = None, trusted: bool = False):
        super().__init__(version, trusted)
        self.version = version
        self.batch = batch

    @functools.cached_property
    def cases(self) -> dict[str, list[dict[str, np.ndarray]]]:
        """For each signature inputs in batches of 1 and 7, with observations from the replay buffer."""
        return {name: inputs for name, inputs in read_warmup(self.version).items() if name != "serving_default"}

    def facts(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the `inputs` and `outputs` of a signature in their order, as `tfdpg.json` describes them.

        With a number `batch`, the batch size and the number of levels are fixed in the shapes.
        """
        sizes = {} if self.batch is None else {"batch": self.batch, "levels": len(LEVELS)}
        return {
            key: [tensor | {"shape": [sizes.get(size, size) for size in tensor["shape"]]} for tensor in tensors]
            for key, tensors in self.metadata["signatures"][name].items()
            if key in ("inputs", "outputs")
        }

    def inputs(self, name: str) -> dict[str, tf.TensorSpec]:
        """Return the inputs of a signature, in their order."""
        return {
            one["name"]: tf.TensorSpec(
                [None if isinstance(size, str) else size for size in one["shape"]], one["dtype"], one["name"]
            )
            for one in self.facts(name)["inputs"]
        }

    @property
    def observations(self) -> dict[str, np.ndarray]:
        """Seven raw observations by input name."""
        return {leaf.name: self.cases["pi"][-1][leaf.name] for leaf in self.spec.leaves}

    @functools.cached_property
    def signatures(self) -> dict[str, Any]:
        """The signatures by name, as concrete functions of positional tensors.

        Raises:
            ExportError: an operation is refused.
        """
        return {name: self._by_position(name) for name in self.cases}

    def _by_position(self, name: str) -> Any:
        """Return a signature as a function of its inputs in their order, each of known rank.

        With a number `batch`, the inputs and outputs have that many rows, and `initial_state` returns that many rows
        for any input.
        """
        signature = self._model.signatures[name]
        # the names of tensors may contain slashes, and those of arguments may not
        arguments = {tensor.name: argument for argument, tensor in signature.structured_input_signature[1].items()}
        inputs = self.inputs(name)

        def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            given = {arguments[key]: tensor for key, tensor in zip(inputs, tensors, strict=True)}
            if self.batch is None:
                return signature(**given)
            outputs = signature(
                **{key: each if each.shape.rank else tf.constant(self.batch) for key, each in given.items()}
            )
            for output in outputs.values():
                output.set_shape([self.batch, *output.shape[1:]])
            return outputs

        return tf.function(call, autograph=False).get_concrete_function(*inputs.values())

    def nodes(self, name: str) -> Iterable[Any]:
        """Yield the nodes of a signature's graph, and of the functions that it calls."""
        graph = self.signatures[name].graph.as_graph_def()
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def

    def in_half_precision(self) -> bool:
        """Return whether a signature contains operations in half precision."""
        nodes = (node for name in self.signatures for node in self.nodes(name))
        return any(value.type in HALF for node in nodes for value in node.attr.values())

    def save(self, directory: str, names: Mapping[str, str]) -> None:
        """Write some of the signatures as a SavedModel.

        Args:
            directory: the directory to write to.
            names: the names of the signatures, by their names in the new SavedModel.
        """
        module: Any = tf.Module()
        module.model = self._model  # it keeps the variables of the signatures
        tf.saved_model.save(module, directory, signatures={key: self.signatures[name] for key, name in names.items()})
