"""Run directories: what `tfdpg train` leaves behind, and how it is read again.

run.json        the configuration
checkpoints/    the newest saved agents, by environment steps
progress.csv    an epoch a line; progress.txt has Spinning Up's columns
tensorboard/    events
best/           the export with the best evaluation return
export/         the export of the final policy
env_steps       the environment steps taken, newer than the newest checkpoint
lock            which process trains it (`tfdpg.run_lock`)
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras

from tfdpg import distributed, export, files, run_lock
from tfdpg import run_paths as paths
from tfdpg.agents import agent_class, load_agent
from tfdpg.agents.agent import Agent
from tfdpg.agents.options import OPTIONS, ExportOptions
from tfdpg.distributed.plan import check, policy_for_workers, require_ray
from tfdpg.environments import check_followed, check_trusted, make, make_envs
from tfdpg.options import Structural
from tfdpg.run_options import OBJECTS, RunConfig, read_config, resume_command, train_command
from tfdpg.spec import Spec
from tfdpg.training.callbacks import Checkpoint, EpochLogger, ExportBest, ProgressLogger, ScalarWriter, StopAtReturn
from tfdpg.training.checkpoint import CheckpointError
from tfdpg.training.evaluation import PolicyLike, evaluate
from tfdpg.training.step_file import StepFile, read_step_file


def start(directory: Path, config: RunConfig, overwrite: bool = False) -> None:
    """Trains a new agent in a new run directory, which is made once everything has been checked.

    Args:
        directory: where the run goes.
        config: what it is.
        overwrite: whether it takes the place of a run that is there.
    """
    paths.check_free(directory, overwrite)
    env = _make_env(config)
    agent = _new_agent(config, env)
    _check_distributed(config, agent)
    callbacks = _callbacks(directory, config)
    files.make_directory(directory.parent)
    if overwrite and paths.is_run(directory):
        with run_lock.held(directory):
            files.remove(directory)
    files.make_directory(directory)
    with run_lock.held(directory):
        paths.check_free(directory)  # someone else may have been faster
        _write_config(directory, config)
        _train(directory, config, agent, env, callbacks)


def _export(agent: Agent, directory: Path) -> None:
    print(f"exported {agent.export(directory / 'export')}; the best policy is in {directory / 'best'}")


def _is_exported(agent: Agent, directory: Path) -> bool:
    """Whether the newest export is of the agent as it is now; a run may be killed when nothing else is left to do."""
    try:
        exported = export.metadata(export.latest_version(directory))
    except (OSError, export.ExportError):
        return False
    return (exported.get("env_steps"), exported.get("updates")) == (agent.env_steps, agent.updates)


def _write_config(directory: Path, config: RunConfig) -> None:
    text = json.dumps(dataclasses.asdict(config), indent=2)
    files.write_text(directory / "run.json", text + "\n")


def _check_distributed(config: RunConfig, agent: Agent) -> None:
    distribution = config.distribution
    if distribution is None:
        return
    if config.num_envs != 1:
        raise ValueError(
            "`--num-envs` and `--actors` exclude each other: a worker has one environment. Received: "
            f"num_envs={config.num_envs}, actors={distribution.actors}"
        )
    require_ray()
    check(agent, distribution)
    policy_for_workers(agent, distribution.worker_backend)
    from tfdpg.distributed.processes import check_joinable

    check_joinable(distribution.ray_address)


def _new_agent(config: RunConfig, env: Any) -> Agent:
    objects = _own_objects(config.networks, Spec.of(env)) if config.networks else {}
    agent: Any = agent_class(config.agent)
    return agent(env, **config.agent_options, **objects, seed=config.seed)


def resume(directory: Path, config: RunConfig, trusted: bool = False) -> None:
    """Goes on with a run from its latest sound checkpoint.

    A run that ended before its first checkpoint begins again. What `run.json` and the checkpoint name is imported and
    followed only if it is `trusted`.

    Args:
        directory: the run.
        config: what it is from now on; differs from `run.json` in what may change.
        trusted: whether the files are.
    """
    with run_lock.held(directory):
        _resume(directory, config, trusted)


def _resume(directory: Path, config: RunConfig, trusted: bool) -> None:
    before = read_config(directory, trusted)
    check_followed(before.external_references, trusted, directory / "run.json")
    env = _make_env(config)
    if export.versions(directory / "checkpoints"):
        agent = _load_latest(directory, trusted, rename_damaged=True, env=env, config=config)
    else:
        agent = _new_agent(config, env)  # begins again
        for name in ("progress.csv", "progress.txt"):
            (directory / name).unlink(missing_ok=True)
        shutil.rmtree(directory / "tensorboard", ignore_errors=True)
    if agent.epoch >= config.options["epochs"]:
        if config == before and not _is_exported(agent, directory / "export"):
            _export(agent, directory)
            return
        note = "" if config == before else "; nothing was changed"
        print(f"{directory} is complete: {agent.epoch} epochs{note}. To go on: --epochs {agent.epoch + 1} or more.")
        return
    if lost := read_step_file(directory / "env_steps") - agent.env_steps:
        outcome = "lost" if config.distributed else "taken again"
        print(f"resumed at step {agent.env_steps}; {lost} steps after the checkpoint are {outcome}")
    if config != before:
        _write_config(directory, config)
    config = dataclasses.replace(config, options={**config.options, "initial_epoch": agent.epoch})
    _train(directory, config, agent, env, _callbacks(directory, config))


def load_policy(path: Path, checkpoint: str | None, trusted: bool) -> tuple[PolicyLike, dict[str, Any] | None]:
    """The policy of a run or of an exported model, and the id and arguments of its environment."""
    if not paths.is_run(path):
        if checkpoint is not None:
            raise ValueError(f"`--checkpoint` is for run directories, and {path} is none: there is no run.json")
        policy = export.load(path, trusted=trusted)
        return policy, policy.metadata.get("environment")
    config = read_config(path, trusted)
    environment = {"id": config.env, "kwargs": config.env_kwargs}
    if checkpoint == "best":
        return export.load(_best_export(path), trusted=trusted), environment
    return _load(path, checkpoint or "latest", trusted).policy(), environment


def export_policy(
    run: Path, directory: Path, checkpoint: str, trusted: bool, options: ExportOptions, episodes: int
) -> Path:
    """Exports a checkpoint of a run, or copies or converts its best export, into `directory`.

    A SavedModel's `tfdpg.json` says the command and the seed of the run, and, after evaluation episodes, the scores.
    """
    config = read_config(run, trusted)
    if episodes:
        check_trusted(config.env, config.env_kwargs, trusted, run / "run.json")
    if checkpoint == "best" and options.signatures is not None:
        raise ValueError(
            "`--signatures` is for checkpoints, which hold the agent, and the best policy was exported while it "
            "trained. Add --checkpoint latest, or the environment steps of a checkpoint."
        )
    if options.format != "tf_saved_model":
        if checkpoint == "best":
            given = options.format, options.quantize, options.max_error
            own = {"prefix": options.prefix, "weights_in_c_file": options.weights_in_c_file}
            return export.convert(_best_export(run), directory, *given, batch=options.batch, **own, trusted=trusted)
        return _load(run, checkpoint, trusted).export(directory, **options.values())
    with tempfile.TemporaryDirectory() as scratch:
        if checkpoint == "best":
            version = _best_export(run)
            if not trusted:
                export.check_safe(version)  # a copy goes to where TensorFlow Serving runs it
        else:
            version = _load(run, checkpoint, trusted).export(scratch, **options.values())
        return export.copy(version, directory, _training_info(config, version, episodes))


def _training_info(config: RunConfig, version: Path, episodes: int) -> dict[str, Any]:
    """What `tfdpg.json` says of how a policy was made, and of how good it is where it is evaluated."""
    card: dict[str, Any] = {"command": train_command(config), "seed": config.seed}
    if episodes:
        env = make(config.env, **config.env_kwargs)
        with contextlib.closing(env):
            card["scores"] = evaluate(export.load(version, trusted=True), env, episodes) | {"episodes": episodes}
    return card


def _best_export(run: Path) -> Path:
    """The newest version of a run's best policy."""
    if not paths.is_model(run / "best"):
        raise FileNotFoundError(f"{run} has no best policy yet: there is one once an epoch has been evaluated")
    return export.latest_version(run / "best")


