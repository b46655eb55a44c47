"""Signatures of runs: a run that this user trained on this machine is trusted without the flag `--trusted`.

`tfdpg train` makes a secret key for the user, and writes a file `signature` into the run directory and into each of its
checkpoints. A signature is the HMAC-SHA256 of

- the real path of the signed file, so that a copied, moved or renamed run is not trusted;
- the file, `run.json` or the `checkpoint.json` of a checkpoint, which contains the checksums of its other files;
- where the modules and paths that the file names are found, so that a module of the same name in another working
  directory is not imported.

Signatures do not cover links, which a signed run must not contain, and exported models, whose operations are checked.
This module does not import TensorFlow.
"""

import contextlib
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from tfdpg import files
from tfdpg.arguments import warn
from tfdpg.environments import PATH_CHARACTERS, strings
from tfdpg.imports import user_modules

SIGNATURE = "signature"
"""The name of the file beside the signed file."""
KEY_BYTES = 32


class UnsafeKeyError(ValueError):
    """The key could be known to others, so that it proves nothing."""


def is_own(run: Path) -> bool:
    """Return whether this user trained a run on this machine, and nobody has copied, moved or changed it since."""
    try:
        files.check_tree(run)
        key = _read_key()
        checkpoints = [path for path in run.glob("checkpoints/*") if files.is_version(path.name)]
        return all(
            _is_signed(key, file) for file in (run / "run.json", *(path / files.CHECKPOINT for path in checkpoints))
        )
    except (OSError, ValueError, RecursionError):
        return False


def sign(file: Path, target: Path | None = None) -> None:
    """Write the signature of a file into its directory. Nothing is written where the user can have no key.

    Args:
        file: the `run.json` of a run, or the `checkpoint.json` of a checkpoint.
        target: the directory of the file once it is complete; None if the file is there.
    """
    try:
        key = _made_key()
    except UnsafeKeyError as error:
        if target is None:  # the warning is not repeated for each checkpoint
            warn(f"The run is not signed, so later commands may need --trusted: {error}")
        return
    except OSError:
        return  # there is no home directory, or it cannot be written
    files.write_text(file.with_name(SIGNATURE), _signature(key, file, target or file.parent) + "\n")


def _is_signed(key: bytes, file: Path) -> bool:
    found = file.with_name(SIGNATURE).read_bytes().strip()
    return hmac.compare_digest(found, _signature(key, file, file.parent).encode())


def _signature(key: bytes, file: Path, directory: Path) -> str:
    content = file.read_bytes()
    description = json.loads(content)
    if not isinstance(description, dict):
        raise ValueError(f"{file} must contain an object")
    values = description.get("arguments", description)  # the other values of `checkpoint.json` are data
    if not isinstance(values, dict):
        raise ValueError(f"`arguments` in {file} must be an object")
    named = strings({name: value for name, value in values.items() if name != "from_"})  # of which the run has a copy
    signed = [
        os.path.realpath(directory),
        file.name,
        hashlib.sha256(content).hexdigest(),
        [_leads_to(text) for text in named],
    ]
    return hmac.new(key, json.dumps(signed).encode(), "sha256").hexdigest()


def _leads_to(text: str) -> Any:
    """Return the files of the module that a text such as `module:name` names, or the file at a path; None if neither.

    No module is imported.
    """
    module, colon, _ = text.partition(":")
    package = module.partition(".")[0]
    if not (colon and package.isidentifier()):
        is_path = set(text) & set(PATH_CHARACTERS) and os.path.lexists(text)
        return os.path.realpath(text) if is_path else None
    try:
        with user_modules():
            spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return list(dict.fromkeys(os.path.realpath(place) for place in places or [] if place))


def _key_path() -> Path:
    """Return the path of the user's key.

    Raises:
        OSError: the user has no home directory.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "tfdpg" / "key"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error


def _read_key() -> bytes:
    """Read the user's key.

    Raises:
        OSError: there is none.
        UnsafeKeyError: others could read, write or have written it, or it is no key.
    """
    path = _key_path()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            found = f"{stat.filemode(status.st_mode)}, user {status.st_uid}"
            raise UnsafeKeyError(f"{path} must be a file of yours with the mode 0600. Received: {found}. Remove it.")
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise UnsafeKeyError(f"{path} must have {KEY_BYTES} bytes. Received: {status.st_size}. Remove it.")
    return key


def _made_key() -> bytes:
    """Read the user's key, and make it first if there is none. Several processes may do so at the same time."""
    with contextlib.suppress(FileNotFoundError):
        return _read_key()
    path = _key_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".key-{secrets.token_hex(8)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(KEY_BYTES))
        os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(scratch, path)
    finally:
        os.close(descriptor)
        scratch.unlink()
    return _read_key()
