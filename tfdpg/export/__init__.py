"""Policies and critics as SavedModels: write, verify, load, warm up."""

from tfdpg.export.examples import example_observations
from tfdpg.export.policy import Policy, describe, load
from tfdpg.export.verify import ExportError
from tfdpg.export.versions import copy, latest_version, versions
from tfdpg.export.write import write

__all__ = [
    "ExportError",
    "Policy",
    "copy",
    "describe",
    "example_observations",
    "latest_version",
    "load",
    "versions",
    "write",
]
