"""An agent's optimizers, one for each network."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpg.arguments import reject


def make_optimizers(
    networks: Mapping[str, keras.Model],
    given: Mapping[str, keras.optimizers.Optimizer | None],
    rates: Mapping[str, float],
    beta_1: float,
    clip_norm: float | None,
    clip_value: float | None,
) -> dict[str, keras.optimizers.Optimizer]:
    """A built optimizer for each network, by its name: Adam, or a copy of one's own.

    Args:
        networks: the networks; those of critics begin with q.
        given: one's own optimizer for "pi", for the critics, "q", and for others by their names.
        rates: the learning rates of Adam, likewise.
        beta_1: Adam's β₁.
        clip_norm: the largest global norm of a network's gradient.
        clip_value: the largest absolute value of an element.

    Raises:
        ValueError: not an optimizer.
    """
    clipping = _clipping(clip_norm, clip_value)
    optimizers = {}
    for name, network in networks.items():
        kind = option_prefix(name).removesuffix("_")
        if given[kind] is None:
            optimizer = _scaled(FusedAdam(rates[kind], beta_1, name=f"{name}_adam", **clipping))
        else:
            optimizer = _copy(f"{kind}_optimizer", given[kind], f"{name}_")
        optimizer.build(network.trainable_variables)
        optimizers[name] = optimizer
    return optimizers


def make_joint_optimizer(
    networks: Mapping[str, keras.Model],
    given: keras.optimizers.Optimizer | None,
    rate: float,
    clip_norm: float | None,
    clip_value: float | None,
) -> dict[str, keras.optimizers.Optimizer]:
    """One built optimizer for all networks, `{"all": optimizer}`: RMSprop, or a copy of one's own; see the other."""
    clipping = _clipping(clip_norm, clip_value)
    if given is None:
        optimizer = _scaled(keras.optimizers.RMSprop(rate, rho=0.99, epsilon=1e-5, **clipping))
    else:
        optimizer = _copy("optimizer", given)
    optimizer.build(trainable_variables(networks.values()))
    return {"all": optimizer}


def option_prefix(name: str) -> str:
    """What begins the names of an optimizer's options: `pi_`, `q_` for critics; nothing where there is one for all."""
    return "" if name == "all" else "q_" if name.startswith("q") else f"{name}_"


def trainable_variables(networks: Iterable[keras.Model]) -> list[Any]:
    """The trainable variables of networks, each once."""
    return list({id(v): v for network in networks for v in network.trainable_variables}.values())


def _clipping(clip_norm: float | None, clip_value: float | None) -> dict[str, Any]:
    limits = {"global_clipnorm": clip_norm, "clipvalue": clip_value}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _copy(name: str, own: Any, prefix: str = "") -> keras.optimizers.Optimizer:
    if not isinstance(own, keras.optimizers.Optimizer):
        raise reject(name, "a Keras optimizer", own)
    return type(own).from_config(own.get_config() | {"name": f"{prefix}{own.name}"})


def _scaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """With its loss scaled where Keras' dtype policy is mixed_float16."""
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name=f"{optimizer.name}_scaled")


class FusedAdam(keras.optimizers.Adam):
    """Keras' Adam, with one operation for each variable where Keras has twenty, which are traced one by one."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step: m ← m + (g − m)(1 − β₁), v ← v + (g² − v)(1 − β₂), w ← w − α m / (√v + ε).

        α = η √(1 − β₂ᵗ) / (1 − β₁ᵗ).
        """
        iterations: Any = self.iterations
        index, step = self._get_variable_index(variable), tf.cast(iterations + 1, tf.float32)
        var, m, v = (_handle(each) for each in (variable, self._momentums[index], self._velocities[index]))
        tf.raw_ops.ResourceApplyAdam(
            var=var,
            m=m,
            v=v,
            beta1_power=tf.pow(self.beta_1, step),
            beta2_power=tf.pow(self.beta_2, step),
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


def _handle(variable: Any) -> Any:
    """TensorFlow's handle of a variable of its own, or of Keras'."""
    return variable.handle if isinstance(variable, tf.Variable) else variable.value.handle


class Optimizers:
    """Several optimizers, as `keras.optimizers.MultiOptimizer` shows them to callbacks.

    `LearningRateScheduler`, `ReduceLROnPlateau` and `TensorBoard` then treat each one, by its name.

    Attributes:
        optimizers: the optimizers; their names differ.
        iterations: the number of updates ever made.
        built: True; an agent builds its optimizers when it is made.
    """

    built = True

    def __init__(self, optimizers: Sequence[keras.optimizers.Optimizer], iterations: tf.Variable):
        self.optimizers = list(optimizers)
        self.iterations = iterations
