"""The check of exported models of unknown origin, before TensorFlow loads them.

A SavedModel is a program, and TensorFlow has operations that read and write files, use the network and run Python.
Unless its origin is trusted, a model is loaded only if all of its operations are free of such side effects.
"""

import contextlib
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdpg.compat.tensorflow import saved_model_from_bytes
from tfdpg.exported.operations import SAVER, STATEFUL, STATELESS
from tfdpg.exported.versions import ExportError

FILE_NAMES = {"MergeV2Checkpoints": 2, "RestoreV2": 1, "SaveV2": 1}
"""The number of first inputs of an operation that are file names."""
SUFFIXES = {b".part", b"_temp/part"}
"""The suffixes that TensorFlow's saver appends to the file name that it receives."""


class UnsafeModelError(ExportError):
    """An exported model that is not trusted could do more than compute."""


@contextlib.contextmanager
def loadable(version: Path, trusted: bool = False) -> Iterator[str]:
    """Check an exported model, and return the path from which TensorFlow can load it.

    TensorFlow treats some of its paths as patterns of file names. A path with characters that have a meaning in
    patterns is therefore replaced by that of a temporary link.

    Args:
        version: the directory of a version.
        trusted: whether to skip the check.

    Raises:
        ExportError: see `check_safe`.
    """
    if not trusted:
        check_safe(version)
    if not re.search(r"[*?\[\\]", str(version)):
        yield str(version)
        return
    with tempfile.TemporaryDirectory() as directory:
        link = Path(directory) / "model"
        link.symlink_to(version.absolute())
        yield str(link)


def check_safe(version: Path) -> None:
    """Refuse an exported model that could do anything but compute.

    All operations of the file are checked, whether or not a signature runs them, because a loader also runs
    initialisers, functions that create resources, and functions that restore them.

    Args:
        version: the directory of a version.

    Raises:
        UnsafeModelError: the model contains an operation that is not known to be free of side effects, or file
            operations besides those of TensorFlow's saver; or its directory contains links to files outside of it.
        ExportError: `saved_model.pb` cannot be read.
    """
    from google.protobuf.message import DecodeError

    try:
        _check_files(version)
        content = (version / "saved_model.pb").read_bytes()
        model = saved_model_from_bytes(content)
    except (OSError, DecodeError) as error:
        raise ExportError(f"The exported model in {version} cannot be loaded: {error}") from error
    for graph in model.meta_graphs:
        for asset in graph.asset_file_def:
            if Path(asset.filename).is_absolute() or ".." in Path(asset.filename).parts:
                raise _refused(version, f"its asset {asset.filename!r} is outside of the directory `assets`")
        _check_operations(version, graph, content)


def _check_files(version: Path) -> None:
    inside = version.resolve()
    for path in version.rglob("*"):
        mode = path.stat().st_mode
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise _refused(version, f"{path} is a link to {path.resolve()}, outside of the model's directory")
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise _refused(version, f"{path} is neither a file nor a directory")
        if path.parent == version and path.name.startswith("saved_model.") and path.name != "saved_model.pb":
            raise _refused(version, f"{path} could be loaded instead of saved_model.pb")


def _check_operations(version: Path, graph: Any, content: bytes) -> None:
    """Check the nodes of the graph itself, which has no name, and those of its functions."""
    saver = _saver_functions(graph, content)
    functions = [(function.signature.name, function.node_def) for function in graph.graph_def.library.function]
    for function, nodes in [("", graph.graph_def.node), *functions]:  # names may occur twice in a forged file
        allowed = STATELESS | STATEFUL | saver.get(function, frozenset())
        for node in (node for node in nodes if node.op not in allowed):
            kind = "a file operation besides those of TensorFlow's saver" if node.op in SAVER else "an operation"
            place = f"in the function {function!r}" if function else "in the graph"
            signatures = _signatures_that_run(graph, function or node.name)
            if signatures:
                place += f", which the signatures {', '.join(map(repr, signatures))} run"
            raise _refused(
                version,
                f"it holds `{node.op}` ({place}), {kind} that is not known to be free of side effects, such as reading "
                "or writing files, using the network, or running Python",
            )


def _refused(version: Path, reason: str) -> UnsafeModelError:
    return UnsafeModelError(
        f"The exported model in {version} is not loaded: {reason}. If you trust its origin, pass trusted=True "
        "(on the command line: --trusted)."
    )


