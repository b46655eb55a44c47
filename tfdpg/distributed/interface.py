"""`tfdpg.distributed.fit`. Nothing heavy is imported before it is called."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tfdpg.distributed.plan import Plan, environment_maker, require_ray

if TYPE_CHECKING:
    import gymnasium as gym
    import keras

    from tfdpg.agents.agent import Agent


def fit(
    agent: "Agent",
    make_env: "Callable[[], gym.Env] | str",
    *,
    actors: int = 8,
    ray_address: str | None = None,
    epochs: int = 100,
    steps_per_epoch: int = 4000,
    initial_epoch: int = 0,
    callbacks: "Sequence[keras.callbacks.Callback] | None" = None,
    verbose: Literal["auto", 0, 1, 2] = "auto",
    validation_env: Any = None,
    validation_episodes: int = 10,
    max_ep_len: int | None = 1000,
    noise_levels: Sequence[float] | None = None,
    chunk: int = 100,
    variable_update_period: int = 100,
    samples_per_insert: float | None = None,
    tolerance: float = 0.1,
    worker_backend: Literal["numpy", "tensorflow"] = "numpy",
    replay_shards: int = 0,
) -> "keras.callbacks.History":
    """Trains an agent on environments in processes of their own, on this machine or on a Ray cluster.

    Workers collect while the learner, which is this process, learns. Beside that it is `Agent.fit`: the same
    callbacks, checkpoints, evaluation and logs, with `updates_per_second` and `worker_restarts`. An epoch ends
    once its steps have arrived; since they arrive in chunks, it may have up to two chunks for each worker more.

    A worker or node that dies costs the steps that had not arrived; training goes on with the others, and the worker
    comes back. What an environment raises ends training. Ctrl-C ends it as `Agent.fit` does.

    Args:
        agent: an agent that explores with noise.
        make_env: a callable without arguments that makes an environment, or the id of a Gymnasium environment.
        actors: workers, each with an environment and a CPU of its own.
        ray_address: address of a Ray cluster, "auto" for the one that this machine belongs to; the default starts
            a Ray on this machine that ends with the training. A process that is connected to a Ray already stays so.
        epochs: the epoch to stop at.
        steps_per_epoch: environment steps in an epoch, over all workers.
        initial_epoch: the epoch to start at, to go on with an earlier training.
        callbacks: Keras callbacks. A batch is a learning round; its index is that of the last step that arrived.
        verbose: 0 is silent, 1 a progress bar, 2 a line for each epoch; "auto" is 1.
        validation_env: an environment in this process, evaluated on at the end of each epoch.
        validation_episodes: episodes of each evaluation.
        max_ep_len: episodes are cut (truncated) after this many steps; None leaves it to the environment.
        noise_levels: the exploration noise of each worker, as a fraction of the action's half-range; the default goes
            from 1/32 to 1 in equal steps, and is the agent's `act_noise` for one worker.
        chunk: environment steps that a worker sends at a time.
        variable_update_period: updates until workers get newer weights.
        samples_per_insert: rows drawn for each environment step after `update_after`; the default is the agent's own
            schedule (one update a step unless it says otherwise), and 0 collects without learning.
        tolerance: how far the learner or the workers may be ahead of that, as a part of `update_after` steps.
        worker_backend: what the policy runs on in workers, "numpy", or "tensorflow" for one that NumPy has no forward
            pass for.
        replay_shards: processes that hold the replay in place of the learner, each an equal part of it; 0 is none.

    Returns:
        A `History` with `return`, `loss`, ... for each epoch, and `val_return`, ... with a `validation_env`.

    Raises:
        ImportError: Ray is not installed, or so old that it has no authentication.
        ValueError: an argument out of its range, an environment with other spaces, or NaN from it.
    """
    require_ray()
    from tfdpg.distributed.learner import train
    from tfdpg.training.loop import check_counts

    plan = Plan(
        actors=actors,
        ray_address=ray_address,
        noise_levels=noise_levels,
        chunk=chunk,
        variable_update_period=variable_update_period,
        samples_per_insert=samples_per_insert,
        tolerance=tolerance,
        worker_backend=worker_backend,
        replay_shards=replay_shards,
    )
    check_counts(epochs, steps_per_epoch, initial_epoch, validation_episodes, max_ep_len, verbose)
    if validation_env is not None:
        agent.spec.check(validation_env, "validation_env")
    counts = epochs, steps_per_epoch, initial_epoch
    validation = validation_env, validation_episodes, max_ep_len
    return train(agent, environment_maker(make_env), plan, *counts, callbacks, verbose, *validation)
