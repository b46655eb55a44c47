"""Sequences against a slow obvious reference, saved and restored meanwhile, and the way back through a ring."""

import itertools
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.test_storage import Reference, fill, histories, play
from tfdpg import Spec
from tfdpg.acting import RecurrentSpec
from tfdpg.replay import (
    ReplayBuffer,
    SequenceLayout,
    TransitionLayout,
    segments,
    sequence_minibatches,
)
from tfdpg.replay.buffer import NONE
from tfdpg.replay.segments import as_one_segment
from tfdpg.replay.sequences import follow_links, gather_sequences, previous_rows, priority
from tfdpg.replay.transitions import gather_transitions

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 3, (1,)))
RECURRENT_SPEC = RecurrentSpec(SPEC, True, True, (("h", 2),), True)
LAYOUT = SequenceLayout.of(SPEC, RECURRENT_SPEC.previous_width)
GAMMA = 0.9
SAMPLING = {"seed": 3, "batch_size": 8, "replay": "prioritized", "alpha": 1.0, "beta": 0.4, "beta_steps": None}
SAMPLING |= {"epochs_per_round": None, "max_minibatches_per_round": None}


def buffer_of(size, spec=SPEC, states=2):
    return ReplayBuffer(spec, size, step_width=spec.act_dim + states, has_predecessors=True)


def step_of(observation):
    """An action, which may be out of the box, and the state that it was taken in."""
    return [observation % 7 - 2, observation + 0.25, -observation]


def expected_sequence(episode, t, held, burn_in, length, n, weight):
    """The rows of a sequence, each a list by columns or None, and the state in the first of them."""
    seen, rewards, numbers = (episode[name] for name in ("observations", "rewards", "numbers"))
    oldest = next(j for j, number in enumerate(numbers) if number >= held)
    rows = []
    for j in range(t - burn_in, t + length + n):
        if not max(oldest, t - burn_in) <= j < len(seen):
            rows.append(None)
            continue
        before = [min(step_of(seen[j - 1])[0], 3), rewards[j - 1]] if j > oldest else [1.0, 0.0]
        before[0] = max(before[0], -1)
        row = [seen[j], *before, 1.0]
        if t <= j < min(t + length, len(rewards)):
            m = min(n, len(rewards) - j)
            ended = episode["terminated"] and j + m == len(rewards)
            total = sum(GAMMA**k * rewards[j + k] for k in range(m))
            row += [step_of(seen[j])[0], total, 0.0 if ended else GAMMA**m, weight, j - t + burn_in + m]
        elif t <= j < t + length:
            row += [1.0, 0.0, 0.0, 0.0, j - t + burn_in]
        else:
            row += [0.0] * 5
        rows.append(row)
    return rows, step_of(seen[max(oldest, t - burn_in)])[1:]


def soiled_ring(size):
    """A ring in memory that holds NaN that signal, since what was not written to may hold anything."""
    buffer = buffer_of(size)
    buffer.allocate()
    buffer.rows.view(np.uint32)[:] = 0x7FA00001
    return buffer


def play_with_saves(steps, size, saves):
    """Store the steps of a history, and replace the buffer after some of them by one restored from its segments."""
    buffer = soiled_ring(size)
    reference = Reference(size)
    for first, stop in itertools.pairwise([0, *sorted(saves), len(steps)]):
        if first:
            saved = buffer
            buffer = soiled_ring(size)
            buffer.restore(saved.state(), segments.iter_segments(saved))
        play(buffer, reference, steps[first:stop], step_of)
    return buffer, reference


