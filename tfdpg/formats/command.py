"""The commands `tfdpg convert` and `tfdpg verify`."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tfdpg.cli import run_paths as paths
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.exported.versions import METADATA
from tfdpg.ranges import OPSET

NOT_CHECKED = 2
"""The exit status of `verify` if something could not be checked."""


def convert(
    path: Annotated[Path, tyro.conf.arg(metavar="MODEL")],
    directory: Annotated[Path, tyro.conf.arg(metavar="DIRECTORY")],
    /,
    format: Literal["litert", "onnx", "c"],
    quantize: Literal["int8"] | None = None,
    max_error: float = 0.05,
    batch: int | None = None,
    trusted: bool = False,
    prefix: str | None = None,
    weights_in_c_file: bool = False,
    opset: int = OPSET,
) -> None:
    """Write an exported SavedModel in another format.

    Args:
        path: a model directory, whose newest version is converted, or the directory of a version.
        directory: a new or empty directory to write to.
        format: litert (extra [litert]), onnx (extra [onnx]) or c.
        quantize: int8 stores the weights of a LiteRT policy with 8 bits.
        max_error: maximum error of the actions of a quantized policy, as a fraction of the action scale.
        batch: fixed batch size of a LiteRT model; the default is any batch size.
        trusted: load a model that contains unsafe operations.
        prefix: prefix of all names in a C header, in lower case; the default is the name of the directory.
        weights_in_c_file: define the weights of a C policy in policy.c instead of policy.h.
        opset: version of the operators of an ONNX policy, 12 to 18.
    """
    paths.check_model(path)
    from tfdpg.agents.options import ExportOptions

    options = ExportOptions(
        format=format,
        quantize=quantize,
        max_error=max_error,
        batch=batch,
        prefix=prefix,
        weights_in_c_file=weights_in_c_file,
        opset=opset,
    )
    import_tensorflow()
    from tfdpg.export import latest_version
    from tfdpg.formats.convert import convert as write

    changed = options.values(without=("scores", "signatures"))
    print(f"wrote {write(latest_version(path), directory, **changed, trusted=trusted)}")


def verify(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    others: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="OTHER...")] = (),
    /,
    server: tuple[str, ...] = (),
    trusted: bool = False,
    json: bool = False,
) -> int:
    """Run the reference inputs of an export where it is deployed, and compare with the outputs of the agent.

    The exit status is 0 if all outputs are equal within their tolerances, 1 if some differ, and 2 if something could
    not be checked.

    Args:
        path: an exported model, of a model directory the newest version; or an export in another format.
        others: further exports of the same policy, in any format, or files of them.
        server: URLs of served models, such as http://host:8501/v1/models/NAME or grpc://host:8500/NAME, with
            /versions/N or /labels/LABEL behind it to choose a version.
        trusted: load models that contain unsafe operations, and compile and run the code of exports to C.
        json: print one JSON object instead of text.
    """
    try:
        import_tensorflow()
        from tfdpg.formats.verifying import verify as check

        if not (path / METADATA).exists() and not path.is_file():
            paths.check_model(path)
        report = check(path, others, server, trusted)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"tfdpg: {error}", file=sys.stderr)
        return NOT_CHECKED
    for name, reason in report.unchecked.items():
        print(f"tfdpg: {name} could not be checked: {reason}", file=sys.stderr)
    print(dumps(report.to_json()) if json else report.text())
    return report.status