def _saver_functions(graph: Any, content: bytes) -> dict[str, frozenset[str]]:
    """Find the functions that save and restore variables as TensorFlow writes them, with the file operations of each.

    One node of the graph calls such a function, with the placeholder of the saver's file name as its first argument.
    No other node, signature or initialiser uses that node, and the function's name occurs nowhere else in the file.

    Args:
        graph: the `MetaGraphDef`.
        content: the content of the file.
    """
    saver = graph.saver_def
    nodes = {node.name: node for node in graph.graph_def.node}
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    filename = nodes.get(_node(saver.filename_tensor_name))
    used = {_node(tensor) for node in nodes.values() for tensor in node.input}
    used |= {_node(text) for part in (graph.signature_def, graph.collection_def) for text in _strings(part.values())}
    found = {}
    for entry, operations in (
        (saver.save_tensor_name, SAVER - {"RestoreV2"}),
        (saver.restore_op_name, SAVER & {"RestoreV2"}),
    ):
        node = nodes.get(_node(entry))
        if filename is None or filename.op != "Placeholder" or node is None or node.name in used:
            continue
        name = node.attr["f"].func.name
        is_called = node.op == "StatefulPartitionedCall" and list(node.input[:1]) == [filename.name]
        is_named_once = content.count(name.encode()) == 2  # in its definition and in the call
        if is_called and is_named_once and name in functions and _is_standard(functions[name]):
            found[name] = operations
    return found


def _is_standard(function: Any) -> bool:
    """Return whether all file names that a saver's function uses are derived from its first argument.

    A function with an attribute such as `api_implements` is not TensorFlow's: with this attribute, the graph optimizer
    may replace another function by it.
    """
    if not all(attribute.startswith("_") for attribute in function.attr) or not function.signature.input_arg:
        return False
    nodes = {node.name: node for node in function.node_def}
    seen = {function.signature.input_arg[0].name}
    waiting = [name for node in nodes.values() for name in node.input[: FILE_NAMES.get(node.op, 0)]]
    while waiting:
        name = _node(waiting.pop())
        if name not in seen:
            seen.add(name)
            sources = _sources(nodes, name)
            if not sources:
                return False
            waiting += sources
    return True


def _sources(nodes: Mapping[str, Any], name: str) -> list[str]:
    """Return the tensors from which a node derives its file names; none if the saver has no such node."""
    if name not in nodes:
        return []
    node = nodes[name]
    match node.op:
        case "Pack":
            return [tensor for tensor in node.input if not tensor.startswith("^")]
        case "Identity" | "ShardedFilename":
            return list(node.input[:1])
        case "StringJoin" if _are_suffixes(nodes, node.input[1:]):
            return list(node.input[:1])
    return []


def _are_suffixes(nodes: Mapping[str, Any], tensors: Iterable[str]) -> bool:
    """Return whether all tensors are suffixes of the saver, or selections between such suffixes."""
    names = []
    for name in map(_node, tensors):
        is_choice = name in nodes and nodes[name].op == "Select"
        names += map(_node, nodes[name].input[1:3]) if is_choice else [name]
    return all(
        name in nodes and nodes[name].op == "Const" and SUFFIXES.issuperset(nodes[name].attr["value"].tensor.string_val)
        for name in names
    )


def _signatures_that_run(graph: Any, name: str) -> list[str]:
    """Return the signatures that run the function, or the node of the graph, with a name."""
    nodes = {node.name: [node] for node in graph.graph_def.node}
    functions = {function.signature.name: function.node_def for function in graph.graph_def.library.function}
    found = []
    for signature, definition in sorted(graph.signature_def.items()):
        waiting = [_node(output.name) for output in definition.outputs.values()]
        run = set()
        while waiting:
            if (each := waiting.pop()) in run:
                continue
            run.add(each)
            for node in (*nodes.get(each, ()), *functions.get(each, ())):
                waiting += [_node(tensor) for tensor in node.input] if each in nodes else []
                waiting += [
                    function.name for value in node.attr.values() for function in (value.func, *value.list.func)
                ]
        if name in run:
            found.append(signature)
    return found


def _strings(messages: Iterable[Any]) -> Iterator[str]:
    """Yield all strings in protocol buffers."""
    for message in messages:
        yield from re.findall(r'"((?:[^"\\]|\\.)*)"', str(message))


def _node(tensor: str) -> str:
    """Return the name of a node from that of a tensor (`name:0`) or of a control input (`^name`)."""
    return tensor.removeprefix("^").partition(":")[0]