def _make_env(config: RunConfig) -> Any:
    return make_envs(config.env, config.env_kwargs, config.num_envs, config.vectorization)


def _own_objects(reference: str, spec: Spec) -> dict[str, Any]:
    module, _, function = reference.partition(":")
    if not function:
        raise ValueError(f"`--networks` must be module:function. Received: {reference!r}")
    build = getattr(importlib.import_module(module), function, None)
    if not callable(build):
        raise ValueError(f"`--networks` must be module:function, and {module} has no function {function!r}.")
    objects: Any = build(spec)
    if unknown := set(objects) - set(OBJECTS):
        raise ValueError(f"`--networks` must give a dict with any of {', '.join(OBJECTS)}. Received: {sorted(unknown)}")
    return objects


def _callbacks(directory: Path, config: RunConfig) -> list[keras.callbacks.Callback]:
    callbacks = [
        ProgressLogger(str(directory / "progress.csv"), append=True),
        EpochLogger(directory / "progress.txt", append=True),
        ScalarWriter(directory / "tensorboard", config.write_interval),
        StepFile(directory / "env_steps"),
        ExportBest(directory / "best"),
        # last: what others wrote of an epoch that was not saved is taken back, or written again, when the run goes on
        Checkpoint(directory / "checkpoints", every=config.save_every, keep=config.keep_checkpoints),
    ]
    if config.target_return is not None:
        callbacks.append(StopAtReturn(config.target_return))
    return callbacks


