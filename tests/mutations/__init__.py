"""Mutations of the code, and the tests that must fail."""

from typing import NamedTuple

TD3 = ("agents/test_td3.py", "agents/test_td3_options.py")
DDPG = ("agents/test_ddpg.py",)
D4PG = ("agents/test_d4pg.py", "agents/test_d4pg_options.py")
ACER = ("agents/test_acer_update.py",)
SCORES = ("test_scores.py",)
RNN = ("networks/test_rnn.py",)


class Mutation(NamedTuple):
    """A text that appears once in a file of tfdpg, its replacement, and the tests that must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
