"""Exported models, read: their directories, and policies that act. TensorFlow is loaded when a signature is asked."""

from tfdpg.exported.policy import LEVELS, STOCK, Policy, load
from tfdpg.exported.recalled import described, named, packed_inputs, recall_of, step
from tfdpg.exported.safety import check_safe, loadable
from tfdpg.exported.versions import (
    FORMAT,
    METADATA,
    ExportError,
    check_directory,
    copy,
    latest_version,
    metadata,
    move_to_next_version,
    versions,
)

__all__ = [
    "FORMAT",
    "LEVELS",
    "METADATA",
    "STOCK",
    "ExportError",
    "Policy",
    "check_directory",
    "check_safe",
    "copy",
    "described",
    "latest_version",
    "load",
    "loadable",
    "metadata",
    "move_to_next_version",
    "named",
    "packed_inputs",
    "recall_of",
    "step",
    "versions",
]