def _train(
    directory: Path, config: RunConfig, agent: Agent, env: Any, callbacks: list[keras.callbacks.Callback]
) -> None:
    fit_options = config.fit_options
    validation_env = make(config.env, **config.env_kwargs)
    try:
        if config.distributed is None:
            agent.fit(env, validation_env=validation_env, callbacks=callbacks, **fit_options)
        else:
            make_env = functools.partial(make, config.env, **config.env_kwargs)
            fit_options |= config.distributed
            distributed.fit(agent, make_env, validation_env=validation_env, callbacks=callbacks, **fit_options)
        _export(agent, directory)
    except (KeyboardInterrupt, SystemExit) as end:
        end.add_note(f"Go on with: {resume_command(directory, config)}")
        raise
    finally:
        for each in (env, validation_env):
            with contextlib.suppress(OSError, EOFError):  # the processes of its lanes are gone
                each.close()


def _load(run: Path, which: str, trusted: bool) -> Agent:
    """The agent of a checkpoint: `latest`, or its environment steps."""
    saved = export.versions(run / "checkpoints")
    if not saved:
        raise FileNotFoundError(f"{run} holds no checkpoint yet: there is one once an epoch has ended, or Ctrl-C")
    if which == "latest":
        return _load_latest(run, trusted)
    if not which.isdigit() or int(which) not in saved:
        raise ValueError(f"`--checkpoint` must be latest, best or one of {saved}. Received: {which!r}")
    return load_agent(run / "checkpoints" / which, trusted=trusted)


def _load_latest(
    run: Path, trusted: bool, rename_damaged: bool = False, env: Any = None, config: RunConfig | None = None
) -> Agent:
    """The newest checkpoint that is sound, with the options of `config`.

    With `rename_damaged` damaged ones get another name, to make room for new ones.

    Raises:
        CheckpointError: none is sound; it names what is wrong with the newest.
    """
    saved = export.versions(run / "checkpoints")
    damaged = []
    for steps in reversed(saved):
        directory = run / "checkpoints" / str(steps)
        try:
            agent = load_agent(directory, env, trusted=trusted, **(_changes(directory, config) if config else {}))
        except (CheckpointError, FileNotFoundError) as error:
            damaged.append((directory, error))
            continue
        for directory, error in damaged:
            print(f"{error}; the checkpoint before it, of step {steps}, is taken", file=sys.stderr)
            if rename_damaged:
                taken = len(list(directory.parent.glob(f"{directory.name}.damaged*")))
                directory.rename(directory.with_name(f"{directory.name}.damaged-{taken + 1}"))
        return agent
    raise damaged[0][1]


def _changes(checkpoint: Path, config: RunConfig) -> dict[str, Any]:
    """The options of a run, of those that may change, that a checkpoint was saved with others of."""
    try:
        saved = json.loads((checkpoint / "agent.json").read_text())["arguments"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # what is wrong with it is said where it is loaded
    now = json.loads(json.dumps(config.agent_options))
    names = set(now) & set(saved) - set(OPTIONS[config.agent.upper()].names(Structural))
    return {name: config.agent_options[name] for name in names if now[name] != saved[name]}
