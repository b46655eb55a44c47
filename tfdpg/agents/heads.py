"""The distributional critic that D4PG's options describe."""

from collections.abc import Collection, Mapping
from typing import Any

from tfdpg.arguments import refuse_unused, reject
from tfdpg.networks import Categorical, HeadOptions, Mixture, Value

UNKNOWN_RANGE = -149.5, 150.5
"""The support until returns have been seen; about the DeepMind Control Suite report's, but one that nobody gives."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "categorical": ("v_min", "v_max", "v_range", "atoms"),
    "mixture": ("components", "target_samples", "min_stddev"),
    "scalar": (),
}
"""The options that belong to each kind of critic."""


def make_head(options: Mapping[str, Any], changed: Collection[str]) -> HeadOptions:
    """What makes the last layer of each critic.

    Args:
        options: the constructor's arguments.
        changed: the names of those that are not at their defaults.

    Raises:
        ValueError: an option out of its range, or one that another leaves without effect.
    """
    kind = options["critic"]
    if kind not in OPTIONS:
        raise reject("critic", '"categorical", "mixture" or "scalar"', kind)
    for other, names in OPTIONS.items():
        if other != kind:
            refuse_unused(changed, names, f"`critic` is {kind!r}")
    if options["q1"] is not None:
        names = [name for name in OPTIONS[kind] if name != "v_range"]
        refuse_unused(changed, names, "`q1` is your own, with a last layer of its own")
    if kind == "scalar":
        return HeadOptions(Value)
    if kind == "mixture":
        return HeadOptions(Mixture, {name: options[name] for name in OPTIONS["mixture"]})
    v_min, v_max = _support(options)
    return HeadOptions(Categorical, {"v_min": v_min, "v_max": v_max, "atoms": options["atoms"]})


def finds_range(options: Mapping[str, Any]) -> bool:
    """Whether the support is to be chosen from the returns that are seen before the first update."""
    is_given = options["v_min"] is not None or (options["q1"] is not None and options["v_range"] is None)
    return options["critic"] == "categorical" and not is_given


def _support(options: Mapping[str, Any]) -> tuple[float, float]:
    v_min, v_max, v_range = (options[name] for name in ("v_min", "v_max", "v_range"))
    if v_range not in (None, "auto"):
        raise reject("v_range", '"auto" or None', v_range)
    if (v_min is None) != (v_max is None):
        raise ValueError(f"`v_min` and `v_max` go together. Received: v_min={v_min}, v_max={v_max}")
    if v_min is None:
        return UNKNOWN_RANGE
    if v_range == "auto":
        raise ValueError(f"`v_range='auto'` chooses `v_min` and `v_max` itself. Received: v_min={v_min}, v_max={v_max}")
    return v_min, v_max
