"""Read transitions from tables: pandas DataFrames, CSV files and Parquet files."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.arguments import shown
from tfdpg.replay.names import ALIASES, with_standard_names
from tfdpg.spec import Spec

TABLES = {".csv": "read_csv", ".parquet": "read_parquet"}
"""The suffixes of files with tables, and the pandas function that reads each."""
PER_ROW = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
"""The arrays with one number for each transition, and the columns that usually hold them; see `ALIASES`."""


def is_table(data: Any) -> bool:
    """Return whether an object is a DataFrame."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def read_table(path: Path) -> Any:
    """Return the DataFrame in a CSV or Parquet file.

    Args:
        path: the file, whose suffix says which of both it is.

    Raises:
        ImportError: pandas is not installed, or pyarrow for a Parquet file.
        FileNotFoundError: the file does not exist.
        ValueError: it is not a regular file, or has other content.
    """
    if not path.exists():
        raise FileNotFoundError(f"`data` must exist. Received: data={str(path)!r}")
    if not path.is_file():
        raise ValueError(f"`data` must be a file. Received: data={str(path)!r}, which is none")
    try:
        import pandas

        return getattr(pandas, TABLES[path.suffix.lower()])(path)
    except ImportError as error:
        raise ImportError(f"{path} is read with pandas and pyarrow: pip install 'tfdpg[tables]'. {error}") from error
    except (ValueError, OSError) as error:  # pandas' and pyarrow's errors are ValueErrors or OSErrors
        raise ValueError(f"`data` must be a table. Received: {path}, which is none: {shown(str(error))}") from error


def table_arrays(spec: Spec, table: Any, source: str) -> dict[str, Any]:
    """Return the transitions in a table as arrays, as `Agent.fit_offline` takes them.

    Args:
        spec: the spaces of the environment.
        table: a DataFrame with a row for each transition, in chronological order within each episode. Its columns are

            - `obs_0`, `obs_1`, ... or `observation_0`, ...: the components of the observation, in the order of the
              flattened array; for a Dict or Tuple space `obs_<name>_0`, ...; for one number `obs` or `obs_<name>`;
            - optionally `next_obs_0`, ...: those of the next observation, with the same names after `next_`;
            - `action_0`, `action_1`, ..., or `action` for one component, in the environment's units;
            - `reward` and `terminated`;
            - `truncated`, `episode` or both: `episode` has the number or name of each row's episode, whose last row
              counts as truncated unless it is terminated.
        source: where the table comes from, for messages.

    Returns:
        `observations`, `actions`, `rewards`, `terminations`, and, if known, `truncations` and `next_observations`.

    Raises:
        ValueError: a column is missing, or there are more of one kind than the spaces have.
    """
    is_last = None
    if "episode" in table.columns:
        order, is_last = _episodes(table["episode"], source)
        table = table.iloc[order]
    per_row = [column for column in table.columns if ALIASES.get(column, column) in PER_ROW]
    arrays = with_standard_names({column: table[column].to_numpy() for column in per_row}, source)
    for name in ("rewards", "terminations"):
        if name not in arrays:
            raise _missing(f"the column {PER_ROW[name]!r}", table, source)
    if is_last is not None:
        arrays["truncations"] = np.where(is_last, True, arrays.get("truncations", False))
    arrays["actions"] = _columns(table, ("action_", "action"), spec.act_dim, source)
    columns = [str(column) for column in table.columns]
    for name, begin in (("observations", ""), ("next_observations", "next_")):
        names = [f"{begin}{each}" for each in ("obs", "observation")]
        used = [each for each in names if any(c == each or c.startswith(f"{each}_") for c in columns)]
        if used:
            arrays[name] = _observations(spec, table, used[0], source)
        elif name == "observations":
            raise _missing("columns 'obs_0', 'obs_1', ...", table, source)
    return arrays


def _episodes(column: Any, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an order in which the rows of each episode follow one another, and which rows are then the last ones."""
    if (missing := column.isna().to_numpy()).any():
        raise ValueError(
            f"The table {source} must have an 'episode' in each row. Received: none in row {int(missing.argmax())}"
        )
    names = column.to_numpy()
    _, first, episode = np.unique(names, return_index=True, return_inverse=True)
    place = first[episode]
    order = np.argsort(place, kind="stable")
    return order, np.append(place[order][1:] != place[order][:-1], True)[: len(names)]


def _observations(spec: Spec, table: Any, prefix: str, source: str) -> Any:
    parts = {}
    for leaf in spec.leaves:
        name = f"{prefix}_{leaf.name}" if spec.is_dict else prefix
        size = int(np.prod(leaf.shape, dtype=int))
        values = _columns(table, (f"{name}_", name), size, source)
        parts[leaf.name] = values.reshape(-1, *leaf.shape)
    return parts if spec.is_dict else parts["x"]


def _columns(table: Any, names: tuple[str, str], size: int, source: str) -> np.ndarray:
    """Return the columns `<prefix>0`, `<prefix>1`, ... as `[n, size]`; one column may have a name without a number."""
    prefix, single = names
    pattern = re.compile(rf"{re.escape(prefix)}\d+")
    found = [str(column) for column in table.columns if pattern.fullmatch(str(column))]
    wanted = [f"{prefix}{i}" for i in range(size)]
    if not found and size == 1 and single in table.columns:
        wanted = found = [single]
    if set(found) != set(wanted):
        expected = f"the columns {prefix}0 to {prefix}{size - 1}" if size > 1 else f"the column {prefix}0"
        raise _missing(f"{expected}, as the spaces have {size},", table, source)
    return table[wanted].to_numpy()


def _missing(expected: str, table: Any, source: str) -> ValueError:
    return ValueError(f"The table {source} must have {expected}. Received: {shown([str(c) for c in table.columns])}")
