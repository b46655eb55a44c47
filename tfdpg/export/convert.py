"""Other formats, made of a SavedModel: written, verified in their own runtime, and only then moved into place."""

import contextlib
import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfdpg import files
from tfdpg.acting import GreedyPolicy
from tfdpg.arguments import reject
from tfdpg.export import c, litert, onnx
from tfdpg.export.contract import signature_facts
from tfdpg.export.examples import Observations, observations_of_export
from tfdpg.export.fidelity import ActionError, action_error, differences
from tfdpg.export.source import Source
from tfdpg.export.verify import Reference, Run, check_nonfinite, in_session
from tfdpg.exported import FORMAT, METADATA, ExportError, check_directory, step, versions


class Format(NamedTuple):
    """A format that is made of a SavedModel.

    Attributes:
        write: writes the signatures of a source into a directory, quantized or not, with the format's own options as
            keywords; gives the file of each signature that is written, and the reason for each that is left out.
        run: from a source and such a directory to what computes the signatures in the format's own runtime.
        modules: what both import.
        libraries: the names under which these are installed.
        output_name: what an output is called, by its name and those of the signature's inputs.
    """

    write: Callable[..., tuple[dict[str, str], dict[str, str]]]
    run: Callable[[Source, Path], contextlib.AbstractContextManager[Run]]
    modules: Sequence[str] = ()
    libraries: Sequence[str] = ()
    output_name: Callable[[str, Collection[str]], str] = lambda name, inputs: name


FORMATS = {
    "litert": Format(litert.write, litert.run, ["ai_edge_litert.interpreter"], ["ai-edge-litert"]),
    "onnx": Format(
        onnx.write, onnx.run, ["tf2onnx", "onnxruntime"], ["tf2onnx", "onnx", "onnxruntime"], onnx.output_name
    ),
    "c": Format(c.write, c.run),
}
"""By the names of their extras, which are Keras' names of the formats."""


