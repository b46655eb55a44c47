"""The spaces of an environment: whether agents support them, and what agents see of them."""

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
"""An action space for a `Spec` that checks the observation space alone."""
CONVERT = "Convert it to a Box, for example with gymnasium.wrappers.TransformObservation."


def space_facts(env: gym.Env) -> Iterator[Fact | Finding]:
    """Report what agents see of an environment, or why they do not support its spaces."""
    refused = [
        *findings_from(lambda: Spec(env.observation_space, SOME_ACTIONS), CONVERT),
        *findings_from(lambda: check_action_space(env.action_space), _action_advice(env.action_space)),
    ]
    yield from refused
    if refused:
        yield Fact("observations", str(env.observation_space))
        yield Fact("actions", str(env.action_space))
        return
    spec = Spec(env.observation_space, env.action_space)
    for leaf, columns in zip(spec.leaves, feature_columns(spec), strict=True):
        yield Fact("observations", _describe_leaf(leaf, columns.stop - columns.start))
        yield from _float_images(leaf)
    yield _actions(spec)
    yield from _replay(spec)


def findings_from(check: Callable[[], Any], advice: str = "") -> Iterator[Finding]:
    """Yield the `ValueError` that a check raises, as a finding: the first sentence is the problem, the rest the remedy.

    Args:
        check: the function to call.
        advice: is added to the remedy if something is not supported.
    """
    try:
        check()
    except ValueError as error:
        what, _, remedy = str(error).partition(". ")
        yield Finding(f"{what.rstrip('.')}.", f"{advice if 'not supported' in what else ''} {remedy}".strip())


def _action_advice(space: spaces.Space) -> str:
    """Return how to convert an action space that agents do not support."""
    if isinstance(space, spaces.Dict | spaces.Tuple) and _has_only_floats(space):
        return (
            "Flatten it: `space = env.action_space`, then `env = gymnasium.wrappers.TransformAction(env, lambda "
            "action: gymnasium.spaces.unflatten(space, action), gymnasium.spaces.flatten_space(space))`."
        )
    return (
        "Give the environment a Box, or a Discrete space for ACER, with gymnasium.wrappers.TransformAction(env, "
        "function, new_space): `function` converts an action of `new_space` to one of this space, for example by "
        "rounding."
    )


def _has_only_floats(space: spaces.Space) -> bool:
    """Return whether a space consists of Boxes of floats, in Dict or Tuple spaces."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(_has_only_floats, parts))
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"


def _describe_leaf(leaf: Leaf, features: int) -> str:
    text = f"{leaf.name}: {leaf.space.dtype} {leaf.shape}"
    if isinstance(leaf.space, spaces.Box):
        text += f" in {bounds(leaf.space.low, leaf.space.high)}"
        use = "scaled to [0, 1], unless `encoder` says otherwise" if leaf.dtype == "uint8" else "as float32"
    else:
        low, high = (np.asarray(end).tolist() for end in leaf.integer_bounds or ())
        text += f" from {low} to {high}"
        use = "one-hot"
    return f"{text}; {features:,} feature{'s' if features > 1 else ''}, {use}"


def _float_images(leaf: Leaf) -> Iterator[Finding]:
    """Find images that are declared as other types than uint8."""
    box = leaf.space
    shape = leaf.shape
    if isinstance(box, spaces.Box) and leaf.dtype != "uint8" and len(shape) >= 2:
        # A camera image, channels first or last, may be scaled to [0, 1]; other arrays in [0, 1] may be boards.
        is_photo = len(shape) == 3 and not {1, 3, 4}.isdisjoint((shape[0], shape[-1])) and sorted(shape)[1] >= 16
        if (box.low == 0).all() and ((box.high == 255).all() or (is_photo and (box.high == 1).all())):
            yield Finding(
                f"{leaf.name} looks like an image of type {box.dtype}.",
                "Declare the space and return arrays as uint8 in [0, 255]. Agents scale them to [0, 1], and they take "
                "a quarter of the memory in the replay buffer.",
            )


def _actions(spec: Spec) -> Fact:
    if spec.actions is not None:
        low = int(spec.low[0])
        return Fact("actions", f"one of {spec.actions}, from {low} to {low + spec.actions - 1}; for ACER only")
    kind = "number" if spec.integer_type is None else "integer"
    numbers = f"{spec.act_dim} {kind}{'s' if spec.act_dim > 1 else ''}"
    return Fact("actions", f"{numbers} in {bounds(spec.low, spec.high)}, in these units; for {', '.join(OPTIONS)}")


def _replay(spec: Spec) -> Iterator[Fact | Finding]:
    """Report the memory of a full replay buffer of the agents' default size."""
    if spec.actions is None:
        agents = "DDPG, TD3, D4PG and TD7"
        buffer = ReplayBuffer(spec, OPTIONS["TD3"]().replay_size)
    else:
        agents = "ACER"
        replay_size = OPTIONS["ACER"]().replay_size
        buffer = ReplayBuffer(spec, replay_size, None, spec.act_dim + spec.actions, has_windows=True)
    size = f"{buffer.replay_size:,}"
    yield Fact("replay", f"{buffer.nbytes / 1e6:,.0f} MB when full, at the default `replay_size` of {agents}, {size}")
    yield from findings_from(lambda: check_capacity(buffer.nbytes, None, f"replay_size={buffer.replay_size}"))
