"""Read exported models: model directories and policies. TensorFlow is imported when a signature is first called."""

from tfdpg.exported.policy import LEVELS, NUMPY_POLICY, Policy, load, named_recurrent_inputs, step
from tfdpg.exported.safety import check_safe, loadable
from tfdpg.exported.versions import (
    FORMAT,
    METADATA,
    ExportError,
    check_directory,
    copy,
    latest_version,
    metadata,
    new_directory,
    versions,
)

__all__ = [
    "FORMAT",
    "LEVELS",
    "METADATA",
    "NUMPY_POLICY",
    "ExportError",
    "Policy",
    "check_directory",
    "check_safe",
    "copy",
    "latest_version",
    "load",
    "loadable",
    "metadata",
    "named_recurrent_inputs",
    "new_directory",
    "step",
    "versions",
]
