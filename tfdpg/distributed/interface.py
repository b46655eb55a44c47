"""`tfdpg.distributed.fit`. Nothing heavy is imported before it is called."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import environment_maker, require_ray
from tfdpg.options import takes_options

if TYPE_CHECKING:
    import gymnasium as gym
    import keras

    from tfdpg.agents.agent import Agent


@takes_options(DistributedFitOptions)
def fit(
    agent: "Agent", make_env: "Callable[[], gym.Env] | str", options: DistributedFitOptions
) -> "keras.callbacks.History":
    """Trains an agent on environments in processes of their own, on this machine or on a Ray cluster.

    Workers collect while the learner, which is this process, learns. Beside that it is `Agent.fit`: the same
    callbacks, checkpoints, evaluation and logs, with `updates_per_second` and `worker_restarts`. An epoch ends
    once its steps have arrived; since they arrive in chunks, it may have up to two chunks for each worker more.

    A worker or node that dies costs the steps that had not arrived; training goes on with the others, and the worker
    comes back. What an environment raises ends training. Ctrl-C ends it as `Agent.fit` does.

    Args:
        agent: an agent that explores with noise.
        make_env: a callable without arguments that makes an environment, or an id, such as `module:Class`.
        options: keyword arguments.

    Returns:
        A `History` with `return`, `loss`, ... for each epoch, and `val_return`, ... with a `validation_env`.

    Raises:
        ImportError: Ray is not installed, or so old that it has no authentication.
        ValueError: an argument out of its range, an environment with other spaces, or NaN from it.
        TimeoutError: see `step_timeout`.
    """
    require_ray()
    from tfdpg.distributed.learner import train

    return train(agent, environment_maker(make_env), options)
