"""The commands that write what others run."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from tfdpg.arguments import natural
from tfdpg.cli import run_paths as paths
from tfdpg.compat.tensorflow import import_tensorflow


def export(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIRECTORY")],
    /,
    checkpoint: str = "best",
    signatures: Literal["tf-agents"] | None = None,
    format: Literal["tf_saved_model", "litert", "onnx", "c"] = "tf_saved_model",
    quantize: Literal["int8"] | None = None,
    max_error: float = 0.05,
    batch: int | None = None,
    prefix: str | None = None,
    weights_in_c_file: bool = False,
    episodes: int = 0,
    trusted: bool = False,
) -> None:
    """Export the policy of a run as the next version of a model directory, or in another format into a directory.

    Args:
        run: the run directory.
        directory: the model directory, as TensorFlow Serving takes it; in another format one that is new or empty.
        checkpoint: best, latest, or the environment steps of a checkpoint.
        signatures: tf-agents adds `action`, as TF-Agents' PolicySaver has it; for a checkpoint other than best.
        format: tf_saved_model, or litert (extra [litert]), onnx (extra [onnx]) or c.
        quantize: int8 for a LiteRT policy with weights of 8 bits.
        max_error: the largest error of its actions, in units of the action scale; with more it is not written.
        batch: fixes the number of rows of a LiteRT model's inputs and outputs, which is free otherwise.
        prefix: of all names in a C header, in lower case; the default is made of the directory's name.
        weights_in_c_file: define the weights of a C header in policy.c beside it.
        episodes: evaluate it for so many, as `tfdpg evaluate` does, and put the scores into tfdpg.json.
        trusted: import the modules, follow the links and the replay directory that the files name, and load an exported
            model whatever its operations do.
    """
    paths.check_run(run)
    if paths.is_run(directory):
        raise ValueError(f"The model directory must not be a run's, and {directory} is: it has a run.json.")
    from tfdpg.agents.options import ExportOptions

    own = {"prefix": prefix, "weights_in_c_file": weights_in_c_file}
    options = ExportOptions(
        signatures=signatures, format=format, quantize=quantize, max_error=max_error, batch=batch, **own
    )
    natural("episodes", episodes)
    if episodes and format != "tf_saved_model":
        raise ValueError(f"`--episodes` is for a SavedModel. Received: --format {format}")
    import_tensorflow()
    from tfdpg.cli import runs

    print(f"exported {runs.export_policy(run, directory, checkpoint, trusted, options, episodes)}")


def convert(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIRECTORY")],
    /,
    format: Literal["litert", "onnx", "c"],
    quantize: Literal["int8"] | None = None,
    max_error: float = 0.05,
    batch: int | None = None,
    trusted: bool = False,
    prefix: str | None = None,
    weights_in_c_file: bool = False,
) -> None:
    """Write an exported model, a SavedModel, in another format; the agent is not needed.

    Args:
        path: a model directory, of which the newest version is taken, or a version's directory.
        directory: where it goes: new or empty.
        format: litert (extra [litert]), onnx (extra [onnx]) or c.
        quantize: int8 for a LiteRT policy with weights of 8 bits.
        max_error: the largest error of its actions, in units of the action scale; with more it is not written.
        batch: fixes the number of rows of a LiteRT model's inputs and outputs, which is free otherwise.
        trusted: load the model whatever its operations do.
        prefix: of all names in a C header, in lower case; the default is made of the directory's name.
        weights_in_c_file: define the weights of a C header in policy.c beside it.
    """
    paths.check_model(path)
    from tfdpg.agents.options import ExportOptions

    own = {"prefix": prefix, "weights_in_c_file": weights_in_c_file}
    options = ExportOptions(format=format, quantize=quantize, max_error=max_error, batch=batch, **own)
    import_tensorflow()
    from tfdpg import export as exports

    version = exports.latest_version(path)
    given = options.format, options.quantize, options.max_error
    print(f"wrote {exports.convert(version, directory, *given, batch=options.batch, **own, trusted=trusted)}")
