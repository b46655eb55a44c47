"""Sequences that the caller passes are packed like sampled ones."""

import numpy as np
import pytest
from gymnasium import spaces

from tests.replay.test_sequences import buffer_of
from tfdpg import Spec
from tfdpg.acting import RecurrentSpec
from tfdpg.replay import SequenceLayout
from tfdpg.replay.segments import as_one_segment
from tfdpg.replay.sequences import gather_sequences
from tfdpg.training.learning.batches import pack_sequences

IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
REAL = spaces.Box(-9, 9, (2,))
ACTION = spaces.Box(-1, 3, (2,))
SPECS = {
    "real": Spec(REAL, ACTION),
    "image": Spec(IMAGE, ACTION),
    "both": Spec(spaces.Dict(camera=IMAGE, position=REAL), ACTION),
}
BURN_IN, LENGTH = 2, 3
STEPS = BURN_IN + LENGTH


def recurrent_spec_of(spec, stored=True):
    return RecurrentSpec(spec, True, True, (("h", 2), ("c", 2)), stored)


def episodes(spec, rng):
    """A ring with one that is cut, one that ends and one that is long; where each begins, and its length."""
    buffer = buffer_of(50, spec, states=4)
    env_index = np.array([0])
    starts = []

    def sample():
        parts = zip(spec.groups, spec.widths, strict=True)
        return tuple(rng.integers(0, 9, (1, width)).astype(group) for group, width in parts)

    for length in (3, 4, 8):
        starts.append((buffer.added, length))
        buffer.begin(env_index, sample())
        for t in range(length):
            ends = np.array([length == 4 and t == 3])
            buffer.add(env_index, rng.uniform(-3, 5, (1, 6)), rng.normal(size=1), ends, sample())
        buffer.end(env_index)
    return buffer, starts


def batch_of(buffer, starts):
    """The same as arrays; the last observation and step are repeated after an end."""
    spec = buffer.spec
    lengths = np.array([min(length, STEPS) for _, length in starts])[:, None]
    first = np.array([start for start, _ in starts])[:, None]
    rows = first + np.minimum(np.arange(STEPS + 1), lengths)
    steps = first + np.minimum(np.arange(STEPS), lengths - 1)
    observations = spec.unpack(buffer.observation(rows.ravel()))
    observations = {
        name: values.reshape(len(starts), STEPS + 1, *values.shape[1:]) for name, values in observations.items()
    }
    after = buffer.obs_width + spec.act_dim
    held = as_one_segment(buffer)
    return {
        "observations": observations if spec.is_dict else observations["x"],
        "actions": held["rows"][steps, buffer.obs_width : after],
        "rewards": held["rows"][steps, -1],
        "terminations": held["terminated"][steps],
        "masks": np.arange(STEPS) < lengths,
        "states": held["rows"][first[:, 0], after:-1],
        "weights": np.array([0.5, 1.0, 2.0]),
    }


def pack(spec, batch, stored=True, n_step=1):
    return pack_sequences(spec, recurrent_spec_of(spec, stored), 3, BURN_IN, LENGTH + 1 - n_step, n_step, 0.9, batch)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("stored, n_step", [(True, 1), (False, 1), (True, 3)])
