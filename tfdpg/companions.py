"""Functions of companions that the core offers, the only place where the core names its companions.

The core trains policies and exports them as SavedModels, without any companion. Its companions are the packages that
surround training: `checking`, `cli`, `diagnosis`, `distributed`, `formats`, `plotting`, `serve` and `tuning`.
"""

import pkgutil
from typing import Any

FUNCTIONS = {
    "c_layer": "tfdpg.formats.c_header:c_layer",
    "check_target": "tfdpg.formats.convert:check_target",
    "convert": "tfdpg.formats.convert:convert",
    "diagnose": "tfdpg.diagnosis.report:diagnose",
}
"""Functions by name, as module:function."""


def companion(name: str) -> Any:
    """Import a function of `FUNCTIONS`."""
    return pkgutil.resolve_name(FUNCTIONS[name])
