"""Export policies and critics: write, verify, convert and load exported models."""

from typing import TYPE_CHECKING, Any

from tfdpg.companions import companion
from tfdpg.export.describe import describe
from tfdpg.export.examples import Observations, example_observations, measured_observations, observations_of_export
from tfdpg.export.labels import keep_newest, read_labels, write_labels
from tfdpg.export.signatures import (
    Signature,
    preprocessed_signatures,
    return_signature,
    signatures,
    single_step_signatures,
)
from tfdpg.export.training_data import training_statistics
from tfdpg.export.write import write
from tfdpg.exported import ExportError, Policy, check_safe, copy, latest_version, load, metadata, versions

if TYPE_CHECKING:
    from tfdpg.formats.c_header import c_layer
    from tfdpg.formats.convert import convert
    from tfdpg.serve.prediction_logs import read_prediction_logs

__all__ = [
    "ExportError",
    "Observations",
    "Policy",
    "Signature",
    "observations_of_export",
    "c_layer",
    "check_safe",
    "convert",
    "copy",
    "describe",
    "example_observations",
    "keep_newest",
    "latest_version",
    "measured_observations",
    "load",
    "metadata",
    "read_labels",
    "read_prediction_logs",
    "preprocessed_signatures",
    "return_signature",
    "signatures",
    "single_step_signatures",
    "training_statistics",
    "versions",
    "write",
    "write_labels",
]


def __getattr__(name: str) -> Any:
    if name in ("c_layer", "convert", "read_prediction_logs"):
        return companion(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
