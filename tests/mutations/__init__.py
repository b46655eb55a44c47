"""Mutations: of what files, and which tests notice them."""

from typing import NamedTuple

TD3 = ("agents/test_td3.py", "agents/test_td3_options.py")
DDPG = ("agents/test_ddpg.py",)
D4PG = ("agents/test_d4pg.py", "agents/test_d4pg_options.py")
ACER = ("agents/test_acer_update.py",)
SCORES = ("test_scores.py",)
RNN = ("networks/test_rnn.py",)


class Mutation(NamedTuple):
    """A text of a file of tfdpg that stands there once, what takes its place, and the tests that notice."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
