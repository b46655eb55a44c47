"""A replay shard in this process."""

import functools

import numpy as np
import pytest
from gymnasium import spaces

from tests.environments import Counter
from tfdpg import Spec
from tfdpg.acting import BehaviourPolicy, RecurrentSpec, RunningStatistics
from tfdpg.distributed.replay_shard import ReplayShard, split_buffer
from tfdpg.distributed.worker import RolloutRequest, Worker
from tfdpg.exploration import noisy_actions
from tfdpg.replay import ReplayBuffer, SequenceLayout, TransitionLayout, sequence_minibatches
from tfdpg.replay import transition_minibatches as transitions_of
from tfdpg.replay.buffer import NONE
from tfdpg.replay.sequences import previous_rows

SPEC = Spec.of(Counter())
OPTIONS = {"seed": 3, "batch_size": 6, "replay": "uniform", "alpha": None, "beta": None, "beta_steps": None}
OPTIONS |= {"epochs_per_round": None, "max_minibatches_per_round": None}


class ZeroPolicy:
    def load(self, weights): ...

    def __call__(self, packed):
        return np.zeros((1, 1), np.float32)


def worker(env_index=0):
    behaviour = BehaviourPolicy(SPEC, ZeroPolicy(), noisy_actions(SPEC, "gaussian", 0.1, 0.15, None))
    return Worker(env_index, lambda: Counter(length=4, ends="truncated"), behaviour, 0, None)


def shard(size=100, **options):
    make_minibatch_builder = functools.partial(transitions_of, n_step=1, gamma=0.9, **OPTIONS | options)
    return ReplayShard(SPEC, (size, None), make_minibatch_builder, True)


def transitions(segment):
    return np.count_nonzero(segment["successor_after"])


def test_it_stores_links_and_counts():
    one = shard()
    first = worker(0)
    second = worker(1)
    assert one.sample(0, 2) is None
    for request in (RolloutRequest(3, 0, 1, 0), RolloutRequest(2, 0, 1, 0), RolloutRequest(6, 0, 1, 0)):
        one.store(0, *first.rollout(None, 0, request))
        rows = one.store(1, *second.rollout(None, 0, request))
    assert transitions(one.segment()) == 22 and rows == one.size() == 22 + 6


def test_a_gap_between_chunks_is_not_bridged():
    one = shard()
    first = worker()
    chunks = [first.rollout(None, 0, RolloutRequest(3, 0, 1, 0)) for _ in range(3)]
    one.store(0, *chunks[0])
    one.store(0, *chunks[2])  # begins within an episode, and the observation before it is missing
    buffer = ReplayBuffer(SPEC, 100)
    buffer.append(one.segment())
    stored = buffer.transitions()
    assert len(buffer) == 5
    np.testing.assert_array_equal(stored["next_observations"][:, 1], stored["observations"][:, 1] + 1)


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_it_samples_minibatches_and_updates_priorities(replay):
    one = shard(replay=replay)
    first = worker()
    layout = TransitionLayout.of(SPEC)
    one.store(0, *first.rollout(None, 0, RolloutRequest(20, 0, 1, 0)))
    sampled = one.sample(5, 4)
    (packed,) = sampled.packed
    assert packed.shape == (4, 6, layout.width)
    np.testing.assert_array_equal(packed[..., layout.reward], packed[..., layout.next_observation.start + 1])
    errors = np.where(packed[..., layout.reward] == 2, 1e6, 0.0)
    one.update_priorities(sampled.row_numbers, errors)
    again = one.sample(9, 50).packed[0][..., layout.reward]
    assert (again == 2).mean() > 0.9 if replay == "prioritized" else (again == 2).mean() < 0.4
    assert sampled.observation_statistics["moments_count"] == 25


