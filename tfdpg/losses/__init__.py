"""The arithmetic of the algorithms: pure functions on tensors, one topic a file.

Every function takes any leading shape `[...]`, float32 or float64, and returns the same type.
"""

from tfdpg.losses.td import bc_loss, smooth_action, td_loss, td_target

__all__ = ["bc_loss", "smooth_action", "td_loss", "td_target"]
