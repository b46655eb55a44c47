"""What the networks of an agent receive: inputs from the replay buffer, and their scale at the first weights."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfdpg.compat.keras import flatten_layers, is_functional, run_graph
from tfdpg.networks import BatchRenormalization, Normalizer
from tfdpg.training.trained_agent import TrainedAgent

NORMALIZER = "the layer tfdpg.networks.Normalizer() to the observation in your networks, before all other layers"
"""What custom networks have in place of the option `normalize_observations`."""
RESCALING = (
    Normalizer,
    BatchRenormalization,
    keras.layers.Rescaling,
    keras.layers.Normalization,
    keras.layers.LayerNormalization,
    keras.layers.BatchNormalization,
    keras.layers.UnitNormalization,
)
"""Layers that change the scale of their inputs."""


def network_calls(agent: TrainedAgent, has_actions: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Yield the policy, as `policy`, and the critics: their names, the models, and inputs from the replay buffer.

    The inputs are None if the model is not a graph of layers that takes observations, or observations and actions.

    Args:
        agent: the agent.
        has_actions: whether the inputs contain the stored actions; otherwise, actions are 0.
    """
    buffer = agent.replay
    if not len(buffer) or agent.data.recurrent_spec is not None:
        return
    slots = buffer.transition_slots()
    slots = slots[np.linspace(0, len(slots) - 1, 500).astype(np.int64)]
    leaves = agent.data.spec.unpack(buffer.observation(slots))
    observation: Any = leaves if agent.data.spec.is_dict else leaves["x"]
    action = buffer.action(slots) if has_actions else np.zeros_like(buffer.action(slots))
    for name, model in {"policy": agent.data.evaluation_actor.pi, **agent.exported_critics}.items():
        arguments = len(model.inputs) - len(leaves) if is_functional(model) else -1
        yield name, model, {0: observation, 1: [observation, action]}.get(arguments)


def input_scale(agent: TrainedAgent) -> float | None:
    """Return the largest root mean square of a number that the first kernels of networks receive from the observation.

    The observations are those in the replay buffer. Layers that normalise or rescale them come before. A model that is
    not a graph of layers is not counted if it has such a layer.

    Returns:
        The root mean square; None if it is not known: the replay buffer is empty, or a model is not a graph of layers
        and has no such layer, or networks are recurrent.
    """
    found = []
    for _, model, inputs in network_calls(agent, has_actions=False):
        if inputs is not None:
            first = _FirstInputs()
            run_graph(model, inputs, first.record)
            found.append(first.size)
        elif not any(isinstance(layer, RESCALING) for layer in flatten_layers(model)):
            return None
    return max(found, default=None)


class _FirstInputs:
    """Measures the inputs of the first layers with kernels of a graph.

    Attributes:
        size: the largest root mean square of one of their inputs.
    """

    def __init__(self):
        self.size = 0.0
        self._behind: dict[int, Any] = {}  # what these layers and all behind them return, by identity

    def record(self, layer: Any, arguments: Any, output: Any) -> None:
        """Measure the input of a layer or operation, if no layer with kernels came before; see `run_graph`."""
        inputs = [each for each in keras.tree.flatten(arguments) if len(getattr(each, "shape", ()))]
        if not any(id(each) in self._behind for each in inputs):
            if not any(len(weight.shape) > 1 for weight in getattr(layer, "trainable_weights", ())):
                return
            if not any(isinstance(part, RESCALING) for part in flatten_layers(layer)):
                self.size = max(self.size, *(_root_mean_square(each) for each in inputs))
        self._behind |= {id(each): each for each in keras.tree.flatten(output)}


def _root_mean_square(values: Any) -> float:
    columns = np.asarray(values, np.float64).reshape(len(values), -1)
    return float(np.sqrt(np.mean(np.square(columns), axis=0)).max(initial=0.0))
