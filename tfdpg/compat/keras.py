"""Private interfaces of Keras. Written for Keras 3.15.

Without them, nothing tells users that a custom policy cannot reach the bounds of the action space, and normalisation
layers and convolutions of networks are not found.
"""

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any


def flatten_layers(model: Any) -> list[Any]:
    """Return a model and all layers in it, also those inside of nested models and of wrappers."""
    return list(model._flatten_layers())


def layers_without_build(model: Any) -> list[type]:
    """Return the classes of layers in a model that contain other layers and have no method `build`, each once.

    Without it, users are not told why Keras may not restore the weights of these layers.
    """
    layers = (layer for layer in flatten_layers(model) if layer._layers and not hasattr(layer, "summary"))  # no models
    return list(dict.fromkeys(type(layer) for layer in layers if getattr(layer.build, "_is_default", False)))


@contextlib.contextmanager
def quiet_build() -> Iterator[None]:
    """Ignore Keras' warning about each layer without a method `build`, which comes with each copy of a network."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`build\(\)` was called on layer")
        yield


def unused_keys(model: Any, inputs: Any) -> list[str]:
    """Return the keys of a dict of observations that a functional model has no inputs for.

    Args:
        model: the model.
        inputs: its inputs: the dict, or a list that begins with it.
    """
    if not is_functional(model):
        return []
    given, taken = (each[0] if isinstance(each, list | tuple) else each for each in (inputs, model._inputs_struct))
    if not (isinstance(given, dict) and isinstance(taken, dict) and taken.keys() < given.keys()):
        return []
    return sorted(given.keys() - taken.keys())


def accept_unused_keys(model: Any) -> None:
    """Make a functional model take its inputs from dicts with more keys than it has inputs.

    Without it, Keras takes the values in the order of their keys: it warns at each call, and gives a model the values
    of other keys if their shapes are equal.
    """
    for name in ("_standardize_inputs", "compute_output_spec"):
        setattr(model, name, functools.partial(_with_known_keys, model, name))


def accepts_unused_keys(model: Any) -> bool:
    """Return whether `accept_unused_keys` was called for a model."""
    return "_standardize_inputs" in vars(model)


def _with_known_keys(model: Any, name: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(type(model), name)(model, _known(model._inputs_struct, inputs), *args, **kwargs)


def _known(expected: Any, inputs: Any) -> Any:
    if isinstance(expected, dict) and isinstance(inputs, dict):
        return {key: inputs[key] for key in expected}
    if isinstance(expected, list | tuple) and isinstance(inputs, list | tuple):
        return [_known(*pair) for pair in zip(expected, inputs, strict=True)]
    return inputs


def assign_directly(variable: Any, value: Any) -> None:
    """Assign a variable that does not belong to the present `keras.StatelessScope`.

    Without it, layers that assign variables themselves, such as batch normalisation, cannot be trained in `fit`.
    """
    variable._direct_assign(value)


def base_optimizer() -> Any:
    """Return the class of optimizers whose methods assign Keras' variables, as they do with Keras' other backends.

    With TensorFlow, a class between it and `keras.optimizers.Optimizer` assigns the `tf.Variable` of each one. Without
    it, only tfdpg's own Adam is as fast as possible in `fit`.
    """
    keras: Any = importlib.import_module("keras")
    return next(kind for kind in keras.optimizers.Optimizer.__mro__ if kind.__name__ == "BaseOptimizer")


def tf_variable(variable: Any) -> Any:
    """Return the `tf.Variable` of Keras' variable, also inside `keras.StatelessScope`; or another one as it is.

    Without it, only tfdpg's own Adam is as fast as possible in `fit`.
    """
    return getattr(variable, "_value", variable)


def producer(tensor: Any) -> tuple[Any, list[Any]]:
    """Return the layer or operation of a functional model that computes a symbolic tensor, and its input tensors."""
    operation, node, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node].input_tensors


def graph_nodes(model: Any) -> Iterator[Any]:
    """The calls of layers and operations in a functional model, each behind those whose outputs it takes.

    Each call has the attributes `operation`, `is_input`, `arguments` (with `args` and `kwargs`), `input_tensors` and
    `outputs`. Written against Keras 3.15. Without it, built-in policies act by compiled calls, not in NumPy, and are
    not exported to C.
    """
    for depth in sorted(model._nodes_by_depth, reverse=True):
        yield from model._nodes_by_depth[depth]


def is_functional(model: Any) -> bool:
    """Return whether a model is a graph of layers, for `run_graph`."""
    return hasattr(model, "_run_through_graph")


def run_graph(model: Any, inputs: Any, record: Callable[[Any, Any, Any], None]) -> Any:
    """Call a functional model eagerly, and pass each layer or operation in it, its input and its output to a function.

    Nested functional models are entered. Without it, the diagnosis does not know the activations of networks.

    Args:
        model: the model.
        inputs: its inputs, as for `model(inputs)`.
        record: receives the layer or operation, its positional arguments, and its output.
    """

    def caller(operation: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_functional(operation):
                return run_graph(operation, args[0], record)
            output = operation(*args, **kwargs)
            record(operation, args, output)
            return output

        return call

    outputs = model._run_through_graph(model._standardize_inputs(inputs), caller)
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def squared_gradients(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each variable that an optimizer trains, and the running mean of its squared gradient, an array.

    Optimizers that keep no such mean yield nothing. Without it, the diagnosis reports no gradient norms.
    """
    velocities = getattr(optimizer, "_velocities", None) or []
    for variable, velocity in zip(getattr(optimizer, "_trainable_variables", []), velocities, strict=False):
        yield variable, velocity.numpy()
