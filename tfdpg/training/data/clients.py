"""Split stored transitions by the client that took them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdpg.arguments import reject, shown

OBSERVATIONS = "observations", "next_observations"


def by_client(data: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Split transitions by the array `client_ids`; without it, return all of them under the key None.

    Rewards, terminations and truncations may be dicts by client, with arrays in the order of the client's steps.

    Raises:
        ValueError: an array does not have a row for each step, or a client is missing.
    """
    if "client_ids" not in data:
        for name, values in data.items():
            if isinstance(values, Mapping) and name not in OBSERVATIONS:
                raise reject(name, "an array if there are no `client_ids`", values)
        return {None: dict(data)}
    rows: dict[Any, list[int]] = {}
    for row, client in enumerate(data["client_ids"]):
        rows.setdefault(client, []).append(row)
    rest = {name: values for name, values in data.items() if name != "client_ids"}
    count = len(data["client_ids"])
    return {
        client: {name: _select_client(name, values, client, client_rows, count) for name, values in rest.items()}
        for client, client_rows in rows.items()
    }


def _select_client(name: str, values: Any, client: Any, rows: list[int], count: int) -> Any:
    if isinstance(values, Mapping) and name in OBSERVATIONS:
        return {key: _select_client(f"{name}/{key}", part, client, rows, count) for key, part in values.items()}
    if isinstance(values, Mapping):
        if client not in values or len(values[client]) != len(rows):
            received = f"{len(values[client])} of them" if client in values else f"the clients {shown(list(values))}"
            raise ValueError(f"`{name}` must have {len(rows)} numbers for client {client!r}. Received: {received}")
        return np.asarray(values[client])
    if len(values) != count:
        raise ValueError(f"`{name}` must have a row for each of {count} steps. Received: {len(values)} rows")
    return np.asarray(values)[rows]
