"""Several networks that are called together: the critics of an agent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Critics:
    """The critics q1, ..., qn of an agent, which `batch.ask` and `batch.ask_both` call like one network.

    Their outputs are stacked: values are `[n, batch]`, and distributions of returns `[n, batch, k]`. Each critic is a
    Keras model with weights and an optimizer of its own.

    Args:
        networks: the critics by name, such as the components of an agent or their target networks.
        indices: the numbers, from 0, of the critics that are called, `[m]`; a sequence or an int tensor, or None for
            all.

    Attributes:
        networks: the critics by name.
        indices: the numbers of those that are called; None is all.

    Example:
        ```python
        self.critics = Critics.of("q", self.networks)
        self.target_critics = Critics.of("q", self.networks | self.targets)
        values = batch.ask(self.critics, batch.action)  # [n, batch]
        value_t = smallest(batch.ask_next(self.target_critics[drawn], action_t))  # as in REDQ
        ```
    """

    def __init__(self, networks: Mapping[str, keras.Model], indices: Any = None):
        self.networks = dict(networks)
        self.indices = indices

    @classmethod
    def of(cls, name: str, networks: Mapping[str, keras.Model]) -> "Critics":
        """Return the critics `name`1, `name`2, ... among networks; see `tfdpg.components.critics`.

        Args:
            name: the name without number, such as "q".
            networks: networks by name.
        """
        return cls({key: each for key, each in networks.items() if key.removeprefix(name).isdecimal()})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the critics, for `Agent.minimize`."""
        return tuple(self.networks)

    def __iter__(self) -> Iterator[keras.Model]:
        return iter(self.networks.values())

    def __getitem__(self, indices: Any) -> "Critics":
        """Return a subset: a slice, or numbers `[m]` from 0, which may be a tensor that is computed in the update.

        Raises:
            IndexError: a single number, or one that no critic has.
        """
        if isinstance(indices, slice):
            return Critics(dict(list(self.networks.items())[indices]))
        if not tf.is_tensor(indices) and (np.ndim(indices) != 1 or not set(indices) <= set(range(len(self.networks)))):
            last = len(self.networks) - 1
            raise IndexError(f"Critics are chosen by a slice or by numbers from 0 to {last}. Received: {indices!r}")
        return Critics(self.networks, indices)

    def match(self, others: "Critics") -> bool:
        """Whether each of these critics belongs to the one at its place among others, as to its target network."""
        return self.names == others.names and self.indices is None and others.indices is None

    def by_name(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the metrics `q1`, ..., `qn` of `[n, batch]`."""
        return dict(zip(self.networks, tf.unstack(values), strict=True))

    def stack(self, ask: Callable[[Any], tf.Tensor], with_weights: bool = False) -> tf.Tensor:
        """Call each critic, and stack the outputs on a new first axis; an output `[batch, 1]` counts as `[batch]`.

        Args:
            ask: calls one network.
            with_weights: whether a subset may be computed by one network with the weights of others, so that the other
                critics are not called. `ask` then changes no state, and calls the network as a function.
        """
        networks = list(self)
        if self.indices is None:
            return tf.stack([_flat(ask(network)) for network in networks])
        kinds = [_kind(network) for network in networks]
        if not with_weights or any(kind != kinds[0] for kind in kinds):
            return tf.gather(tf.stack([_flat(ask(network)) for network in networks]), self.indices)
        same = zip(*[network.variables for network in networks], strict=True)
        drawn = [tf.unstack(tf.gather(tf.stack([one.value for one in each]), self.indices)) for each in same]
        return tf.stack([_flat(ask(_with_weights(networks[0], weights))) for weights in zip(*drawn, strict=True)])


def _kind(network: Any) -> list[Any]:
    """What a network computes from its weights: the types, shapes and configurations of its layers, without names."""
    if isinstance(network, keras.Model):
        return [_kind(layer) for layer in network.layers]
    left_out = "name", "kernel_initializer", "bias_initializer"
    config = {key: value for key, value in network.get_config().items() if key not in left_out}
    return [type(network), config, [tuple(variable.shape) for variable in network.variables]]


def _with_weights(network: keras.Model, weights: Sequence[tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return a function that computes what a network computes with other weights."""

    def call(inputs: Any, training: bool = False) -> tf.Tensor:
        with keras.StatelessScope(list(zip(network.variables, weights, strict=True))):
            return network(inputs, training=training)

    return call


def per_critic(function: Callable[[tf.Tensor], tf.Tensor], outputs: tf.Tensor) -> tf.Tensor:
    """Apply a function, such as a loss of values `[batch]`, to the output of each critic, and stack the results.

    Args:
        function: receives the output of one critic.
        outputs: the stacked outputs, `[n, batch]` or `[n, batch, k]`.
    """
    return tf.stack([function(output) for output in tf.unstack(outputs)])


def ask_both(batch: Any, critics: Critics, action: Any, next_critics: Critics, next_action: Any) -> list[tf.Tensor]:
    """Call `batch.ask_both` for each critic and its target, and stack the outputs."""
    if not critics.match(next_critics):
        return [batch.ask(critics, action, training=True), batch.ask_next(next_critics, next_action)]
    pairs = [batch.ask_both(q, action, q_t, next_action) for q, q_t in zip(critics, next_critics, strict=True)]
    return [tf.stack([_flat(output) for output in outputs]) for outputs in zip(*pairs, strict=True)]


def _flat(output: tf.Tensor) -> tf.Tensor:
    return tf.squeeze(output, axis=-1) if output.shape.rank == 2 and output.shape[-1] == 1 else output
