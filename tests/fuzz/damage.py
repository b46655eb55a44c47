"""What can happen to a directory of files, by the random numbers of a case."""

import hashlib
import json
import shutil

import numpy as np

from tfdpg import files

RAW = {
    "RAW deep": b"[" * 20_000 + b"]" * 20_000,
    "RAW bytes": b'"\xff\xfe"',
    "RAW long": b"9" * 5_000,
    "RAW half": b'"\\ud800"',
    "RAW word": b"undefined",
}
"""What JSON should not hold, by the texts in whose place it is written."""
VALUES = [None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../x"]
VALUES += ["TD3", "float32", [], {}, [[]], [1, 2], [None], {"x": 1}, {"callable": "os:system"}, *RAW]


def picked(rng, values):
    return values[rng.integers(len(values))]


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _flip(rng, path):
    content = bytearray(path.read_bytes())
    for position in rng.integers(max(len(content), 1), size=rng.integers(1, 9)) if content else ():
        content[position] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def _cut(rng, path):
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size + 1)])


def _zero(rng, path):
    content = bytearray(path.read_bytes())
    first, stop = sorted(rng.integers(len(content) + 1, size=2))
    content[first:stop] = bytes(stop - first)
    path.write_bytes(content)


def _grow(rng, path):
    content = path.read_bytes()
    place = picked(rng, [0, len(content), rng.integers(len(content) + 1)])
    path.write_bytes(content[:place] + rng.bytes(rng.integers(1, 100)) + content[place:])


def _empty(rng, path):
    path.write_bytes(b"")


def _remove(rng, path):
    path.unlink()


def _directory(rng, path):
    path.unlink()
    path.mkdir()


def _link(rng, path):
    path.unlink()
    path.symlink_to(picked(rng, [path, path.parent, path.parent / "nothing"]))


def _rename(rng, path):
    names = [f"{path.name}.old", path.name.upper(), "rows-1.npz", "replay-0.npz", "rows-x.npz", "saved_model.pbtxt"]
    target = path.with_name(picked(rng, names))
    if not target.is_dir():
        path.rename(target)


ALONE = {f.__name__[1:]: f for f in (_flip, _flip, _cut, _zero, _grow, _empty, _remove, _directory, _link, _rename)}