@mock.patch.object(segments, "MIN_ROWS", 4)
@mock.patch.object(segments, "MIN_BYTES", 0)
@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 4), st.integers(1, 5), st.sets(st.integers(1, 40), max_size=3))
def test_sequences_are_the_reference_s(history, burn_in, length, saves):
    _, steps, size, n = history
    buffer, reference = play_with_saves(steps, size, {save for save in saves if save < len(steps)})
    held = reference.added - buffer.size
    taken = [(e, t) for e in reference.episodes for t in range(len(e["rewards"])) if e["numbers"][t] >= held]
    slots = np.array([e["numbers"][t] % size for e, t in taken], np.int64)
    how = {"burn_in": burn_in, "length": length, "n_step": n, "gamma": GAMMA}
    weights = np.arange(len(slots), dtype=np.float32) + 0.5
    drawn, states = gather_sequences(buffer, slots[None], recurrent_spec=RECURRENT_SPEC, weights=weights[None], **how)
    assert drawn.shape == (1, len(slots), burn_in + length + n, LAYOUT.width) and drawn.dtype == np.float32
    assert states.shape == (1, len(slots), 2) and states.dtype == np.float32
    assert np.isfinite(drawn).all()
    for (episode, t), weight, rows, state in zip(taken, weights, drawn[0], states[0], strict=True):
        expected, expected_state = expected_sequence(episode, t, held, burn_in, length, n, weight)
        np.testing.assert_array_equal(state, expected_state)
        for row, wanted in zip(rows, expected, strict=True):
            if wanted is None:
                assert row[LAYOUT.valid] == row[LAYOUT.weight] == row[LAYOUT.discount] == 0
            else:
                np.testing.assert_allclose(row, wanted, rtol=1e-5)
    if len(slots):
        (transitions,) = draw_transitions_of_actions(buffer, slots, n)
        first = drawn[0, :, burn_in]
        for name in ("observation", "action", "reward", "discount"):
            np.testing.assert_array_equal(
                first[:, getattr(LAYOUT, name)], transitions[:, getattr(TransitionLayout.of(SPEC), name)], err_msg=name
            )


def draw_transitions_of_actions(buffer, slots, n):
    """The transitions of a ring that stores only actions."""
    plain = ReplayBuffer(SPEC, buffer.replay_size)
    plain.restore(buffer.state(), [as_one_segment(buffer) | {"rows": as_one_segment(buffer)["rows"][:, [0, 1, -1]]}])
    return gather_transitions(plain, slots, n, GAMMA)


def known_predecessors(buffer):
    """What `previous_rows` has to give, from the successors alone."""
    expected = np.full(buffer.size, NONE)
    for row in np.flatnonzero(buffer.successor[: buffer.size] != NONE):
        expected[buffer.successor[row]] = row
    return expected


@settings(max_examples=70, deadline=None)
@given(histories(), st.integers(6, 40))
def test_a_row_knows_the_one_before_however_it_came(history, other_size):
    _, steps, size, _ = history
    buffer = buffer_of(size)
    reference = Reference(size)
    play(buffer, reference, steps, step_of)
    restored = buffer_of(other_size)
    appended = buffer_of(other_size)
    restored.restore(buffer.state(), [as_one_segment(buffer)])
    for _ in range(3):
        appended.append(as_one_segment(buffer))
    for one in (buffer, restored, appended):
        np.testing.assert_array_equal(previous_rows(one, np.arange(one.size)), known_predecessors(one))
    newest = np.arange(appended.added - min(buffer.size, other_size), appended.added) % other_size
    np.testing.assert_array_equal(appended.predecessor[newest], known_predecessors(appended)[newest])
    first = [number for e in reference.episodes if (number := e["numbers"][0]) >= reference.added - size]
    assert (buffer.predecessor[np.array(first, int) % size] == NONE).all()
    fill(appended, 2 * other_size, length=3)
    np.testing.assert_array_equal(previous_rows(appended, np.arange(other_size)), known_predecessors(appended))
    buffer.clear()
    fill(buffer, 4, length=3)
    np.testing.assert_array_equal(previous_rows(buffer, np.arange(buffer.size)), known_predecessors(buffer))


def test_a_walk_stays_where_its_way_ends():
    ahead = np.array([2, NONE, 1, 0])
    assert follow_links(lambda rows: ahead[rows], np.array([3, 2, NONE]), 3).tolist() == [
        [3, 0, 2, 1],
        [2, 1, 1, 1],
        [NONE] * 4,
    ]


def test_a_predecessor_that_was_overwritten_is_none():
    buffer = fill(buffer_of(4, states=0), 5, length=10)  # rows 0 to 5; 4 and 5 took the places of 0 and 1
    assert buffer.predecessor.tolist() == [3, 0, 1, 2]
    assert previous_rows(buffer, np.arange(4)).tolist() == [3, 0, NONE, 2]


