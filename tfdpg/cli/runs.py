"""Train, resume, load and export the runs of `tfdpg train`.

A run directory contains:

run.json        the configuration
checkpoints/    the newest checkpoints, named by environment steps
progress.csv    the metrics of each epoch; progress.txt has them under the names of Spinning Up
lateness.csv    how late the steps of a real-time run were
labels.json     the labels of the agent's metrics in plots
tensorboard/    TensorBoard events
best/           the exported policy with the best evaluation return
export/         the exported policy at the end of training
initial/        a copy of the exported model that the agent was made from (`--from`)
trained.txt     the environment steps taken, also those after the newest checkpoint, and the seconds of training
lock            names the process that trains the run (`tfdpg.cli.run_lock`)
signature       proves that the user trained the run (`tfdpg.cli.ownership`); each checkpoint has one, too
"""

import contextlib
import dataclasses
import functools
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras

from tfdpg import distributed, export, files
from tfdpg.agents import agent_class, load_agent
from tfdpg.agents.agent import Agent
from tfdpg.agents.classes import display_name, options_class
from tfdpg.agents.options import ExportOptions
from tfdpg.cli import ownership, run_lock
from tfdpg.cli import run_paths as paths
from tfdpg.cli.run_options import (
    RunConfig,
    best_log,
    new_run,
    objects_of,
    read_run,
    resume_command,
    train_command,
)
from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import check, policy_for_workers, require_ray
from tfdpg.environments import check_followed, check_trusted, close, is_real, make, make_envs
from tfdpg.files import CHECKPOINT, CheckpointError
from tfdpg.imports import call_for, import_user_module, shadowed, user_directories, user_modules
from tfdpg.networks import UnavailableDeviceError, check_device
from tfdpg.options import Structural
from tfdpg.spec import Spec
from tfdpg.training.callbacks import (
    Checkpoint,
    EpochLogger,
    ExportBest,
    LatenessLogger,
    ProgressLogger,
    ScalarWriter,
    StepFile,
    StopAtReturn,
    read_step_file,
    step_line,
)
from tfdpg.training.evaluation import PolicyLike, evaluate
from tfdpg.training.lateness import LATENESS
from tfdpg.training.options import FitOptions
from tfdpg.training.realtime import check_safe_action

TRAINED = "trained.txt"
"""The name of the file with the environment steps and the seconds of training."""


class _SignedCheckpoint(Checkpoint):
    """Saves checkpoints with a signature, which appears together with the checkpoint."""

    def _complete(self, scratch: Path, directory: Path) -> None:
        ownership.sign(scratch / CHECKPOINT, directory)


def start(directory: Path, config: RunConfig, began: float, overwrite: bool = False) -> None:
    """Train a new agent in a new run directory. The directory is made only after all options have been checked.

    Args:
        directory: the run directory.
        config: the configuration.
        began: the time at which the time budget begins, by `time.monotonic`.
        overwrite: whether to replace an existing run.
    """
    paths.check_free(directory, overwrite)
    env = _make_env(config)
    try:
        agent = _checked_agent(config, env, config.from_)
        callbacks = _callbacks(directory, config, env, began, is_own=True)
    except BaseException:
        close(env)
        raise
    with new_run(directory, config, overwrite):
        _train(directory, config, agent, env, callbacks, began)


def check_options(config: RunConfig) -> None:
    """Check all options of a run by making its environment and its agent, and write nothing."""
    env = _make_env(config)
    try:
        _checked_agent(config, env, config.from_)
    finally:
        close(env)


def _checked_agent(config: RunConfig, env: Any, model: str | Path | None) -> Agent:
    """Return the new agent of a run, from an exported model if there is one, once all options have been checked."""
    if config.demonstrations is not None and not Path(config.demonstrations).exists():
        raise FileNotFoundError(f"`--demonstrations` must be a file or a directory. Received: {config.demonstrations}")
    agent = _new_agent(config, env, model)
    _check_distributed(config, agent, env)
    check_safe_action(agent.spec, config.fit_options.get("safe_action"))
    return agent