def test_it_is_what_is_drawn_of_the_same_rows(kind, stored, n_step, rng):
    spec = SPECS[kind]
    buffer, starts = episodes(spec, rng)
    batch = batch_of(buffer, starts)
    how = {"burn_in": BURN_IN, "length": LENGTH + 1 - n_step, "n_step": n_step, "gamma": 0.9}
    slots = np.array([[start + BURN_IN for start, _ in starts]])
    drawn = gather_sequences(
        buffer, slots, recurrent_spec=recurrent_spec_of(spec, stored), weights=batch["weights"][None], **how
    )
    if not stored:
        del batch["states"]
    given = pack(spec, batch, stored, n_step)
    assert len(drawn) == len(given) == len(spec.groups) + ("float32" not in spec.groups) + stored
    for mine, theirs in zip(given, drawn, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture
def batch(rng):
    return batch_of(*episodes(SPECS["real"], rng))


def test_what_is_left_out_is_1_gamma_and_zeros(batch):
    spec = SPECS["real"]
    layout = SequenceLayout.of(SPECS["real"], 3)
    bare = {name: batch[name] for name in ("observations", "actions", "rewards")}
    packed, states = pack(spec, bare | {"terminations": np.zeros((3, STEPS))})
    assert (states == 0).all() and (packed[..., layout.valid] == 1).all()
    learnt = packed[0, :, BURN_IN:-1]
    rest = packed[0][:, [0, 1, -1]]
    assert (learnt[..., layout.weight] == 1).all() and (learnt[..., layout.discount] == np.float32(0.9)).all()
    assert (rest[..., layout.action.start :] == 0).all()
    np.testing.assert_array_equal(packed[0, :, 0, layout.previous], [[1, 1, 0]] * 3)
    clipped = np.clip(batch["actions"], -1, 3)
    np.testing.assert_array_equal(packed[0, :, 1:, layout.previous], np.dstack([clipped, batch["rewards"]]))
    discounts = np.linspace(0, 1, 3 * STEPS).reshape(3, STEPS)
    (packed, _) = pack(spec, bare | {"terminations": np.zeros((3, STEPS)), "discounts": discounts})
    np.testing.assert_allclose(packed[0, :, BURN_IN:-1, layout.discount], discounts[:, BURN_IN:])
    (packed, _) = pack(spec, bare | {"terminations": np.zeros((3, STEPS)), "discounts": discounts}, n_step=2)
    first = discounts[:, BURN_IN:-1]
    then = discounts[:, BURN_IN + 1 :]
    np.testing.assert_allclose(packed[0, :, BURN_IN:-2, layout.discount], first * then)
    returns = bare["rewards"][:, BURN_IN:-1] + first * bare["rewards"][:, BURN_IN + 1 :]
    np.testing.assert_allclose(packed[0, :, BURN_IN:-2, layout.reward], returns, rtol=1e-6)


def test_a_sequence_may_begin_late(batch):
    spec = SPECS["real"]
    layout = SequenceLayout.of(SPECS["real"], 3)
    batch |= {"terminations": [[1, 0, 0, 0, 0], [0] * 5, [0] * 5]}  # of the episode before
    batch |= {"masks": [[0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]}
    packed, _ = pack(spec, batch)
    valid = [[0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0], [0] * 6]
    assert packed[0, ..., layout.valid].tolist() == valid
    assert (packed[0, ..., layout.weight] > 0).tolist() == [[0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0] * 6]
    np.testing.assert_array_equal(packed[0, [0, 1], [1, 2], layout.previous], [[1, 1, 0]] * 2)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rewards": np.zeros((3, 4))}, r"'rewards'\]` .*\(3, 5\). .* \(3, 4\)"),
        ({"observations": np.zeros((3, 5, 2))}, r"'observations'\]` .*shape \(3, 6, 2\)"),
        ({"actions": np.full((3, 5, 2), np.nan)}, r"`batch\['actions'\]` must be finite"),
        ({"weights": np.ones((3, 5))}, r"'weights'\]` .*\(3,\). .* \(3, 5\)"),
        ({"states": np.ones((3, 3))}, r"'states'\]` .*\(3, 4\). .* \(3, 3\)"),
        ({"masks": [[1, 0, 1, 1, 1]] * 3}, r"'masks'\]` .*only before the first step"),
        ({"masks": np.full((3, 5), 0.5)}, r"'masks'\]` must be 0 or 1. Received: 0.5"),
        ({"masks": np.ones((3, 5))}, r"'masks'\]` .*after a step that ended"),
        (
            {"masks": np.eye(5)[[0, 1, 1]]},
            r"'masks'\]` .*learn from, after the 2",
        ),
        ({"truncations": np.eye(5)[[2, 2, 2]]}, r"'masks'\]` .*after a step that ended"),
        ({"next_observations": np.zeros((3, 5, 2))}, r"unknown arrays: \['next_observations'\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(batch, changes, message):
    with pytest.raises(ValueError, match=message):
        pack(SPECS["real"], batch | changes)
    with pytest.raises(ValueError, match="`batch` must have 'terminations'"):
        pack(SPECS["real"], {name: values for name, values in batch.items() if name != "terminations"})
    with pytest.raises(ValueError, match=r"unknown arrays: \['states'\]"):
        pack(SPECS["real"], batch, stored=False)
