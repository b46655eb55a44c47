"""Training with rollout workers in separate processes, on one machine or on a Ray cluster: `tfdpg.distributed.fit`.

A companion of the core; importing it imports neither Ray nor TensorFlow. From an agent it uses its replay buffer,
collector, schedule and learner; from the core `acting`, `replay`, `training.loop`, `training.environment` and
`training.learning`. `worker` takes steps, `storage` and `replay_shard` keep rows, `learner` makes updates.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.distributed.plan import environment_maker, require_ray
from tfdpg.options import takes_options

if TYPE_CHECKING:
    import gymnasium as gym
    import keras

    from tfdpg.agents.agent import Agent

__all__ = ["fit"]


def __dir__() -> list[str]:
    return __all__


@takes_options(DistributedFitOptions)
def fit(
    agent: "Agent", make_env: "Callable[[], gym.Env] | str", options: DistributedFitOptions
) -> "keras.callbacks.History":
    """Train an agent on environments in separate processes, on this machine or on a Ray cluster.

    Workers collect experience while this process, the learner, updates the networks. In all other respects this
    function is like `Agent.fit`: it takes the same callbacks, writes the same checkpoints, and evaluates in the same
    way. It also logs `updates_per_second` and `worker_restarts`. An epoch ends as soon as its environment steps have
    arrived. Steps arrive in chunks, so an epoch may have up to two more chunks from each worker.

    If a worker or a node dies, the steps that had not arrived are lost. Training continues with the other workers, and
    the worker is restarted. If an environment raises an error, training ends. Ctrl-C ends training as in `Agent.fit`.

    Args:
        agent: an agent that explores with noise.
        make_env: a callable without arguments that makes an environment, or the id of an environment, such as
            `module:Class`.
        options: keyword arguments.

    Returns:
        A `History` with `return`, `loss` and so on for each epoch, and `val_return` and so on if there is a
        `validation_env`.

    Raises:
        ImportError: Ray is not installed, or is too old to have authentication.
        ValueError: an argument is out of its range, the spaces of an environment differ from the agent's, or an
            environment returned NaN or infinity.
        TimeoutError: an environment step took longer than `step_timeout`.
    """
    require_ray()
    from tfdpg.distributed.learner import train

    return train(agent, environment_maker(make_env), options)