def _make_env(config: RunConfig) -> Any:
    return make_envs(config.env, config.env_kwargs, config.num_envs, config.vectorization)


def _new_agent(config: RunConfig, env: Any, model: str | Path | None) -> Agent:
    """Make the agent of a run, from an exported model if there is one."""
    kind: Any = agent_class(config.agent)
    build = kind if model is None else functools.partial(kind.from_export, model)
    objects = _own_objects(config.networks, config.agent, Spec.of(env)) if config.networks else {}
    return build(env, **config.agent_options, **objects, seed=config.seed)


def _own_objects(reference: str, agent: str, spec: Spec) -> dict[str, Any]:
    """Return what the function that `--networks` names returns: arguments of the agent that no flag can set."""
    module, _, function = reference.partition(":")
    if not function:
        raise ValueError(f"`--networks` must be module:function. Received: {reference!r}")
    with user_modules():
        build = getattr(import_user_module(module), function, None)
        if not callable(build):
            raise ValueError(
                f"`--networks` must be module:function, and {module} has no function {function!r}.{shadowed(module)}"
            )
        objects: Any = build(spec)
    known = sorted(objects_of(options_class(agent)))
    if unknown := set(objects) - set(known):
        raise ValueError(
            f"`--networks` must return a dict with any of {', '.join(known)} for {display_name(agent)}. Received: "
            f"{sorted(unknown)}"
        )
    return objects


def _check_distributed(config: RunConfig, agent: Agent, env: Any) -> None:
    """Check the options of distributed training before anything is written."""
    if config.distributed is None:
        return
    if is_real(env):
        raise ValueError(f"`--actors` makes several instances of {config.env}, which is a real machine (`is_real`).")
    distribution = DistributedFitOptions(**config.fit_options, **config.distributed)
    if config.num_envs != 1:
        raise ValueError(
            "`--num-envs` and `--actors` exclude each other, because each worker has one environment. Received: "
            f"num_envs={config.num_envs}, actors={distribution.actors}"
        )
    require_ray()
    check(agent, distribution)
    policy_for_workers(agent, distribution.worker_backend)
    from tfdpg.distributed.processes import check_joinable

    check_joinable(distribution.ray_address)


def _is_real(config: RunConfig, env: Any) -> bool:
    """Whether the run trains on a real machine, of which there is one instance, and which is not evaluated on."""
    return bool(config.fit_options.get("realtime")) or is_real(env)


def _callbacks(
    directory: Path, config: RunConfig, env: Any, began: float, is_own: bool
) -> list[keras.callbacks.Callback]:
    prefix = "" if _is_real(config, env) and not config.evaluate else "val_"
    best, mode = best_log(config.best_by, prefix)
    exported = ExportBest(directory / "best", best, mode=mode)
    exported.is_of_run = True
    checkpoint = _SignedCheckpoint if is_own else Checkpoint
    callbacks = [
        ProgressLogger(str(directory / "progress.csv"), append=True),
        EpochLogger(directory / "progress.txt", append=True),
        ScalarWriter(directory / "tensorboard", config.write_interval),
        StepFile(directory / TRAINED, began),
        exported,
        *([LatenessLogger(directory / LATENESS, append=True)] if config.fit_options.get("realtime") else []),
        # The checkpoint is last. If the process is killed before it is saved, the resumed run removes or repeats what
        # the other callbacks wrote in this epoch.
        checkpoint(directory / "checkpoints", every=config.save_every, keep=config.keep_checkpoints),
    ]
    if config.target_return is not None:
        callbacks.append(StopAtReturn(config.target_return, f"{prefix}return"))
    return callbacks


