"""Convert SavedModels to other formats, and verify the result in the format's own runtime."""

import contextlib
import functools
import importlib
import importlib.metadata
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tfdpg import files
from tfdpg.acting import GreedyPolicy
from tfdpg.arguments import check_value, reject
from tfdpg.export.examples import Observations, observations_of_export
from tfdpg.export.references import REFERENCES
from tfdpg.export.source import Source
from tfdpg.export.verify import (
    ActionError,
    Reference,
    Run,
    action_error,
    check_missing,
    check_nonfinite,
    differences,
    in_float32,
    in_session,
)
from tfdpg.exported import FORMAT, METADATA, ExportError, check_directory, new_directory, step, versions
from tfdpg.exported.versions import AGENT_FACTS
from tfdpg.formats import c, litert, onnx
from tfdpg.ranges import OPSET, OPSETS


class Format(NamedTuple):
    """A format to which SavedModels can be converted.

    Attributes:
        write: writes the signatures of a source into a directory, quantized or not, with the format's own options as
            keywords. It returns the file of each signature that it writes, and for each other one the reason.
        run: returns for a source and such a directory what computes the signatures in the format's own runtime.
        modules: the modules that both import.
        libraries: the names of the distributions that contain these modules.
        output_name: returns the name of an output in this format, from its name and the names of the inputs.
        half_precision: whether networks in half precision can be converted.
    """

    write: Callable[..., tuple[dict[str, str], dict[str, str]]]
    run: Callable[[Source, Path], contextlib.AbstractContextManager[Run]]
    modules: Sequence[str] = ()
    libraries: Sequence[str] = ()
    output_name: Callable[[str, Collection[str]], str] = lambda name, inputs: name
    half_precision: bool = True


FORMATS = {
    "litert": Format(litert.write, litert.run, ["ai_edge_litert.interpreter"], ["ai-edge-litert"]),
    "onnx": Format(
        onnx.write, onnx.run, ["tf2onnx", "onnxruntime"], ["tf2onnx", "onnx", "onnxruntime"], onnx.output_name
    ),
    "c": Format(c.write, c.run, half_precision=False),
}
"""The formats by the names of their extras, which are Keras' names of the formats."""


def check_target(directory: str | Path, format: str) -> None:
    """Check that a model can be written in a format into a directory, before the work begins.

    Raises:
        ValueError: the format is unknown.
        ImportError: its libraries are not installed.
        NotADirectoryError: `directory` is a file.
        FileExistsError: `directory` is not empty.
    """
    if format not in FORMATS:
        raise reject("format", f"one of {', '.join(FORMATS)}", format)
    for module in FORMATS[format].modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f'format="{format}" needs {module}: pip install "tfdpg[{format}]" ({error})') from error
    directory = Path(directory)
    check_directory(directory)
    if existing := sorted(path.name for path in directory.iterdir()) if directory.exists() else []:
        numbers = versions(directory)
        what = f"the versions {numbers} of a SavedModel" if numbers else ", ".join(existing[:5])
        raise FileExistsError(
            f"`directory` must be new or empty for format={format!r}, whose files are written directly into it. "
            f"Received: {directory}, which contains {what}"
        )


def _checked(
    directory: str | Path,
    format: str,
    quantize: str | None,
    batch: int | None,
    prefix: str | None,
    weights_in_c_file: bool,
    opset: int,
) -> dict[str, Any]:
    """Raise `ValueError` for options that the format does not have; return those that only ONNX or C has."""
    if quantize is not None and (quantize, format) != ("int8", "litert"):
        raise reject("quantize", f'None, or "int8" with format="litert", for format={format!r}', quantize)
    if batch is not None and format != "litert":
        raise reject("batch", f'None unless format="litert", for format={format!r}', batch)
    if format != "c" and (prefix is not None or weights_in_c_file):
        raise ValueError(f'`prefix` and `weights_in_c_file` need format="c". Received: format={format!r}')
    if format != "onnx" and opset != OPSET:
        raise reject("opset", f'{OPSET} unless format="onnx", for format={format!r}', opset)
    if format == "onnx":
        return {"opset": check_value("opset", Annotated[int, OPSETS], opset)}
    if format != "c":
        return {}
    return {
        "prefix": c.checked_prefix(prefix, Path(directory).absolute().name),
        "weights_in_c_file": weights_in_c_file,
    }


