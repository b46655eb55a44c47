"""Policies on their way to the workers: in NumPy, or as Keras models where NumPy has no forward pass."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdpg.acting import ForwardPass
from tfdpg.spec import Packed, Spec

if TYPE_CHECKING:
    import keras

    from tfdpg.agents.agent import Agent


class CompiledPolicy:
    """A Keras policy, which becomes a model with a compiled call where it first acts.

    Args:
        spec: the spaces.
        structure: what `keras.Model.to_json` gave. Weights are not in it.
        recurrent_width: the numbers that come with an observation (see `tfdpg.acting.RecurrentSpec`).
        classes: what it is made of beside Keras' and tfdpg's own classes, by the names under which they are registered.
    """

    def __init__(self, spec: Spec, structure: str, recurrent_width: int, classes: Mapping[str, Any]):
        self._spec = spec
        self._structure = structure
        self._recurrent_width = recurrent_width
        self._classes = classes

    @functools.cached_property
    def _network(self) -> "keras.Model":
        import keras

        import tfdpg.networks  # noqa: F401 (its layers register themselves)

        with keras.saving.custom_object_scope(self._classes):
            network: Any = keras.models.model_from_json(self._structure)
        return network

    @functools.cached_property
    def _act(self) -> Callable[[Packed], np.ndarray]:
        from tfdpg.networks.actor import compiled_actor

        return compiled_actor(self._spec, self._network, recurrent_width=self._recurrent_width)

    def load(self, weights: Sequence[np.ndarray]) -> None:
        """Takes the weights, as `keras.Model.get_weights` gives them."""
        self._network.set_weights(weights)

    def __call__(self, packed: Packed) -> np.ndarray:
        """See `tfdpg.acting.ForwardPass`."""
        return self._act(packed)


def policy_for_workers(agent: "Agent", backend: str) -> tuple[ForwardPass, Callable[[], Any]]:
    """What workers act with, and what gives the weights that it is to load.

    Args:
        agent: the agent.
        backend: "numpy" or "tensorflow".

    Raises:
        ValueError: the policy has no forward pass in NumPy.
    """
    pi = agent.actor.pi
    if backend == "numpy":
        if agent.actor.weights_from is None:
            raise ValueError(
                "`worker_backend` must be 'tensorflow' for this policy, which has no forward pass in NumPy (it is "
                "your own, has an activation, an encoder or a cell that is not there, or computes in half precision). "
                "Received: worker_backend='numpy'"
            )
        from tfdpg.networks.actor import flat_weights

        actor: Any = agent.actor.snapshot()
        return actor.without_weights(), lambda: flat_weights(pi).numpy()
    structure = pi.to_json()
    recurrent_width = agent.behaviour.policy_state.fresh_copy().state.shape[1]
    return CompiledPolicy(agent.spec, structure, recurrent_width, _custom_classes(structure)), pi.get_weights


def _custom_classes(structure: str) -> dict[str, Any]:
    """What was registered and is in a structure; a worker has tfdpg's, and might lack the user's."""
    import keras

    registered = keras.saving.get_custom_objects().items()
    return {name: kind for name, kind in registered if f'"{name}"' in structure and not name.startswith("tfdpg>")}
