"""Functions of companions that the core offers, such as `Agent.diagnose`, by the place where they are imported from.

The core trains policies and exports them as SavedModels, without any companion. Its companions are the packages that
surround training: `checking`, `cli`, `diagnosis`, `distributed`, `formats`, `plotting`, `serve` and `tuning`.
Only this table and the public names in `tfdpg/__init__.py` name them.
"""

import pkgutil
from typing import Any

FUNCTIONS = {
    "c_layer": "tfdpg.formats.c_header:c_layer",
    "check_target": "tfdpg.formats.convert:check_target",
    "convert": "tfdpg.formats.convert:convert",
    "diagnose": "tfdpg.diagnosis.report:diagnose",
    "read_prediction_logs": "tfdpg.serve.prediction_logs:read_prediction_logs",
}
"""Functions by name, as module:function."""


def companion(name: str) -> Any:
    """Import a function of `FUNCTIONS`."""
    return pkgutil.resolve_name(FUNCTIONS[name])
