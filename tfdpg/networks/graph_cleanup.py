"""Free TensorFlow graphs that use `tf.custom_gradient`.

While a graph is traced, TensorFlow registers each gradient function that `tf.custom_gradient` creates, and never
removes it (TensorFlow issues 27492 and 97697). The function keeps the graph alive until the process ends. This concerns
layers of this library and one of Keras' optimizers. The function is no longer needed once the gradients are in the
graph.
The cleanup also removes the functions of graphs that other threads trace at the same time. Computing a gradient through
such a graph later raises an error in TensorFlow; it never returns a wrong gradient.
"""

import contextlib
import threading
from collections.abc import Iterator

from tensorflow.python.framework import ops  # there is no public name for what it keeps

_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def free_graphs() -> Iterator[None]:
    """Let graphs that are traced in this context be freed; compute gradients through them in this context, too."""
    with _one_at_a_time:
        before = set(ops.gradient_registry.list())
        try:
            yield
        finally:
            for name in set(ops.gradient_registry.list()) - before:
                if name.startswith("CustomGradient-"):
                    ops.gradient_registry._registry.pop(name)
