"""The commands of `tfdpg` on runs and exported models. The parameters of a function are the flags of its command.

TensorFlow is imported only once the flags have been checked.
"""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tfdpg.arguments import natural, positive_int
from tfdpg.cli import run_paths as paths
from tfdpg.cli.tables import RETURN, STEPS
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
        max_ep_len: truncate episodes after this many steps; the default is the environment's own limit.
        seed: seed of the initial states.
        trusted: import the modules and follow the links and the replay directory that the files name, and load an
            exported model that contains unsafe operations.
        json: print one JSON object with the scores and the return and length of each episode, instead of text.
    """
    from tfdpg.cli import video_recording

    paths.check_policy(path)
    if max_ep_len is not None:
        positive_int("max_ep_len", max_ep_len)
    video_recording.check(render, video)
    import_tensorflow()
    from tfdpg.cli import runs
    from tfdpg.training.evaluation import run_episodes, summarise

    policy, environment, trusted = runs.load_policy(path, checkpoint, trusted)
    file = path / "run.json" if paths.is_run(path) else path
    with video_recording.evaluation_env(environment, env, render, video, trusted, file) as environment:
        ended = []
        for episode in run_episodes(policy, environment, episodes, seed=seed, max_ep_len=max_ep_len):
            ended.append(episode)
            if not json:
                success = "" if episode.success is None else f", {'solved' if episode.success else 'not solved'}"
                print(
                    f"episode {len(ended)}: return {episode.episode_return:.3f}, length {episode.length}{success}",
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
    )
    if video is not None:
        print(f"wrote {video}")


def diagnose(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    env: str | None = None,
    episodes: int = 10,
    checkpoint: str = "latest",
    seed: int | None = None,
    plot: Path | None = None,
    trusted: bool = False,
    json: bool = False,
) -> int:
    """Find out what is wrong with a run: the worst first, each with its evidence and what to try next.

    The exit status is 1 if there are findings.

    Args:
        run: the run directory.
        env: id of the environment; the default is the environment of the run.
        episodes: number of evaluation episodes of the greedy policy, with exploration, and with random actions.
        checkpoint: latest, or the number of environment steps of a checkpoint.
        seed: seed of the initial states; the default is the seed of the run.
        plot: write a picture of the evidence to this file.
        trusted: import the modules and follow the links and the replay directory that the files of the run name.
        json: print one JSON object with the returns and the findings instead of text.
    """
    paths.check_run(run)
    positive_int("episodes", episodes)
    if seed is not None:
        natural("seed", seed)
    if checkpoint == "best":
        raise ValueError("`--checkpoint` must be latest or a number of steps, because `best` has no replay buffer.")
    import_tensorflow()
    from tfdpg.cli import runs
    from tfdpg.training.diagnosis import picture

    if plot is not None:
        picture.check(plot)
    diagnosis = runs.diagnose(run, env, checkpoint, episodes, seed, trusted)
    print(dumps(diagnosis.to_json()) if json else diagnosis)
    if plot is not None:
        diagnosis.plot(plot)
        print(f"wrote {plot}", file=sys.stderr if json else sys.stdout)
    return int(bool(diagnosis.verdicts))


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

    print(f"exported {runs.export_policy(run, directory, checkpoint, trusted, options, episodes)}")


def convert(
    path: Model,
    directory: Directory,
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
    from tfdpg.cli import runs
    from tfdpg.export import latest_version

    print(f"wrote {runs.convert(latest_version(path), directory, options, trusted)}")


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


def plot(
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...")],
    /,
    out: Path = Path("curves.png"),
    x: str = STEPS,
    y: str = RETURN,
    smooth: int = 1,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    separate: bool = False,
    aggregate: bool = False,
    normalize: tuple[str, ...] = (),
    title: str = "",
    label: tuple[str, ...] = (),
) -> None:
    """Plot learning curves. With three or more runs of a configuration, plot their mean and 95 % confidence interval.

    Args:
        run_dirs: run directories, CSV files with the results of any program, or directories of either.
        out: the image to write: .png, .pdf, .svg, ...
        x: column for the x axis; of several with commas between them, the first that a file has. The usual names of
            steps in files of other programs are known.
        y: column for the y axis, likewise.
        smooth: width of the moving average, in points.
        select: plot only runs whose path contains one of these texts.
        exclude: do not plot runs whose path contains one of these texts.
        separate: plot one curve for each run.
        aggregate: pool the environments of a configuration; plot the interquartile mean and 95 % bootstrap interval.
        normalize: the returns that become 0 and 1 in an environment with --aggregate, as ENV=LOW:HIGH; the default is
            random actions and TD3 after 1,000,000 steps for Ant, HalfCheetah, Hopper, Humanoid and Walker2d.
        title: title of the figure.
        label: names of the curves in the legend, in the order of the paths; the default is the options in which they
            differ.
    """
    from tfdpg.cli import curves, plotting, scores

    found = curves.find_runs(run_dirs)
    x_name, y_name = (columns.partition(",")[0] for columns in (x, y))
    plotting.check(out, y_name, smooth, aggregate, normalize, separate)
    runs = []
    for run in found:
        if any(part in str(run) for part in select or [""]) and not any(part in str(run) for part in exclude):
            runs.append(curves.read(run, x, y, smooth))
    if not runs:
        raise ValueError(
            f"None of the {len(found)} runs in {', '.join(map(str, run_dirs))} matches. Received: "
            f"select={list(select)}, exclude={list(exclude)}"
        )
    scale = ""
    if aggregate:
        curves.check_environments(runs)
    if aggregate and y_name in plotting.RETURNS:
        ranges = scores.ranges_of([run.settings["env"] for run in runs], scores.parse_ranges(normalize))
        runs = [curves.normalise(run, ranges) for run in runs]
        if ranges:
            scale = "normalised" if normalize else "0: random, 1: TD3 at 1M steps"
    groups = curves.label_runs(runs, separate, aggregate)
    if aggregate:
        curves.check_pooled(groups)
    if label:
        if len(label) != len(groups):
            raise ValueError(
                f"`--label` must give a label for each of {len(groups)} curves: {'; '.join(groups)}. "
                f"Received: {len(label)} labels"
            )
        labels = curves.unique_labels(label, map(str, range(len(label))))
        groups = dict(zip(labels, groups.values(), strict=True))
    figure = plotting.draw(groups, x_name, y_name, title, show_counts=not separate, aggregate=aggregate, scale=scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=200)
    print(f"wrote {out}")