def test_a_way_back_takes_4_bytes_a_row():
    assert buffer_of(100, states=3).nbytes == ReplayBuffer(SPEC, 100, step_width=4).nbytes + 400
    assert buffer_of(100, states=3).state_width == 3 and ReplayBuffer(SPEC, 100, step_width=4).state_width == 0


@pytest.mark.parametrize(
    "action, reward, stored", [(True, False, True), (False, True, True), (False, False, False), (True, True, False)]
)
def test_only_the_selected_recurrent_inputs_are_packed(action, reward, stored):
    recurrent_spec = RecurrentSpec(SPEC, action, reward, (("h", 2),), stored)
    buffer = buffer_of(50, states=recurrent_spec.stored_width)
    play(buffer, Reference(50), [({0}, 0)] * 3, lambda observation: step_of(observation)[: buffer.step_width])
    how = {"burn_in": 1, "length": 1, "n_step": 1, "gamma": GAMMA}
    drawn, *states = gather_sequences(buffer, np.array([1]), recurrent_spec=recurrent_spec, **how)
    layout = SequenceLayout.of(SPEC, recurrent_spec.previous_width)
    acted = max(-1.0, step_of(buffer.rows[0, 0])[0])
    expected = [acted] * action + [buffer.rows[0, -1]] * reward
    assert drawn.shape == (1, 3, 7 + action + reward) and drawn[0, 1, layout.previous].tolist() == expected
    assert [values.shape for values in states] == [(1, 2)] * stored


def test_images_are_drawn_in_place():
    space = spaces.Dict(picture=spaces.Box(0, 255, (2, 2), np.uint8), position=spaces.Box(-1, 1, (3,)))
    for observed, count in ((space, 3), (space["picture"], 2)):
        spec = Spec(observed, spaces.Box(-1, 1, (2,)))
        buffer = fill(buffer_of(50, spec), 30, length=5)
        recurrent_spec = RecurrentSpec(spec, True, False, (("h", 2),), True)
        how = {"burn_in": 2, "length": 3, "n_step": 1, "gamma": GAMMA}
        drawn = gather_sequences(buffer, np.array([[8, 12]]), recurrent_spec=recurrent_spec, **how)
        assert len(drawn) == 3 and drawn[2].shape == (1, 2, 6, 4) and drawn[2].dtype == np.uint8
        np.testing.assert_array_equal(drawn[2][0], buffer.images[[[6, 7, 8, 9, 10, 11], [12, 12, 12, 13, 14, 15]]])
        assert drawn[0][0, :, :, SequenceLayout.of(spec, 2).valid].tolist() == [[1] * 6, [0, 0, 1, 1, 1, 1]]
        assert count == len(spec.groups) + 1


def test_the_priority_of_a_sequence_by_hand():
    errors = np.array([[1.0, -3.0, np.nan], [2.0, np.nan, np.nan], [np.nan] * 3])
    np.testing.assert_allclose(priority(errors), [0.9 * 3 + 0.1 * 2, 2.0, 0.0])


def test_sequences_are_drawn_by_their_errors():
    buffer = fill(buffer_of(100), 40, length=10)
    builder = sequence_minibatches(
        buffer, n_step=2, gamma=GAMMA, recurrent_spec=RECURRENT_SPEC, burn_in=1, length=3, **SAMPLING
    )
    (packed, states), rows = builder(0, 20)
    assert packed.shape == (20, 8, 6, LAYOUT.width) and states.shape == (20, 8, 2)
    masked = packed[..., 1:4, LAYOUT.weight] == 0
    assert masked.any() and not masked[..., 0].any()
    errors = np.where(masked, np.nan, np.where(rows[..., None] == 3, [0.0, -1e6, 0.0], 0.0))
    builder.update_priorities(rows, errors.reshape(20, 24))
    priorities = builder.sampler.state()["priorities"]
    assert np.isfinite(priorities).all()
    np.testing.assert_allclose(priorities[3], 1e6 * (0.9 + 0.1 / 3), rtol=1e-6)
    assert (builder(20, 50)[1] == 3).mean() > 0.99