def _train(
    directory: Path, config: RunConfig, agent: Agent, env: Any, callbacks: list[keras.callbacks.Callback], began: float
) -> None:
    # a worker on a Ray cluster may have another working directory
    make_env = functools.partial(call_for, user_directories(), make, config.env, **config.env_kwargs)
    validation_env: Any = env if config.evaluate else None if _is_real(config, env) else make_env()
    options: dict[str, Any] = {"validation_env": validation_env, "callbacks": callbacks, **config.fit_options}
    budget = 60 * (config.options.get("minutes") or math.inf)
    first = agent.env_steps
    if budget < math.inf:
        left = budget - (time.monotonic() - began)
        options["minutes"] = max(left, 0.001) / 60
    try:
        if config.distributed is None:
            agent.fit(env, **options)
        else:
            distributed.fit(agent, make_env, **options, **config.distributed)
        if budget < math.inf and not (agent.stop_training or _has_all_epochs(agent, config)):
            seconds = max(budget, time.monotonic() - began)  # training ends some seconds early
            files.write_text(directory / TRAINED, step_line(agent.env_steps, seconds))
        _export(agent, directory)
    except (KeyboardInterrupt, SystemExit) as end:
        end.add_note(f"Resume with: {resume_command(directory, config)}")
        raise
    except (FloatingPointError, ValueError):  # resuming without a change would end in the same way
        raise
    except Exception as error:
        if agent.env_steps > first and export.versions(directory / "checkpoints"):
            error.add_note(f"Resume with: {resume_command(directory, config)}")
        raise
    finally:
        others = () if validation_env is None or validation_env is env else (validation_env,)
        for each in (env, *others):
            with contextlib.suppress(OSError, EOFError):  # the processes of the sub-environments have ended
                close(each)


def _export(agent: Agent, directory: Path) -> None:
    print(f"exported {agent.export(directory / 'export')}; the best policy is in {directory / 'best'}")


def _has_all_epochs(agent: Agent, config: RunConfig) -> bool:
    limit = FitOptions(**config.fit_options).epoch_limit
    return limit is not None and agent.epoch >= limit


def resume(directory: Path, config: RunConfig, began: float, trusted: bool = False) -> None:
    """Resume a run from its newest undamaged checkpoint. A run without checkpoints starts again.

    Args:
        directory: the run directory.
        config: the new configuration. It may differ from `run.json` in the options that can change.
        began: the time from which this process counts, by `time.monotonic`; earlier processes have used a part of the
            time budget.
        trusted: whether to import the modules and follow the paths that `run.json` and the checkpoint name. Those of
            the user's own run are used in any case.
    """
    with run_lock.held(directory):
        before, is_own = read_run(directory, trusted)
        trusted = trusted or is_own
        check_followed(before.external_references, trusted, directory / "run.json")
        env = _make_env(config)
        if export.versions(directory / "checkpoints"):
            agent = _load_latest(directory, config, trusted, env)
        else:
            agent = _checked_agent(config, env, None if config.from_ is None else directory / paths.INITIAL)
            for name in ("progress.csv", "progress.txt", LATENESS):
                (directory / name).unlink(missing_ok=True)
            shutil.rmtree(directory / "tensorboard", ignore_errors=True)
        steps, seconds = read_step_file(directory / TRAINED)
        if remedies := _what_ended(seconds, config, agent):
            if config == before and not _is_exported(agent, directory / "export"):
                _export(agent, directory)
                return
            note = "" if config == before else "; nothing was changed"
            print(
                f"{directory} is complete: {agent.epoch} epochs{note}. To continue: {' and '.join(remedies)} or more."
            )
            return
        if (lost := steps - agent.env_steps) > 0:
            outcome = "lost" if config.distributed else "taken again"
            print(f"resumed at step {agent.env_steps}; {lost} steps after the checkpoint are {outcome}")
        if config != before:
            config.write(directory)
            if is_own:
                ownership.sign(directory / "run.json")
        config = dataclasses.replace(config, options={**config.options, "initial_epoch": agent.epoch})
        _train(
            directory, config, agent, env, _callbacks(directory, config, env, began - seconds, is_own), began - seconds
        )