def test_errors_of_overwritten_rows_are_ignored():
    one = shard(size=20, replay="prioritized")
    first = worker()
    one.store(0, *first.rollout(None, 0, RolloutRequest(12, 0, 1, 0)))
    sampled = one.sample(0, 1)
    one.store(0, *first.rollout(None, 0, RolloutRequest(16, 0, 1, 0)))
    before = one.minibatch_builder.sampler.state()["largest_priority"]
    one.update_priorities(sampled.row_numbers, np.full((1, 6), 1e6))
    assert one.minibatch_builder.sampler.state()["largest_priority"] == before


def test_sequences_are_drawn_from_shards_and_errors_of_their_steps_come_back():
    recurrent_spec = RecurrentSpec(SPEC, True, False, (("h", 2),), False)
    how = {"recurrent_spec": recurrent_spec, "burn_in": 2, "length": 3, "n_step": 1, "gamma": 0.9}
    make_minibatch_builder = functools.partial(
        sequence_minibatches, **how, **OPTIONS | {"replay": "prioritized", "alpha": 1.0}
    )
    one = ReplayShard(SPEC, (20, None, SPEC.act_dim, False, True), make_minibatch_builder, False)
    first = worker()
    one.store(0, *first.rollout(None, 0, RolloutRequest(12, 0, 1, 0)))
    sampled = one.sample(0, 4)
    (packed,) = sampled.packed
    layout = SequenceLayout.of(SPEC, recurrent_spec.previous_width)
    assert packed.shape == (4, 6, 6, layout.width)
    weights = packed[..., 2:5, layout.weight]
    one.store(0, *first.rollout(None, 0, RolloutRequest(8, 0, 1, 0)))  # overwrites some of the rows
    one.update_priorities(sampled.row_numbers, np.where(weights > 0, 5.0, np.nan).reshape(4, 18))
    sampler = one.minibatch_builder.sampler
    state = sampler.state()
    assert state["largest_priority"] == pytest.approx(5.0) and np.isfinite(state["priorities"]).all()
    positive = np.unique(state["priorities"][state["priorities"] > 0])
    np.testing.assert_allclose(positive, [1.0, 5.0], rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 3, 40])
def test_a_replay_is_split_and_put_together_again(parts, rng):
    buffer = ReplayBuffer(SPEC, 50, has_predecessors=True)
    workers = [worker(env_index) for env_index in range(2)]
    for _ in range(6):
        for env_index in range(2):
            buffer.extend(env_index, workers[env_index].rollout(None, 0, RolloutRequest(5, 0, 1, 0)).rows)
    whole = ReplayBuffer(SPEC, 50, has_predecessors=True)
    for part in split_buffer(buffer, parts):
        whole.append(part)
    assert np.count_nonzero(previous_rows(whole, np.arange(whole.size)) != NONE) == len(whole)
    assert whole.added == buffer.size
    kept, before = (set(pairs(one)) for one in (whole, buffer))
    assert kept <= before and len(before) - len(kept) <= 2 * (parts - 1)


def pairs(buffer):
    stored = buffer.transitions()
    parts = stored["observations"], stored["actions"], stored["rewards"][:, None], stored["next_observations"]
    yield from map(tuple, np.concatenate(parts, axis=1).tolist())


def test_images_are_split_too():
    spec = Spec(spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(-1, 1, (1,)))
    buffer = ReplayBuffer(spec, 10)
    buffer.begin(np.array([0]), (np.full((1, 4), 7, np.uint8),))
    (part,) = split_buffer(buffer, 1)
    assert part["images"].tolist() == [[7] * 4]


def test_merged_moments_are_those_of_everything(rng):
    parts = [rng.normal(size=(n, 2)).astype(np.float32) * 3 + n for n in (5, 1, 40)]
    merged = RunningStatistics(SPEC)
    whole = RunningStatistics(SPEC)
    for part in parts:
        one = RunningStatistics(SPEC)
        one.update((part,))
        merged.merge(one.state())
    merged.merge(RunningStatistics(SPEC).state())
    whole.update((np.concatenate(parts),))
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-6)
    np.testing.assert_allclose(merged.variance, whole.variance, rtol=1e-6)
    assert merged.count == 46
