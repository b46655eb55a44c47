"""The spaces of an environment: whether agents serve them, and what they see of them."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.acting.encoder import feature_columns
from tfdpg.agents.options import OPTIONS
from tfdpg.checking.report import Fact, bounds
from tfdpg.findings import Finding
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.memory import check_capacity
from tfdpg.spaces import check_action_space
from tfdpg.spec import Leaf, Spec

SOME_ACTIONS = spaces.Box(-1.0, 1.0, (1,))
FLATTEN = "gymnasium.wrappers.FlattenObservation makes one Box of many spaces."


def space_facts(env: gym.Env) -> Iterator[Fact | Finding]:
    """What agents will see of an environment, or why they refuse it."""
    refused = [
        *findings_from(lambda: Spec(env.observation_space, SOME_ACTIONS), FLATTEN),
        *findings_from(lambda: check_action_space(env.action_space)),
    ]
    yield from refused
    if refused:
        yield Fact("observations", str(env.observation_space))
        yield Fact("actions", str(env.action_space))
        return
    spec = Spec(env.observation_space, env.action_space)
    for leaf, columns in zip(spec.leaves, feature_columns(spec), strict=True):
        yield Fact("observations", _describe_leaf(leaf, columns.stop - columns.start))
        yield from _misdeclared(leaf)
    yield _actions(spec)
    yield from _replay(spec)


def findings_from(check: Callable[[], Any], advice: str = "") -> Iterator[Finding]:
    """What a check raises as `ValueError`; its first sentence says what is wrong, the others what to change.

    Args:
        check: what raises.
        advice: more to change, where something is not supported.
    """
    try:
        check()
    except ValueError as error:
        what, _, remedy = str(error).partition(". ")
        yield Finding(f"{what.rstrip('.')}.", f"{advice if 'not supported' in what else ''} {remedy}".strip())


def _describe_leaf(leaf: Leaf, features: int) -> str:
    count = f"{features:,} feature{'s' if features > 1 else ''}"
    shape = f"{leaf.name}: {leaf.space.dtype} {leaf.shape}"
    if isinstance(leaf.space, spaces.Box):
        shape = f"{shape} in {bounds(leaf.space.low, leaf.space.high)}"
    match leaf.dtype:
        case "int32":
            low, high = (np.asarray(end).tolist() for end in leaf.integer_bounds or ())
            return f"{shape} from {low} to {high}; {count}, one-hot"
        case "uint8":
            return f"{shape}; {count}, scaled to [0, 1], unless `encoder` says otherwise"
    return f"{shape}; {count}, as float32"


def _misdeclared(leaf: Leaf) -> Iterator[Finding]:
    box = leaf.space
    if isinstance(box, spaces.Box) and leaf.dtype != "uint8" and len(leaf.shape) >= 2:
        highest = 1 if _is_photographic(leaf.shape) else 255
        if (box.low == 0).all() and ((box.high == 255).all() or (box.high == highest).all()):
            yield Finding(
                f"{leaf.name} looks like an image of type {box.dtype}.",
                "Let its space and its arrays be uint8, in [0, 255]: these are scaled to [0, 1], and take a quarter of "
                "the replay.",
            )


def _is_photographic(shape: tuple[int, ...]) -> bool:
    """Whether it has the shape of a camera's image, channels first or last, rather than that of a board."""
    return len(shape) == 3 and bool({shape[0], shape[-1]} & {1, 3, 4}) and sorted(shape)[1] >= 16


def _actions(spec: Spec) -> Fact:
    if spec.actions is not None:
        low = int(spec.low[0])
        return Fact("actions", f"one of {spec.actions}, from {low} to {low + spec.actions - 1}; for ACER only")
    numbers = f"{spec.act_dim} number{'s' if spec.act_dim > 1 else ''}"
    return Fact("actions", f"{numbers} in {bounds(spec.low, spec.high)}, in these units; for {_names(list(OPTIONS))}")


def _replay(spec: Spec) -> Iterator[Fact | Finding]:
    """The memory of a full replay, of the agents' default size."""
    if spec.actions is None:
        of = "DDPG, TD3 and D4PG"
        buffer = ReplayBuffer(spec, _default_size("TD3"))
    else:
        of = "ACER"
        buffer = ReplayBuffer(spec, _default_size("ACER"), None, spec.act_dim + spec.actions, has_windows=True)
    yield Fact(
        "replay",
        f"{buffer.nbytes / 1e6:,.0f} MB when full, at the default `replay_size` of {of}, {buffer.replay_size:,}",
    )
    yield from findings_from(lambda: check_capacity(buffer.nbytes, None, f"replay_size={buffer.replay_size}"))


def _default_size(agent: str) -> int:
    return OPTIONS[agent].__dataclass_fields__["replay_size"].default


def _names(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