def _what_ended(seconds: float, config: RunConfig, agent: Agent) -> list[str]:
    """Return the flags that must be raised to continue a run with these seconds of training; none if it is not over."""
    minutes = config.options.get("minutes")
    flags = [f"--epochs {agent.epoch + 1}"] if _has_all_epochs(agent, config) else []
    if minutes is not None and seconds >= 60 * minutes:
        flags.append(f"--minutes {math.floor(seconds / 60) + 1}")
    return flags


def _is_exported(agent: Agent, directory: Path) -> bool:
    """Return whether the newest export has the agent's present state. A run may be killed just before the export."""
    try:
        exported = export.metadata(export.latest_version(directory))
    except (OSError, export.ExportError):
        return False
    return (exported.get("env_steps"), exported.get("updates")) == (agent.env_steps, agent.updates)


def load_policy(path: Path, checkpoint: str | None, trusted: bool) -> tuple[PolicyLike, dict[str, Any] | None, bool]:
    """Return the policy of a run or of an exported model.

    Args:
        path: the run directory or the exported model.
        checkpoint: see `tfdpg.cli.commands.evaluate`.
        trusted: whether to import and follow what the files name, as those of the user's own run are in any case.

    Returns:
        The policy, the id and arguments of its environment, and whether that environment is trusted.
    """
    if not paths.is_run(path):
        if checkpoint is not None:
            raise ValueError(f"`--checkpoint` is for run directories, and {path} has no run.json")
        policy = export.load(path, trusted=trusted)
        return policy, policy.metadata.get("environment"), trusted
    config, is_own = read_run(path, trusted)
    environment = {"id": config.env, "kwargs": config.env_kwargs}
    if checkpoint == "best":
        return export.load(_best_export(path), trusted=trusted), environment, trusted or is_own
    trusted = trusted or is_own
    return load_checkpoint(path, config, checkpoint or "latest", trusted).policy(), environment, trusted


def export_policy(
    run: Path, directory: Path, checkpoint: str, trusted: bool, options: ExportOptions, episodes: int
) -> Path:
    """Export a checkpoint of a run, or copy or convert its best policy, into `directory`.

    The `tfdpg.json` of a SavedModel contains the command and the seed of the run, and the scores of `episodes`
    evaluation episodes if there are any.
    """
    config, is_own = read_run(run, trusted)
    if episodes:
        check_trusted(config.env, config.env_kwargs, trusted or is_own, run / "run.json")
    if checkpoint == "best" and options.signatures is not None:
        raise ValueError(
            "`--signatures` needs a checkpoint, because the best policy was exported during training. Add --checkpoint "
            "latest, or the environment steps of a checkpoint."
        )
    if options.format != "tf_saved_model":
        if checkpoint == "best":
            converted = options.values(without=("scores", "signatures"))
            return export.convert(_best_export(run), directory, **converted, trusted=trusted)
        return load_checkpoint(run, config, checkpoint, trusted or is_own).export(directory, **options.values())
    with tempfile.TemporaryDirectory() as scratch:
        if checkpoint == "best":
            version = _best_export(run)
            if not trusted:
                export.check_safe(version)  # TensorFlow Serving would run the copy
        else:
            version = load_checkpoint(run, config, checkpoint, trusted or is_own).export(scratch, **options.values())
        info: dict[str, Any] = {"command": train_command(config), "seed": config.seed}
        if episodes:
            with contextlib.closing(make(config.env, **config.env_kwargs)) as env:
                scores = evaluate(export.load(version, trusted=True), env, episodes)
            info["scores"] = scores | {"episodes": episodes}
        return export.copy(version, directory, info)


def _best_export(run: Path) -> Path:
    """Return the newest version of a run's best policy."""
    if not paths.is_model(run / "best"):
        raise FileNotFoundError(f"{run} has no best policy yet. The first evaluation writes one.")
    return export.latest_version(run / "best")


