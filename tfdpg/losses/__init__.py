"""Losses, targets and gradients of the algorithms: pure functions of tensors.

The functions accept any leading shape `[...]` and float32 or float64 tensors, and return the same type.
"""

from tfdpg.losses.acer import (
    MIN_PROBABILITY,
    acer_gradient_categorical,
    acer_gradient_gaussian,
    acer_v_target,
    entropy_gradient_categorical,
    entropy_gradient_gaussian,
    kl_gradient_categorical,
    kl_gradient_gaussian,
    trust_region,
)
from tfdpg.losses.distributional import (
    categorical_target,
    categorical_td_loss,
    cross_entropy,
    mixture_sample,
    mixture_td_loss,
    project_categorical,
)
from tfdpg.losses.quantiles import categorical_cvar, categorical_quantiles, mixture_cvar, mixture_quantiles
from tfdpg.losses.retrace import retrace
from tfdpg.losses.td import (
    bc_loss,
    clip_action_gradient,
    huber_td_loss,
    smooth_action,
    smoothness_loss,
    td7_policy_loss,
    td_loss,
    td_target,
)

__all__ = [
    "MIN_PROBABILITY",
    "acer_gradient_categorical",
    "acer_gradient_gaussian",
    "acer_v_target",
    "bc_loss",
    "categorical_cvar",
    "categorical_quantiles",
    "categorical_target",
    "categorical_td_loss",
    "clip_action_gradient",
    "cross_entropy",
    "entropy_gradient_categorical",
    "entropy_gradient_gaussian",
    "huber_td_loss",
    "kl_gradient_categorical",
    "kl_gradient_gaussian",
    "mixture_cvar",
    "mixture_quantiles",
    "mixture_sample",
    "mixture_td_loss",
    "project_categorical",
    "retrace",
    "smooth_action",
    "smoothness_loss",
    "td7_policy_loss",
    "td_loss",
    "td_target",
    "trust_region",
]


def __dir__() -> list[str]:
    return __all__
