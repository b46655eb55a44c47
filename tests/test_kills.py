"""A run that is killed and resumed ends exactly as an uninterrupted one, with the same files."""

import pytest

from tests.killing import assert_equal_runs, train_killed
from tfdpg import cli

COMMON = (
    "--env tests.environments:RandomWalk --epochs 3 --steps-per-epoch 200 --max-ep-len 70 --validation-episodes 2 "
    "--verbose 0 --hidden-units 16 16 --batch-size 16 --replay-size 400"
).split()
EARLY = "--start-steps 50 --update-after 50 --update-every 10".split()
VECTOR = ["--num-envs", "3"]
RUNS = {
    "ddpg": ["ddpg", *EARLY],
    "td3": ["td3", *EARLY],
    "prioritised": ["td3", *EARLY, "--replay", "prioritized"],
    "recipe": ["td3", "--recipe", "normalized", *EARLY],
    "ou": ["ddpg", *EARLY, "--noise", "ou", "--normalize-observations", *VECTOR],
    "d4pg": ["d4pg", *EARLY, "--v-min", "-500", "--v-max", "0", *VECTOR, "--vectorization", "async"],
    "lstm": ["td3", *EARLY, *"--recurrent lstm --recurrent-units 8 --sequence-length 8 --burn-in 4".split(), *VECTOR],
    "acer": ["acer", "--replay-start", "50", *VECTOR],
    "own": ["examples.sac:SAC", *EARLY],
    "mujoco": ["td3", *EARLY, "--env", "HalfCheetah-v5"],
}
"""In each run, the replay buffer overwrites its oldest rows."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, by their kind and further flags."""
    made = {}

    def run(kind, more):
        if (kind, more) not in made:
            made[kind, more] = tmp_path_factory.mktemp("whole") / "run"
            assert cli.main(["train", *words(kind, made[kind, more], more)]) == 0
        return made[kind, more] / "seed-0"

    return run


def words(kind, parent, more):
    agent, *options = RUNS[kind]
    return [agent, *COMMON, *options, *more, "--seeds", "0", "--run-dir", str(parent)]


def check(kind, parent, whole, kills, seed, more=("--jit-compile", "False")):
    run = parent / "seed-0"
    at = train_killed(words(kind, parent, more), run, 600, kills, seed)
    print(kind, "killed at", at)
    assert_equal_runs(whole(kind, more), run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["prioritised", "d4pg", "lstm", *(pytest.param(kind, marks=pytest.mark.hours) for kind in ("ddpg", "acer", "own"))],
)
def test_a_kill_changes_nothing(tmp_path, whole, kind):
    check(kind, tmp_path, whole, kills=1, seed=len(kind))


@pytest.mark.hours
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", RUNS)
def test_a_kill_changes_nothing_wherever_it_comes(tmp_path, whole, kind, seed):
    check(kind, tmp_path, whole, kills=1, seed=100 + seed, more=())