def describe_policy(run: Path, checkpoint: str) -> str:
    """Describe the policy of a checkpoint; for the best one also its scores, and how its episodes ended."""
    if checkpoint != "best":
        return f"of the checkpoint {checkpoint}"
    scores = export.metadata(_best_export(run)).get("scores") or {}
    prefix = "val_" if "val_return" in scores else ""
    names = "return", "success_rate", "episode_length", "terminated", "truncated"
    shown = [f"{name.replace('_', ' ')} {scores[prefix + name]:.4g}" for name in names if prefix + name in scores]
    info = f"{prefix}info_"
    others = [f"{name.removeprefix(info)} {value:.4g}" for name, value in scores.items() if name.startswith(info)]
    return f"with the best evaluation ({', '.join([*shown, *others])})"


def load_checkpoint(run: Path, config: RunConfig, which: str, trusted: bool) -> Agent:
    """Load the agent of the checkpoint `latest`, or of the one with this number of environment steps."""
    saved = export.versions(run / "checkpoints")
    if not saved:
        raise FileNotFoundError(f"{run} has no checkpoint yet. The first epoch writes one, and so does Ctrl-C.")
    if which == "latest":
        return _load_latest(run, config, trusted)
    if not files.is_version(which) or int(which) not in saved:
        raise ValueError(f"`--checkpoint` must be latest, best or one of {saved}. Received: {which!r}")
    changes = _device_changes(config)
    return load_agent(run / "checkpoints" / which, agent_class=agent_class(config.agent), trusted=trusted, **changes)


def _load_latest(run: Path, config: RunConfig, trusted: bool, env: Any = None) -> Agent:
    """Load the newest undamaged checkpoint.

    Args:
        run: the run directory.
        config: the configuration.
        trusted: whether to import and follow what the checkpoint names.
        env: the environment, to resume the run: the options of the configuration then replace those of the checkpoint,
            and damaged checkpoints are renamed, so that new ones can take their place.

    Raises:
        CheckpointError: all checkpoints are damaged. The message is about the newest.
    """
    kind = agent_class(config.agent)
    damaged = []
    for steps in reversed(export.versions(run / "checkpoints")):
        directory = run / "checkpoints" / str(steps)
        changes = _device_changes(config) if env is None else _changes(directory, config)
        try:
            agent = load_agent(directory, env, agent_class=kind, trusted=trusted, **changes)
        except (CheckpointError, FileNotFoundError) as error:
            damaged.append((directory, error))
            continue
        for directory, error in damaged:
            print(f"{error}; using the checkpoint of step {steps} instead", file=sys.stderr)
            if env is not None:
                number = len(list(directory.parent.glob(f"{directory.name}.damaged*"))) + 1
                directory.rename(directory.with_name(f"{directory.name}.damaged-{number}"))
        return agent
    raise damaged[0][1]


def _device_changes(config: RunConfig) -> dict[str, None]:
    """Return the change of options with which a policy runs on a machine without the device of its run."""
    device = config.agent_options.get("device")
    try:
        check_device(device, {})
    except UnavailableDeviceError:
        print(f"This machine does not have device={device!r}, so the policy runs without it.", file=sys.stderr)
        return {name: None for name in ("device", "replay_device") if name in config.agent_options}
    return {}


def _changes(checkpoint: Path, config: RunConfig) -> dict[str, Any]:
    """Return the options of a run that differ from those of a checkpoint, out of the options that can change."""
    try:
        saved = json.loads((checkpoint / CHECKPOINT).read_text())["arguments"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # `load_agent` reports the damage
    now = json.loads(json.dumps(config.agent_options))
    names = set(now) & set(saved) - set(options_class(config.agent).names(Structural))
    return {name: config.agent_options[name] for name in names if now[name] != saved[name]}
