"""The commands of `tfdpg` on runs and exported models. The parameters of a function are the flags of its command.

TensorFlow is imported only once the flags have been checked.
"""

from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tfdpg.arguments import natural, positive_int
from tfdpg.cli import run_paths as paths
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.ranges import OPSET

Model = Annotated[Path, tyro.conf.arg(metavar="MODEL")]
Directory = Annotated[Path, tyro.conf.arg(metavar="DIRECTORY")]


def evaluate(
    path: Annotated[Path, tyro.conf.arg(metavar="RUN|MODEL")],
    /,
    env: str | None = None,
    episodes: int = 10,
    checkpoint: str | None = None,
    render: bool = False,
    video: Path | None = None,
    record: Path | None = None,
    max_ep_len: int | None = None,
    seed: int = 0,
    trusted: bool = False,
    json: bool = False,
) -> None:
    """Run episodes without exploration noise. Print the return and length of each, and mean, std, max and min.

    Args:
        path: a run directory, or an exported model.
        env: id of the environment; the default is the environment of the run.
        episodes: number of episodes.
        checkpoint: checkpoint of a run: latest (the default), best, or its number of environment steps.
        render: show the environment in a window.
        video: write all episodes to this file; its name must end with .mp4, .mkv, .mov, .avi or .gif.
        record: write the steps of each episode to this directory, as .npz and .csv, which `fit_offline` also reads.
        max_ep_len: truncate episodes after this many steps; the default is the environment's own limit.
        seed: seed of the initial states.
        trusted: import the modules and follow the links and the replay directory that the files name, and load an
            exported model that contains unsafe operations.
        json: print one JSON object with the scores and the return and length of each episode, instead of text.
    """
    from tfdpg.cli import recording, video_recording

    paths.check_policy(path)
    if max_ep_len is not None:
        positive_int("max_ep_len", max_ep_len)
    video_recording.check(render, video)
    if record is not None:
        recording.check_directory(record)
    import_tensorflow()
    from tfdpg.cli import runs
    from tfdpg.training.evaluation import INFO, ends, run_episodes, summarise

    policy, environment, trusted = runs.load_policy(path, checkpoint, trusted)
    file = path / "run.json" if paths.is_run(path) else path
    chosen = environment, env, render, video, record, trusted, file, policy.spec.observation_names
    with video_recording.evaluation_env(*chosen) as environment:
        ended = []
        for episode in run_episodes(policy, environment, episodes, seed=seed, max_ep_len=max_ep_len):
            ended.append(episode)
            if not json:
                success = "" if episode.success is None else f", {'solved' if episode.success else 'not solved'}"
                end = "terminated" if episode.terminated else "truncated"
                print(
                    f"episode {len(ended)}: return {episode.episode_return:.3f}, length {episode.length}, "
                    f"{end}{success}",
                    flush=True,
                )
    scores = summarise(ended)
    if json:
        returns = [float(episode.episode_return) for episode in ended]
        print(dumps({**scores, "episodes": len(ended), "returns": returns, "lengths": [each.length for each in ended]}))
        return
    print(
        f"return: mean {scores['return']:.3f}, std {scores['return_std']:.3f}, "
        f"max {scores['return_max']:.3f}, min {scores['return_min']:.3f}; "
        f"length: mean {scores['episode_length']:.1f}"
        + (f"; success rate: {scores['success_rate']:.2f}" if "success_rate" in scores else "")
        + f"; {ends(scores)}"
    )
    if numbers := [f"{name.removeprefix(INFO)} {value:.4g}" for name, value in scores.items() if name.startswith(INFO)]:
        print(f"means of info: {', '.join(numbers)}")
    if video is not None:
        print(f"wrote {video}")
    if record is not None:
        print(f"wrote {len(ended)} episodes to {record}")


def export(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    directory: Directory,
    /,
    checkpoint: str = "best",
    signatures: Literal["tf-agents"] | None = None,
    format: Literal["tf_saved_model", "litert", "onnx", "c"] = "tf_saved_model",
    quantize: Literal["int8"] | None = None,
    max_error: float = 0.05,
    batch: int | None = None,
    prefix: str | None = None,
    weights_in_c_file: bool = False,
    opset: int = OPSET,
    episodes: int = 0,
    trusted: bool = False,
) -> None:
    """Export the policy of a run as the next version of a model directory, or in another format.

    Args:
        run: the run directory.
        directory: the model directory, as TensorFlow Serving expects it; for other formats, a new or empty directory.
        checkpoint: best, latest, or the number of environment steps of a checkpoint.
        signatures: tf-agents adds the signature `action` of TF-Agents' PolicySaver; not for the checkpoint best.
        format: tf_saved_model, litert (extra [litert]), onnx (extra [onnx]) or c.
        quantize: int8 stores the weights of a LiteRT policy with 8 bits.
        max_error: maximum error of the actions of a quantized policy, as a fraction of the action scale.
        batch: fixed batch size of a LiteRT model; the default is any batch size.
        prefix: prefix of all names in a C header, in lower case; the default is the name of the directory.
        weights_in_c_file: define the weights of a C policy in policy.c instead of policy.h.
        opset: version of the operators of an ONNX policy, 12 to 18.
        episodes: number of episodes to evaluate the policy for; tfdpg.json then contains the scores.
        trusted: import the modules and follow the links and the replay directory that the files name, and load an
            exported model that contains unsafe operations.
    """
    paths.check_run(run)
    if paths.is_run(directory):
        raise ValueError(f"The model directory must not be a run directory. Received: {directory}")
    from tfdpg.agents.options import ExportOptions

    options = ExportOptions(
        signatures=signatures,
        format=format,
        quantize=quantize,
        max_error=max_error,
        batch=batch,
        prefix=prefix,
        weights_in_c_file=weights_in_c_file,
        opset=opset,
    )
    natural("episodes", episodes)
    if episodes and format != "tf_saved_model":
        raise ValueError(f"`--episodes` is for a SavedModel. Received: --format {format}")
    import_tensorflow()
    from tfdpg.cli import runs

    exported = runs.export_policy(run, directory, checkpoint, trusted, options, episodes)
    print(f"exported {exported}\nthe policy {runs.describe_policy(run, checkpoint)}")


def inspect_export(
    path: Model,
    /,
    trusted: bool = False,
    json: bool = False,
) -> None:
    """Describe an exported model: its signatures, spaces, scores and library versions.

    Args:
        path: a model directory, whose newest version is described, or the directory of a version.
        trusted: load a model that contains unsafe operations.
        json: print one JSON object: the model's tfdpg.json without checksums, and its directory.
    """
    paths.check_model(path)
    if json:
        from tfdpg.exported.versions import latest_version, metadata

        version = latest_version(path)
        facts = {name: value for name, value in metadata(version).items() if name not in ("files", "sha256")}
        print(dumps({"directory": str(version), **facts}))
        return
    import_tensorflow()
    from tfdpg.export import describe

    print(describe(path, trusted))
