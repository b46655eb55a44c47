"""Short training runs with the command line."""

import tests.environments  # noqa: F401 (registers an environment)
from tfdpg import cli

TINY = (
    "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5 "
    "--replay-size 500 --jit-compile False"
).split()
QUIET = ["--update-after", "1000"]
"""No updates, which would have to be traced first, for tests that do not look at what is learnt."""
SHORT = ["--epochs", "2", "--steps-per-epoch", "30", "--validation-episodes", "2", "--verbose", "0"]


def train(*arguments, env="tfdpg-test/Counter-v0"):
    return cli.main(["train", "ddpg", "--env", env, *TINY, *SHORT, *map(str, arguments)])
