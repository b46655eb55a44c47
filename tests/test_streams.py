import itertools

import numpy as np

from tfdpg.streams import Purpose, seeds, stream
from tfdpg.training.environment.env_runner import EVALUATION, TRAINING, reset_seed


def words(sequence):
    return tuple(sequence.generate_state(4).tolist())


def test_no_two_purposes_have_a_stream_in_common():
    keys = [(), (0,), (1,), (0, 0), (1, 0), (0, 0, 0)]
    found = [words(stream(purpose, seed, *key)) for purpose in Purpose for seed in (0, 1) for key in keys]
    resets = itertools.product((0, 1), (TRAINING, EVALUATION), range(3), range(3))
    found += [words(np.random.SeedSequence(list(key))) for key in resets]
    assert len(set(found)) == len(found) == len(Purpose) * 2 * 6 + 36


def test_what_numpy_fills_up_is_why():
    assert words(np.random.SeedSequence([7, 0])) == words(np.random.SeedSequence([7, 0, 0, 0]))
    assert reset_seed(7, 0, 0, 0) == np.random.SeedSequence([7]).generate_state(1)[0]


def test_seeds_are_those_of_the_stream():
    assert seeds(Purpose.NETWORKS, 3, count=2) == stream(Purpose.NETWORKS, 3).generate_state(2).tolist()
    assert seeds(Purpose.LAYERS, 3, 1) != seeds(Purpose.LAYERS, 3, 2)
