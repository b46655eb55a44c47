"""Read exported models: model directories and policies. TensorFlow is imported when a signature is first called."""

from tfdpg.exported.policy import (
    LEVELS,
    NUMPY_POLICY,
    Policy,
    is_value,
    load,
    named_recurrent_inputs,
    packed_inputs,
    recurrent_metadata,
    recurrent_spec_of,
    step,
)
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
    "recurrent_metadata",
    "is_value",
    "latest_version",
    "load",
    "loadable",
    "metadata",
    "move_to_next_version",
    "named_recurrent_inputs",
    "new_directory",
    "packed_inputs",
    "recurrent_spec_of",
    "step",
    "versions",
]
