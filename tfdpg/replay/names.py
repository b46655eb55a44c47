"""The names of the arrays of transitions, in data that comes in and in what a replay buffer returns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

ALIASES = {
    "observation": "observations",
    "next_observation": "next_observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "termination": "terminations",
    "terminals": "terminations",
    "truncated": "truncations",
    "truncation": "truncations",
    "timeouts": "truncations",
    "discount": "discounts",
    "weight": "weights",
    "behaviour": "behaviours",
    "recurrent_state": "states",
}
"""Names that are read, too, with the names that tfdpg uses, which are those of Minari. D4RL has two of the others."""
KNOWN = {"next_observations", "client_ids", "prediction_logs", *ALIASES.values()}
"""All names of arrays that are read."""


class NamedTransitions(dict[str, Any]):
    """Arrays of transitions by name: `transitions["rewards"]`; `transitions["reward"]` is read, too.

    Attributes:
        n_step: the largest number of steps that one row spans.
    """

    n_step: int = 1

    def __missing__(self, name: str) -> Any:
        if name not in ALIASES:
            raise KeyError(name)
        return self[ALIASES[name]]


def with_standard_names(data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return arrays under the names that tfdpg uses. `observation/<key>` becomes `observations/<key>`.

    Args:
        data: arrays by name. Names that tfdpg does not know are kept.
        what: the name of the argument that holds them, for the message.

    Raises:
        ValueError: an array is there under two names, or has masked values.
    """
    named: dict[str, Any] = {}
    for given, values in data.items():
        first, *rest = str(given).split("/", 1)
        name = "/".join([ALIASES.get(first, first), *rest])
        if name in named:
            raise ValueError(f"`{what}` must have the array {name!r} once. Received: it is there under two names")
        if _is_masked(values):
            raise ValueError(f"`{what}` must have no masked values. Received: masked values in {name!r}")
        named[name] = values
    return named


def _is_masked(values: Any) -> bool:
    """Return whether an array, or one in a dict of arrays, has masked values."""
    if isinstance(values, Mapping):
        return any(map(_is_masked, values.values()))
    return bool(np.ma.is_masked(values))