def convert(
    version: Path,
    directory: str | Path,
    format: str,
    quantize: str | None = None,
    max_error: float = 0.05,
    references: Mapping[str, Reference] | None = None,
    observations: Observations | None = None,
    batch: int | None = None,
    prefix: str | None = None,
    weights_in_c_file: bool = False,
    opset: int = OPSET,
    *,
    trusted: bool = False,
) -> Path:
    """Convert a SavedModel to another format. The directory is complete when it appears under its name.

    Args:
        version: the directory of a version of a SavedModel.
        directory: a new or empty directory.
        format: "litert", "onnx" or "c".
        quantize: "int8" for a quantized policy, for LiteRT; None does not quantize.
        max_error: the largest accepted error of a quantized policy's actions, in units of the action scale; at least 0.
        references: functions that compute the expected outputs of signatures, by name; by default, a session computes
            them with the SavedModel.
        observations: the observations on which a quantized policy is measured. By default, the policy acts in the
            environment that the export names; if that is not possible, they are samples near the warm-up requests.
        batch: the number of rows that signatures take, at least 1, for LiteRT; None leaves it free.
        prefix: for C, the prefix of all names in the header, a C identifier in lower case; the default is made of the
            name of `directory`.
        weights_in_c_file: for C, whether the weights are defined in `policy.c` instead of `policy.h`.
        opset: for ONNX, the version of its operators, 12 to 18.
        trusted: whether to load the SavedModel without checking its operations.

    Returns:
        The directory.

    Raises:
        ExportError: the SavedModel is damaged or not safe, the format cannot represent its policy, or the result
            computes something else. Nothing is written then.
        ValueError: the format is unknown, or an argument does not apply to it.
        ImportError: the libraries of the format are not installed.
        NotADirectoryError: `directory` is a file.
        FileExistsError: `directory` is not empty.

    Example:
        ```python
        version = tfdpg.export.latest_version("exported_models/td3-halfcheetah")
        tfdpg.export.convert(version, "converted/td3-halfcheetah", "onnx")
        ```
    """
    check_target(directory, format)
    own = _checked(directory, format, quantize, batch, prefix, weights_in_c_file, opset)
    chosen = FORMATS[format]
    target = Path(directory).absolute()
    expected = dict(references or {})
    with contextlib.ExitStack() as stack:
        stack.enter_context(_as_export_error(format))
        stack.enter_context(in_float32())
        source = Source(version, batch, trusted)
        scratch = stack.enter_context(new_directory(target.parent, target))
        if not expected.keys() >= source.cases.keys() or quantize is not None and observations is None:
            saved = stack.enter_context(in_session(version, trusted))
            expected = {name: functools.partial(saved, name) for name in source.cases} | expected
            if quantize is not None and observations is None:
                observations = _default_observations(source, saved)
        written, left_out = chosen.write(source, scratch, quantize, **own)
        if "pi" in left_out:
            raise ExportError(f"The policy cannot be exported as format={format!r}: {left_out['pi']}")
        facts = {"export_format": format, "left_out": left_out}
        found = {}
        run = stack.enter_context(chosen.run(source, scratch))
        half = chosen.half_precision and source.in_half_precision()
        leaf = source.spec.leaves[0]
        for name in written:
            observation = source.inputs(name).get(leaf.name)
            if observation is not None and len(observation.shape) == len(leaf.shape) + 1:  # and not a sequence of them
                inputs = source.cases[name][-1]
                if source.spec.missing == "error":
                    check_nonfinite(name, inputs, source.spec, run)
                elif quantize is None:
                    check_missing(name, inputs, source.spec, run, expected[name], half)
        if quantize is None or observations is None:
            found = differences(source, run, expected, list(written), half)
        else:
            error = action_error(source, run, expected, observations.values)
            facts["quantized"] = _accepted(source, quantize, error, max_error, observations.origin)
        facts["signatures"] = {
            name: {"file": file}
            | _renamed(source.facts(name), chosen)
            | ({"difference": found[name]} if name in found else {})
            for name, file in written.items()
        }
        left_out = "files", "sha256", *AGENT_FACTS
        inherited = {key: value for key, value in source.metadata.items() if key not in left_out}
        libraries = {name: importlib.metadata.version(name) for name in chosen.libraries}
        inherited |= {"format": FORMAT, "versions": source.metadata["versions"] | libraries}
        if REFERENCES in source.metadata["files"]:
            shutil.copyfile(version / REFERENCES, scratch / REFERENCES)
        files.write_manifest(scratch, METADATA, inherited | facts)
        files.move(scratch, target)
    return Path(directory)


@contextlib.contextmanager
def _as_export_error(format: str) -> Iterator[None]:
    """Convert exceptions of converters and runtimes to `ExportError`."""
    try:
        yield
    except (ExportError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ExportError(f"The policy cannot be exported as format={format!r}: {reason}") from error


def _default_observations(source: Source, run: Run) -> Observations:
    """Return observations for measuring a quantized policy without its agent."""
    policy = GreedyPolicy(
        source.spec, source.recurrent_spec, functools.partial(step, source.spec, source.recurrent_spec, run)
    )
    return observations_of_export(source.spec, policy, source.metadata.get("environment"), source.observations)


def _accepted(source: Source, quantize: str, error: ActionError, max_error: float, origin: str) -> dict[str, Any]:
    """Print the errors of a quantized policy, refuse it if they are too large, and return them for `tfdpg.json`."""
    if source.spec.actions is None:
        about = f"the error of an action, in units of the action scale, is {error.mean:.3g} on average and "
        about += f"{error.largest:.3g} at most"
    else:
        about = f"the policy chooses another action for a fraction of {error.mean:.3g} of the observations"
        about += "" if source.recurrent_spec is None else f" on average, and of {error.largest:.3g} at one step"
    about = f"{quantize}: {about}, measured on {error.observations} observations: {origin}"
    if not error.largest <= max_error:
        raise ExportError(f"{about}; it must be at most max_error={max_error:g}")
    print(about)
    facts = {"as": quantize, "error": error.largest, "mean_error": error.mean, "max_error": max_error}
    return facts | {"observations": error.observations, "observations_from": origin}


def _renamed(facts: dict[str, list[dict[str, Any]]], chosen: Format) -> dict[str, list[dict[str, Any]]]:
    """Give the outputs of a signature their names in a format."""
    inputs = [one["name"] for one in facts["inputs"]]
    outputs = [one | {"name": chosen.output_name(one["name"], inputs)} for one in facts["outputs"]]
    return facts | {"outputs": outputs}
