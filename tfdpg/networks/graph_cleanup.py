"""Graphs that can be freed.

TensorFlow keeps each gradient function that `tf.custom_gradient` made while a graph was traced, and with it the graph,
for as long as the process lives (its issues 27492 and 97697): those of our layers, and one of Keras' optimizers. Nobody
asks for it once gradients are in the graph. What another thread traces meanwhile loses its own, too: a gradient through
it that is taken later is an error of TensorFlow's, never a wrong one.
"""

import contextlib
import threading
from collections.abc import Iterator

from tensorflow.python.framework import ops  # there is no public name for what it keeps

_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def free_graphs() -> Iterator[None]:
    """Graphs that are traced within are freed when their owners are; gradients through them are taken within."""
    with _one_at_a_time:
        before = set(ops.gradient_registry.list())
        try:
            yield
        finally:
            for name in set(ops.gradient_registry.list()) - before:
                if name.startswith("CustomGradient-"):
                    ops.gradient_registry._registry.pop(name)