def _place(rng, value):
    """A random container in a JSON value, and a key of it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = picked(rng, keys)
        inner = value[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.25:
            return value, key
        value = inner


def edit(rng, description):
    """Edits a JSON value in place; says how."""
    container, key = _place(rng, description)
    old, new = container[key], picked(rng, VALUES)
    match picked(rng, ["drop", "replace", "replace", "add", "number", "copy", "rename"]):
        case "drop":
            del container[key]
            return f"drop {key}"
        case "add" if isinstance(container, dict):
            container[picked(rng, ["x", "a", "format", "networks", "device"])] = new
        case "rename" if isinstance(container, dict):
            container[picked(rng, ["x", *container])] = container.pop(key)
            return f"rename {key}"
        case "add":
            container.insert(key, new)
        case "number" if isinstance(old, int | float):
            container[key] = new = picked(rng, [old + 1, -old, old * 2, old / 2, old * 10**6, str(old), [old]])
        case "copy":
            source, name = _place(rng, description)
            container[key] = new = json.loads(json.dumps(source[name]))
        case _:
            container[key] = new
    return f"set {key} {str(old)[:60]!r} to {str(new)[:60]!r}"


def _change_array(rng, array):
    """Another array in the place of one."""
    if array.dtype.kind == "U" and rng.random() < 0.8:
        description = json.loads(str(array))
        edit(rng, description)
        return np.array(_to_bytes(description).decode(errors="replace"))
    changes = [
        lambda: array.astype(picked(rng, [np.float64, np.complex64, np.int8, str, bool, object])),
        lambda: array[..., None],
        lambda: array.ravel()[: rng.integers(array.size + 1)],
        lambda: array.reshape(1, *array.shape),
        lambda: np.concatenate([array, array]) if array.ndim else array[None],
        lambda: np.full_like(array, picked(rng, [0, 1, -1, 100])),
        lambda: array + picked(rng, [1, -1, 2**40, 1e30]),
        lambda: array * np.nan,
        lambda: np.array(picked(rng, [0, -1, 2**62, 1.5, "x", [], None, [[1]]])),
    ]
    try:
        return picked(rng, changes)()
    except (TypeError, ValueError, OverflowError):  # of an array of texts, or of small numbers
        return np.array("x")


def edit_arrays(rng, path):
    """Edits an `.npz`; says how."""
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except ValueError:
        return f"nothing to {path.name}, which was edited before"
    name = picked(rng, list(arrays))
    match picked(rng, ["change", "change", "change", "drop", "add", "swap"]):
        case "drop":
            del arrays[name]
        case "add":
            arrays[picked(rng, ["x", "rows", "images", "heads", "successor"])] = arrays[name]
        case "swap":
            other = picked(rng, list(arrays))
            arrays[name], arrays[other] = arrays[other], arrays[name]
        case _:
            with np.errstate(all="ignore"):
                arrays[name] = _change_array(rng, arrays[name])
    np.savez(path, **arrays)
    return f"array {name} of {path.name}"


def _to_bytes(description):
    content = json.dumps(description, indent=2).encode()
    for word, raw in RAW.items():
        content = content.replace(f'"{word}"'.encode(), raw)
    return content


def damage(rng, directory, relatives):
    """Damages a directory, as disks and people do who mean no harm; says how, in a list.

    Args:
        rng: the case's random numbers.
        directory: the directory.
        relatives: functions that give others of its kind.
    """
    done = []
    for _ in range(rng.integers(1, 4)):
        if not (paths := files_of(directory)):
            break
        path = picked(rng, paths)
        match picked(rng, ["alone"] * 5 + ["swap", "take", "take", "edit", "edit"]):
            case "swap":
                other = picked(rng, paths)
                a, b = path.read_bytes(), other.read_bytes()
                path.write_bytes(b), other.write_bytes(a)
                done.append(f"swap {path.name} and {other.name}")
            case "take":
                source = picked(rng, files_of(picked(rng, relatives)()))
                target = picked(rng, [path, directory / source.name])
                if not target.is_dir() and not target.is_symlink():
                    shutil.copyfile(source, target)
                done.append(f"take {source} as {target.name}")
            case "edit" if path.suffix == ".npz" and path.stat().st_size and not done:
                done.append(edit_arrays(rng, path))
            case "edit" if not done:
                path = picked(rng, [path for path in paths if path.suffix == ".json"])
                description = json.loads(path.read_text())
                done.append(edit(rng, description))
                path.write_bytes(_to_bytes(description) + b"\n")
            case _:
                way = picked(rng, list(ALONE))
                ALONE[way](rng, path)
                done.append(f"{way} {path.name}")
    return done


def forge(rng, directory, name, relatives, arrays="*.npz"):
    """Changes a sealed directory, and computes its sums again; says how, in a list."""
    done, path = [], directory / name
    description = json.loads(path.read_text())
    for _ in range(rng.integers(1, 4)):
        paths = sorted(directory.glob(arrays))
        match picked(rng, ["edit", "edit", "edit", "arrays", "arrays", "take", "remove"]):
            case "arrays" if paths:
                done.append(edit_arrays(rng, picked(rng, paths)))
            case "take" if paths:
                source = picked(rng, sorted(picked(rng, relatives)().glob(arrays)))
                shutil.copyfile(source, directory / source.name)
                done.append(f"take {source}")
            case "remove" if paths:
                (chosen := picked(rng, paths)).unlink()
                done.append(f"remove {chosen.name}")
            case _:
                del description["files"], description["sha256"]
                done.append(edit(rng, description) if description else "nothing")
                description |= {"files": {}, "sha256": ""}
    del description["sha256"]
    others = (each for each in files_of(directory) if each != path)
    sums = {each.relative_to(directory).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in others}
    description["files"] = sums
    if rng.random() < 0.1:
        done.append("then " + edit(rng, description))
    path.write_bytes(files._with_sum(_to_bytes(description)[:-2] + b",\n  "))
    return done
