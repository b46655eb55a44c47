"""What can happen to a directory of files, by the random numbers of a case; and what may come of it."""

import contextlib
import json
import shutil
import traceback
import zipfile
from pathlib import Path

import numpy as np

import tfdpg
from tfdpg import files

PACKAGE = str(Path(tfdpg.__file__).parent)
RAW = {"RAW deep": b"[" * 20_000 + b"]" * 20_000, "RAW bytes": b'"\xff\xfe"', "RAW long": b"9" * 5_000}
RAW |= {"RAW half": b'"\\ud800"', "RAW word": b"undefined"}
"""What JSON should not hold, by the texts in whose place it is written."""
VALUES = [None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../x"]
VALUES += ["TD3", "float32", [], {}, [[]], [1, 2], [None], {"x": 1}, {"callable": "os:system"}, *RAW]
UNFIT = ValueError, TypeError, OverflowError, zipfile.BadZipFile
"""The errors that reading a damaged value may raise."""
NAMES = ["x", "rows", "images", "heads", "successor", "format", "networks", "device"]
FILES = ["x.old", "rows-1.npz", "rows-x.npz", "replay-0.npz", "saved_model.pbtxt"]
ARRAYS = [
    lambda rng, array: array.astype(picked(rng, [np.float64, np.complex64, np.int8, str, bool, object])),
    lambda rng, array: array[..., None],
    lambda rng, array: array.ravel()[: rng.integers(array.size + 1)],
    lambda rng, array: np.concatenate([array, array]),
    lambda rng, array: np.full_like(array, picked(rng, [0, 1, -1, 100])),
    lambda rng, array: array + picked(rng, [1, -1, 2**40, 1e30, np.nan]),
    lambda rng, array: np.array(picked(rng, [0, -1, 2**62, 1.5, "x", [], None, [[1]]])),
]
CONTENTS = {
    "cut": lambda rng, a, b: a[: len(b)],
    "flip": lambda rng, a, b: a + bytes([b[0] ^ 1 << rng.integers(8)]) + b[1:] if b else a,
    "zero": lambda rng, a, b: a + bytes(len(b)),
    "grow": lambda rng, a, b: a + rng.bytes(9) + b,
    "empty": lambda rng, a, b: b"",
}
"""What becomes of a file's content, which is cut in two."""
INSTEAD = {
    "remove": lambda rng, path, content: None,
    "directory": lambda rng, path, content: path.mkdir(),
    "link": lambda rng, path, content: path.symlink_to(picked(rng, [path, path.parent, path.parent / "nothing"])),
    "rename": lambda rng, path, content: path.with_name(picked(rng, FILES)).write_bytes(content),
}


def check_ours(error, path=""):
    """Fails unless an error was raised by a `raise` of tfdpg, with a message that names the path."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = str(error)
    found = f"{type(error).__name__} of {where.filename}:{where.lineno}: {message[:500]}"
    assert where.filename.startswith(PACKAGE) and where.line.startswith("raise "), found
    assert (str(path) in message or "Give it again" in message) and 0 < len(message) < 3_000, found


def picked(rng, values):
    return values[rng.integers(len(values))]


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def edit(rng, description):
    """Edits a JSON value in place; says how."""
    container, key = _place(rng, description)
    source, name = _place(rng, description)
    how = rng.random()
    old = container[key]
    copy = json.loads(json.dumps(source[name]))
    new = picked(rng, [*VALUES, *VALUES, copy, copy, copy, str(old), [old], {"x": old}])
    if how < 0.3 and isinstance(old, int | float):
        new = picked(rng, [old + 1, -old, old * 2, old / 2, old * 10**6])
    if how > 0.85:
        del container[key]
    elif how > 0.7 and isinstance(container, dict):
        container[picked(rng, [*NAMES, *container])] = new
    else:
        container[key] = new
    return f"{key} {str(old)[:60]!r}, {str(new)[:60]!r}, {how:.1f}"


def _place(rng, value):
    """A random container in a JSON value, and a key of it."""
    while True:
        key = picked(rng, list(value) if isinstance(value, dict) else range(len(value)))
        if not (isinstance(value[key], dict | list) and value[key]) or rng.random() < 0.25:
            return value, key
        value = value[key]


def to_bytes(description):
    content = json.dumps(description, indent=2).encode()
    for word, raw in RAW.items():
        content = content.replace(f'"{word}"'.encode(), raw)
    return content


def edit_arrays(rng, path):
    """Edits an `.npz` that holds no objects; says how."""
    with contextlib.suppress(*UNFIT), np.load(path) as file:
        arrays = dict(file)
        name = picked(rng, list(arrays))
        other = picked(rng, list(arrays))
        how = rng.random()
        array = arrays[name]
        if how < 0.1:
            del arrays[name]
        elif how < 0.3:
            arrays[picked(rng, [other, *NAMES])], arrays[name] = arrays[name], arrays[other]
        elif str(array).startswith("{"):
            description = json.loads(str(array))
            edit(rng, description)
            arrays[name] = np.array(to_bytes(description).decode(errors="replace"))
        else:
            with np.errstate(all="ignore"):
                arrays[name] = picked(rng, ARRAYS)(rng, array)
        np.savez(path, **arrays)
        return f"array {name} of {path.name}"
    return f"nothing to {path.name}"


def damage(rng, directory, relatives):
    """Damages a directory, as disks and people do who mean no harm; says how, in a list."""
    done = []
    for _ in range(rng.integers(1, 4)):
        if paths := files_of(directory):
            way, path, other = picked(rng, [*CONTENTS, *INSTEAD, "swap", "take", "edit"]), *rng.choice(paths, 2)
            done.append(f"{way} {path.name}")
            if way == "take":
                other = picked(rng, files_of(picked(rng, relatives)()))
                path = picked(rng, [path, path.with_name(other.name)])
            _apply(rng, way, path, other)
    return done


def _apply(rng, way, path, other):
    content = path.read_bytes() if path.is_file() else b""
    place = rng.integers(len(content) + 1)
    with contextlib.suppress(OSError, *UNFIT):
        if way in INSTEAD:
            path.unlink()
            INSTEAD[way](rng, path, content)
        elif way in CONTENTS:
            path.write_bytes(CONTENTS[way](rng, content[:place], content[place:]))
        elif way in ("take", "swap"):
            path.write_bytes(other.read_bytes())
            if way == "swap":
                other.write_bytes(content)
        elif path.suffix == ".npz":
            edit_arrays(rng, path)
        else:
            edit(rng, description := json.loads(content))
            path.write_bytes(to_bytes(description) + b"\n")


def forge(rng, directory, relatives, name):
    """Changes the description and the arrays of a sealed directory, and the sums accordingly; says how, in a list."""
    done = []
    path = directory / name
    description = json.loads(path.read_bytes())
    del description["files"], description["sha256"]
    for _ in range(rng.integers(1, 4)):
        paths = sorted(directory.glob("*.npz"))
        how = rng.random()
        if how < 0.5 or not paths:
            done.append(edit(rng, description))
        elif how < 0.8:
            done.append(edit_arrays(rng, picked(rng, paths)))
        elif how < 0.9:
            picked(rng, paths).unlink()
        else:
            source = picked(rng, sorted(picked(rng, relatives)().glob("*.npz")))
            done.append(f"take {shutil.copyfile(source, directory / source.name)}")
    others = (each for each in files_of(directory) if each != path)
    description["files"] = {each.relative_to(directory).as_posix(): files._checksum(each) for each in others}
    if rng.random() < 0.1:
        done.append("then " + edit(rng, description))
    path.write_bytes(files._with_checksum(to_bytes(description)[:-2] + b",\n  "))
    return done
