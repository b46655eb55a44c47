"""Private interfaces of Keras. Written for Keras 3.15.

Without them, nothing tells users that a custom policy cannot reach the bounds of the action space.
"""

from typing import Any


def producer(tensor: Any) -> tuple[Any, list[Any]]:
    """Return the layer or operation of a functional model that computes a symbolic tensor, and its input tensors."""
    operation, node, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node].input_tensors
