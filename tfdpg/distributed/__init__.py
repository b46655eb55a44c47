"""Training with rollout workers in processes of their own, on one machine or on a Ray cluster.

Importing this needs neither Ray nor TensorFlow.
"""

from tfdpg.distributed.interface import fit

__all__ = ["fit"]


def __dir__() -> list[str]:
    return __all__
