"""Checks before distributed training starts, and the policies that its workers act with."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np

from tfdpg.acting import BehaviourPolicy, ForwardPass
from tfdpg.arguments import reject
from tfdpg.distributed.options import Distribution
from tfdpg.environments import maker
from tfdpg.spec import Packed, Spec

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

MIN_RAY_VERSION = (2, 59)
"""Older versions start a cluster that anyone can connect to without a token."""


def require_ray() -> None:
    """Raise `ImportError` if Ray is not installed or is too old."""
    install = 'Install it with: pip install "tfdpg[ray]"'
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"tfdpg.distributed needs Ray. {install}") from error
    if tuple(int(number) for number in ray.__version__.split(".")[:2]) < MIN_RAY_VERSION:
        raise ImportError(
            "tfdpg.distributed needs Ray 2.59 or later, because older versions start without authentication. "
            f"Received: Ray {ray.__version__}. {install}"
        )


def environment_maker(make_env: Any) -> Callable[[], gym.Env]:
    """Return a callable that makes an environment.

    Args:
        make_env: the callable itself, or the id of an environment (see `tfdpg.environments.maker`).

    Raises:
        ValueError: it is neither, or there is no environment with this id.
    """
    if isinstance(make_env, str):
        return maker(make_env)
    if not callable(make_env):
        raise reject("make_env", "a callable without arguments, or the id of an environment", make_env)
    return cast(Callable[[], gym.Env], make_env)


def check(agent: "Agent", options: Distribution) -> None:
    """Raise `ValueError` if an agent's options or its exploration do not allow distributed training."""
    agent.data.behaviour.exploration.at_scale(None)
    chosen = agent.options.values()
    if options.samples_per_insert is not None and chosen["epochs_per_round"] is not None:
        raise ValueError(
            "`samples_per_insert` and the agent's `epochs_per_round` both set the number of updates. Received: "
            f"samples_per_insert={options.samples_per_insert}, epochs_per_round={chosen['epochs_per_round']}"
        )
    if not options.replay_shards:
        return
    for name in ("reward_shaper", "recorders", "epochs_per_round", "her", "replay_device"):
        if agent.options.is_changed(name) and chosen[name] not in ((), []):
            raise ValueError(f"`replay_shards` must be 0 with `{name}`, which needs the rows in the learner.")
    if chosen["replay_size"] // options.replay_shards < 2:
        wanted = f"at least two rows for each of {options.replay_shards} shards"
        raise reject("replay_size", wanted, chosen["replay_size"])


def worker_policies(agent: "Agent", options: Distribution, actor: ForwardPass) -> list[BehaviourPolicy]:
    """Return a behaviour policy for each worker. They differ in the scale of the exploration noise.

    Args:
        agent: an agent that explores with noise.
        options: the number of workers and their noise levels.
        actor: the forward pass of the policy.

    Raises:
        ValueError: the agent does not explore with noise.
    """
    noise_scales: Sequence[float | None] = options.noise_levels or np.linspace(1 / 32, 1, options.actors).tolist()
    if options.noise_levels is None and options.actors == 1:
        noise_scales = [None]
    spec = agent.data.spec
    behaviour = agent.data.behaviour.with_network(actor)
    return [
        BehaviourPolicy(spec, actor, behaviour.exploration.at_scale(scale), behaviour.policy_state.fresh_copy())
        for scale in noise_scales
    ]


@dataclasses.dataclass
class CompiledPolicy:
    """A Keras policy that is sent as JSON. A worker builds and compiles it at the first `load`.

    Attributes:
        spec: the agent's spaces.
        structure: the result of `keras.Model.to_json`, which contains no weights.
        recurrent_width: the width of the recurrent inputs of one observation (see `tfdpg.acting.RecurrentSpec`).
        classes: the custom classes of the model, by their registered names.
    """

    spec: Spec
    structure: str
    recurrent_width: int
    classes: Mapping[str, Any]
    _network: Any = None

    def load(self, weights: Sequence[np.ndarray]) -> None:
        """Load weights in the order of `keras.Model.get_weights`."""
        if self._network is None:
            import keras

            from tfdpg.networks.actor import CompiledActor  # the package registers its layers

            with keras.saving.custom_object_scope(self.classes):
                self._network = keras.models.model_from_json(self.structure)
            self._act = CompiledActor(self.spec, self._network, recurrent_width=self.recurrent_width)
        self._network.set_weights(weights)

    def __call__(self, packed: Packed) -> np.ndarray:
        """Compute the policy's outputs; see `tfdpg.acting.ForwardPass`."""
        return self._act(packed)


def policy_for_workers(agent: "Agent", backend: str) -> tuple[ForwardPass, Callable[[], Any]]:
    """Return the forward pass for workers, and a function that returns the current weights for its method `load`.

    Args:
        agent: the agent whose policy the workers use.
        backend: "numpy" or "tensorflow".

    Raises:
        ValueError: the backend is "numpy", and the policy has no NumPy forward pass.
    """
    pi = agent.data.actor.pi
    if backend == "numpy":
        if agent.data.actor.weights_from is None:
            raise ValueError(
                "`worker_backend` must be 'tensorflow' for this policy, because it has no NumPy forward pass: it is a "
                "custom network, uses an activation, an encoder or a cell that is not available in NumPy, or computes "
                "in half precision. Received: worker_backend='numpy'"
            )
        from tfdpg.networks.actor import flat_weights

        actor: Any = agent.data.actor.snapshot()
        return actor.without_weights(), lambda: flat_weights(pi).numpy()
    from tfdpg.networks.actor import custom_classes

    structure = pi.to_json()
    recurrent_width = agent.data.behaviour.policy_state.fresh_copy().state.shape[1]
    return CompiledPolicy(agent.data.spec, structure, recurrent_width, custom_classes(structure)), pi.get_weights
