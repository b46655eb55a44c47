"""Observations for reference outputs, for warm-up requests, and for measuring a quantized policy."""

import contextlib
import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import GreedyPolicy, Preprocessing
from tfdpg.environments import external_references, make
from tfdpg.replay import ReplayBuffer
from tfdpg.spec import Packed, Spec

COUNT = 50
"""The number of observations for which an export contains reference outputs, unless observations are large."""
FEWEST = 10
"""The least number of observations in an export."""
LARGEST = 2 << 20
"""The size in bytes above which reference observations are fewer than `COUNT`."""
MEASURED = 1000
"""The number of observations on which a quantized policy is measured."""
WIDEST = 1e6
"""The widest range of an observation space from which observations are sampled uniformly."""


class Observations(NamedTuple):
    """Observations on which a quantized policy is measured.

    Attributes:
        values: raw observations, `[n, *shape]` by input name.
        origin: a description of their origin, which is printed and stored.
    """

    values: Mapping[str, np.ndarray]
    origin: str


def example_observations(
    spec: Spec,
    replay: ReplayBuffer,
    seed: int,
    count: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> dict[str, np.ndarray]:
    """Return raw observations from the replay buffer or, if it is empty, from the observation space.

    Args:
        spec: the spaces.
        replay: the replay buffer.
        seed: the seed of the observation space.
        count: the number of observations; None takes 50, or fewer if they would have more than 2 MiB, but at least 10.
        preprocessing: computes the features that the replay buffer holds; None if it holds observations. Those of the
            user's model do not contain the observations, which are then sampled.

    Returns:
        Arrays `[count, *shape]` by input name. Numbers that were missing are NaN.
    """
    if count is None:
        size = sum(np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape) for leaf in spec.leaves)
        count = max(FEWEST, min(COUNT, LARGEST // max(size, 1)))
    if replay.size and (preprocessing is None or preprocessing.is_invertible):
        slots = np.linspace(0, replay.size - 1, count).astype(np.int64)
        packed = replay.observation(slots)
        return spec.unpack(packed if preprocessing is None else (preprocessing.newest(packed[0]),))
    return sampled(spec, seed, count)


def sampled(spec: Spec, seed: int, count: int) -> dict[str, np.ndarray]:
    """Sample the observation space; return arrays `[count, *shape]` by input name."""
    space = copy.deepcopy(spec.observation_space)
    space.seed(seed)
    return _unpacked(spec, [spec.pack(space.sample()) for _ in range(count)])


def measured_observations(
    spec: Spec, replay: ReplayBuffer, seed: int, preprocessing: Preprocessing | None = None
) -> Observations:
    """Return observations of the replay buffer, and samples of the observation space if it contains too few.

    Args:
        spec: the spaces.
        replay: the replay buffer, which may be empty.
        seed: the seed of the observation space.
        preprocessing: see `example_observations`.
    """
    num_from_replay = min(replay.size, MEASURED) if preprocessing is None or preprocessing.is_invertible else 0
    if not num_from_replay:
        return Observations(sampled(spec, seed, MEASURED), f"{MEASURED} drawn from the observation space")
    values = example_observations(spec, replay, seed, num_from_replay, preprocessing)
    origin = f"{num_from_replay} from the replay buffer"
    if missing := MEASURED - num_from_replay:
        values = _joined(values, sampled(spec, seed, missing))
        origin += f" and {missing} drawn from the observation space"
    return Observations(values, origin)


def observations_of_export(
    spec: Spec, policy: GreedyPolicy, environment: Any, requests: Mapping[str, np.ndarray]
) -> Observations:
    """Return observations for measuring an exported model without its agent.

    They are observations of the environment that `tfdpg.json` names, in which the policy acts. If it cannot be used,
    they are samples near the warm-up requests. An environment that imports a module or reads a file is not created,
    because the exported model may be untrusted.

    Args:
        spec: the spaces.
        policy: the policy that is measured, not quantized.
        environment: `{"id": ..., "kwargs": {...}}`, or None if the environment is not known.
        requests: the observations of the warm-up requests, `[n, *shape]` by input name.
    """
    try:
        return _visited(spec, policy, environment)
    except Exception as error:
        why = " ".join(str(error).split())
    count = len(next(iter(requests.values())))
    values = _joined(requests, _near(spec, requests, MEASURED - count))
    return Observations(
        values, f"{count} of the warm-up requests and {MEASURED - count} drawn from the observation space, since {why}"
    )


def _visited(spec: Spec, policy: GreedyPolicy, environment: Any) -> Observations:
    """Return observations of episodes in which the policy acts, or raise an exception with the reason."""
    if not environment:
        raise ValueError("tfdpg.json does not name the environment")
    env_id = environment["id"]
    kwargs = {**environment["kwargs"], "render_mode": None}
    if followed := external_references(env_id, kwargs):
        raise ValueError(f"the environment imports, or reads, {followed[0]!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.closing(make(env_id, **kwargs)) as env:
            spec.check(env)
            return Observations(_rolled_out(spec, policy, env), f"{MEASURED} that the policy met in {env_id}")


def _rolled_out(spec: Spec, policy: GreedyPolicy, env: Any) -> dict[str, np.ndarray]:
    """Run episodes until there are `MEASURED` observations."""
    packed: list[Packed] = []
    episode = 0
    while len(packed) < MEASURED:
        observation, _ = env.reset(seed=episode)
        policy.reset()
        ended = False
        while not ended and len(packed) < MEASURED:
            packed.append(spec.pack(observation))
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            policy.received(reward)
            ended = terminated or truncated
        episode += 1
    return _unpacked(spec, packed)


def _near(spec: Spec, requests: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Sample the observation space; unbounded parts are normal with the mean and deviation of the requests."""
    values = sampled(spec, 0, count)
    rng = np.random.default_rng(0)
    for leaf in spec.leaves:
        if leaf.integer_bounds is None:
            space: Any = leaf.space
            known = requests[leaf.name]
            drawn = rng.normal(known.mean(axis=0), known.std(axis=0), (count, *leaf.shape))
            with np.errstate(over="ignore"):
                bounded = space.high - space.low <= WIDEST
            drawn = np.where(bounded, values[leaf.name], np.clip(drawn, space.low, space.high))
            values[leaf.name] = drawn.astype(np.float32)
    return values


def _unpacked(spec: Spec, packed: list[Packed]) -> dict[str, np.ndarray]:
    return spec.unpack(tuple(np.concatenate(parts) for parts in zip(*packed, strict=True)))


def _joined(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([first[name], values]) for name, values in second.items()}
