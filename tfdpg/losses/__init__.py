"""The arithmetic of the algorithms: pure functions on tensors, one topic a file.

Every function takes any leading shape `[...]`, float32 or float64, and returns the same type.
"""

from tfdpg.losses.distributional import (
    categorical_target,
    categorical_td_loss,
    cross_entropy,
    mixture_sample,
    mixture_td_loss,
    project_categorical,
)
from tfdpg.losses.quantiles import categorical_cvar, categorical_quantiles, mixture_cvar, mixture_quantiles
from tfdpg.losses.td import bc_loss, clip_action_gradient, smooth_action, td_loss, td_target

__all__ = [
    "bc_loss",
    "categorical_cvar",
    "categorical_quantiles",
    "categorical_target",
    "categorical_td_loss",
    "clip_action_gradient",
    "cross_entropy",
    "mixture_cvar",
    "mixture_quantiles",
    "mixture_sample",
    "mixture_td_loss",
    "project_categorical",
    "smooth_action",
    "td_loss",
    "td_target",
]
