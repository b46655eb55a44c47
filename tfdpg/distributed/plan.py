"""Whether a training can be distributed, and what its workers make and do."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy, ForwardPass
from tfdpg.arguments import reject
from tfdpg.distributed.options import Distribution
from tfdpg.environments import maker

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent


def worker_policies(agent: "Agent", options: Distribution, actor: ForwardPass) -> list[BehaviourPolicy]:
    """Who acts in each worker, with more or less noise.

    Args:
        agent: the agent.
        options: the noise levels, or what they are made of.
        actor: the forward pass of the policy.

    Raises:
        ValueError: the agent does not explore with noise.
    """
    noise_scales: list[float | None] = list(options.noise_levels or np.linspace(1 / 32, 1, options.actors).tolist())
    if options.noise_levels is None and options.actors == 1:
        noise_scales = [None]
    behaviour_policy = agent.behaviour.with_network(actor)
    return [
        BehaviourPolicy(
            agent.spec, actor, behaviour_policy.exploration.at_scale(scale), behaviour_policy.policy_state.fresh_copy()
        )
        for scale in noise_scales
    ]


def check(agent: "Agent", options: Distribution) -> None:
    """Raises `ValueError` for an agent that cannot be trained so."""
    agent.behaviour.exploration.at_scale(None)
    chosen = agent.options.values()
    if options.samples_per_insert is not None and chosen["epochs_per_round"] is not None:
        raise ValueError(
            "`samples_per_insert` and the agent's `epochs_per_round` both count updates. Received: "
            f"samples_per_insert={options.samples_per_insert}, epochs_per_round={chosen['epochs_per_round']}"
        )
    if not options.replay_shards:
        return
    for name in ("reward_shaper", "recorders", "epochs_per_round"):
        if agent.options.is_changed(name) and chosen[name] not in ((), []):
            raise ValueError(f"`replay_shards` must be 0 with `{name}`, which needs the rows in the learner.")
    if chosen["replay_size"] // options.replay_shards < 2:
        wanted = f"at least two rows for each of {options.replay_shards} shards"
        raise reject("replay_size", wanted, chosen["replay_size"])


MIN_RAY_VERSION = (2, 59)
"""Who connects to a Ray that an older one starts needs no token."""


def require_ray() -> None:
    """Raises `ImportError` if Ray is not installed, or is too old."""
    install = 'Install it with: pip install "tfdpg[ray]"'
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"tfdpg.distributed needs Ray. {install}") from error
    if tuple(int(number) for number in ray.__version__.split(".")[:2]) < MIN_RAY_VERSION:
        raise ImportError(
            "tfdpg.distributed needs Ray 2.59 or later, since older ones start without authentication. "
            f"Received: Ray {ray.__version__}. {install}"
        )


def environment_maker(make_env: Any) -> Callable[[], gym.Env]:
    """What makes an environment: a callable as it is, or of an id `tfdpg.environments.maker`.

    Raises:
        ValueError: neither, or an id of no environment.
    """
    if isinstance(make_env, str):
        return maker(make_env)
    if not callable(make_env):
        raise reject("make_env", "a callable without arguments, or the id of an environment", make_env)
    return cast(Callable[[], gym.Env], make_env)