def check_target(directory: str | Path, format: str) -> None:
    """Refuses what cannot be written, before there is anything.

    Raises:
        ValueError: there is no such format.
        ImportError: its libraries are not installed.
        NotADirectoryError: `directory` is a file.
        FileExistsError: `directory` holds something.
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
            f"`directory` must be new or empty for format={format!r}, which is written into it itself. "
            f"Received: {directory}, which holds {what}"
        )


def _checked(
    directory: str | Path,
    format: str,
    quantize: str | None,
    batch: int | None,
    prefix: str | None,
    weights_in_c_file: bool,
) -> dict[str, Any]:
    """Raise `ValueError` for options that the format does not have; return those that only C has."""
    if quantize is not None and (quantize, format) != ("int8", "litert"):
        raise reject("quantize", f'None, or "int8" where format="litert", beside format={format!r}', quantize)
    if batch is not None and format != "litert":
        raise reject("batch", f'None unless format="litert", beside format={format!r}', batch)
    if format != "c":
        if prefix is not None or weights_in_c_file:
            raise ValueError(f'`prefix` and `weights_in_c_file` need format="c". Received: format={format!r}')
        return {}
    chosen = c.prefix_of(Path(directory).absolute().name) if prefix is None else prefix
    c.check_prefix(chosen)
    return {"prefix": chosen, "weights_in_c_file": weights_in_c_file}


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
    *,
    trusted: bool = False,
) -> Path:
    """Writes a SavedModel in another format into a directory, whole.

    Args:
        version: the directory of a SavedModel's version.
        directory: new or empty.
        format: one of `FORMATS`.
        quantize: "int8" for a quantized policy, if the format has it.
        max_error: the largest error of its actions, in units of the action scale.
        references: what signatures must compute; the default of each is what the SavedModel does in a session.
        observations: on which a quantized policy is measured; by default, those of `observations_of_export`.
        batch: the number of rows that signatures take, for LiteRT; None leaves it free.
        prefix: for C, what all names in the header begin with, a C identifier in lower case; the default is made of the
            name of `directory`.
        weights_in_c_file: for C, whether the weights are defined in `policy.c` in place of `policy.h`.
        trusted: whether to load the SavedModel whatever its operations do.

    Returns:
        The directory.

    Raises:
        ExportError: the SavedModel is damaged or refused, or the format cannot have its policy or computes something
            else; nothing is left behind.
        ValueError, ImportError, NotADirectoryError, FileExistsError: see `check_target`.
    """
    check_target(directory, format)
    own = _checked(directory, format, quantize, batch, prefix, weights_in_c_file)
    chosen = FORMATS[format]
    source = Source.open(version, batch, trusted)
    directory = Path(directory)
    made = files.make_directory(directory.absolute().parent)
    try:
        parent = directory.absolute().parent
        writing = files.writing(directory)
        with (
            _as_export_error(format),
            writing,
            files.scratch_directory(parent) as scratch,
            in_session(version, trusted) as saved,
        ):
            written, left_out = chosen.write(source, scratch, quantize, **own)
            if "pi" in left_out:
                raise ExportError(f"The policy cannot be had as format={format!r}: {left_out['pi']}")
            expected = {name: functools.partial(saved, name) for name in source.signatures} | dict(references or {})
            facts = {"export_format": format, "left_out": left_out}
            with chosen.run(source, scratch) as run:
                for name in written:
                    if source.is_of_rows(name):
                        check_nonfinite(name, source.cases[name][-1], source.observations, run)
                if quantize is None:
                    found = differences(source, run, expected, list(written))
                else:
                    measured = observations or _default_observations(source, saved)
                    error = action_error(source, run, expected, measured.values)
                    facts["quantized"] = _accepted(source, quantize, error, max_error, measured.origin)
                    found = {}
            signatures = {name: _described(source, chosen, name, file, found) for name, file in written.items()}
            files.write_manifest(scratch, METADATA, _facts(source, chosen) | facts | {"signatures": signatures})
            files.move(scratch, directory.absolute())
    except BaseException:
        with contextlib.suppress(OSError):  # someone else uses the directory by now
            for path in made:
                path.rmdir()
        raise
    return directory


@contextlib.contextmanager
def _as_export_error(format: str) -> Iterator[None]:
    """Makes what converters and runtimes raise an `ExportError`."""
    try:
        yield
    except (ExportError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ExportError(f"The policy cannot be had as format={format!r}: {reason}") from error


def _default_observations(source: Source, run: Run) -> Observations:
    """Observations for a quantized policy that comes without its agent."""
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
        about = f"the action is another for {error.mean:.3g} of the observations"
        about += "" if source.recurrent_spec is None else f" on average, and for {error.largest:.3g} at one step"
    about = f"{quantize}: {about}, measured on {error.observations} observations: {origin}"
    if not error.largest <= max_error:
        raise ExportError(f"{about}; it must be at most max_error={max_error:g}")
    print(about)
    facts = {"as": quantize, "error": error.largest, "mean_error": error.mean, "max_error": max_error}
    return facts | {"observations": error.observations, "observations_from": origin}


def _described(source: Source, chosen: Format, name: str, file: str, found: Mapping[str, float]) -> dict[str, Any]:
    """What `tfdpg.json` says of a signature."""
    inputs = source.inputs(name)
    outputs = source.signatures[name].structured_outputs
    facts = signature_facts(inputs, outputs, source.spec, source.recurrent_spec)
    for output in facts["outputs"]:
        output["name"] = chosen.output_name(output["name"], inputs)
    return {"file": file} | facts | ({"difference": found[name]} if name in found else {})


def _facts(source: Source, chosen: Format) -> dict[str, Any]:
    """What holds for the SavedModel too."""
    inherited = {
        name: value for name, value in source.metadata.items() if name not in ("files", "sha256", "signatures")
    }
    libraries = {name: importlib.metadata.version(name) for name in chosen.libraries}
    return inherited | {"format": FORMAT, "versions": source.metadata["versions"] | libraries}
