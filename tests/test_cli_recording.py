"""`tfdpg evaluate --record` writes steps that training reads, and `tfdpg plot --trajectories` draws them."""

import csv

import gymnasium as gym
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL, brief
from tests.commands import EAGER, train
from tests.environments import Counter
from tfdpg import cli
from tfdpg.cli.recording import StepRecorder
from tfdpg.plotting import trajectories

pytestmark = brief


class Informed(Counter):
    """Its `info` has numbers, and the action that was executed."""

    def step(self, action):
        *result, _ = super().step(action)
        info = {"executed_action": action / 2, "cost": 0.5 * self.t, "name": "x"}
        return *result, info | ({"success": True} if self.t == self.length else {})


def record(env, directory, episodes=2, steps=None):
    """Takes 0.5 in each step."""
    env = StepRecorder(env, directory)
    for _ in range(episodes):
        env.reset(seed=0)
        for step in range(100):
            _, _, terminated, truncated, _ = env.step(np.full(1, 0.5, np.float32))
            if terminated or truncated or step + 1 == steps:
                break
    env.close()
    return directory


def test_the_steps_are_written_by_episode(tmp_path):
    record(Informed(length=4), tmp_path / "steps")
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == [
        *("0000.csv", "0000.npz", "0001.csv", "0001.npz")
    ]
    arrays = dict(np.load(tmp_path / "steps/0001.npz"))
    np.testing.assert_array_equal(arrays["observations"], [[1, t] for t in range(4)])
    np.testing.assert_array_equal(arrays["next_observations"], [[1, t] for t in range(1, 5)])
    assert arrays["actions"].tolist() == [[0.25]] * 4 and arrays["rewards"].tolist() == [1, 2, 3, 4]
    assert arrays["terminations"].tolist() == [False] * 3 + [True] and not arrays["truncations"].any()
    assert arrays["infos/cost"].tolist() == [0.5, 1, 1.5, 2]
    np.testing.assert_array_equal(arrays["infos/success"], [np.nan] * 3 + [1])
    with open(tmp_path / "steps/0000.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["episode", "step", "obs_0", "obs_1", "action_0"] and len(rows) == 4
    assert (rows[3]["obs_1"], rows[3]["next_obs_1"], rows[3]["terminated"], rows[3]["info_cost"]) == (
        "3.0",
        "4.0",
        "True",
        "2.0",
    )


def test_names_are_recorded_and_drawn(tmp_path):
    env = StepRecorder(Counter(length=4), tmp_path / "steps", ["episode", "seconds"])
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.full(1, 0.5, np.float32))
    env.close()
    series = trajectories.read(tmp_path / "steps/0000.npz")
    assert list(series) == ["episode", "seconds", "a[0]", "reward"] and series["seconds"].tolist() == [0, 1, 2, 3]
    agent = tfdpg.TD3(Counter(), **SMALL)
    agent.fit_offline(tmp_path / "steps", epochs=1, steps_per_epoch=1, verbose=0)
    assert len(agent.replay) == 4


def test_an_episode_that_is_cut_is_truncated(tmp_path):
    record(Counter(length=9), tmp_path / "steps", steps=3)
    for number in (0, 1):
        arrays = dict(np.load(tmp_path / f"steps/000{number}.npz"))
        assert arrays["truncations"].tolist() == [False, False, True] and not arrays["terminations"].any()


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("name", ["", "/0000.csv"])
def test_an_agent_trains_on_recorded_steps(tmp_path, as_dict, name):
    record(Counter(as_dict=as_dict), tmp_path / "steps")
    agent = tfdpg.DDPG(Counter(as_dict=as_dict), **SMALL, run_eagerly=True)
    agent.fit_offline(f"{tmp_path}/steps{name}", epochs=1, steps_per_epoch=1, verbose=0)
    stored = agent.replay.transitions()
    assert stored["reward"].tolist() == [1, 2, 3, 4, 5] * (1 if name else 2)


def test_evaluations_are_recorded_and_drawn(tmp_path, capsys):
    assert train("--run-dir", tmp_path / "run", *EAGER) == 0
    words = ["evaluate", str(tmp_path / "run/seed-0"), "--episodes", "3", "--record", str(tmp_path / "steps")]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote 3 episodes to {tmp_path}/steps"
    agent = tfdpg.load_agent(tmp_path / "run/seed-0/checkpoints/60")
    arrays = dict(np.load(tmp_path / "steps/0002.npz"))
    np.testing.assert_allclose(arrays["actions"], agent.predict(arrays["observations"]), rtol=1e-5)
    assert cli.main(words) == 1
    assert "`record` must be a new or an empty directory" in capsys.readouterr().err
    picture = tmp_path / "steps.png"
    assert cli.main(["plot", str(tmp_path / "steps"), "--trajectories", "--out", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
    for flags, message in (
        (["--lateness"], "`--lateness` and `--trajectories` exclude each other"),
        (["--y", "cost"], "`--y` does nothing where `--trajectories` draws steps"),
    ):
        assert cli.main(["plot", str(tmp_path / "steps"), "--trajectories", *flags]) == 1
        assert message in capsys.readouterr().err
    assert cli.main(["plot", str(tmp_path / "run"), "--trajectories"]) == 1
    assert "No recorded episode in" in capsys.readouterr().err


def test_the_lines_are_the_numbers_of_the_steps(tmp_path):
    record(Informed(length=4), tmp_path / "steps")
    figure = trajectories.draw(trajectories.find([tmp_path / "steps"]))
    drawn = {axes.get_title(loc="left"): axes.lines for axes in figure.axes if axes.get_visible()}
    assert list(drawn) == ["x[0]", "x[1]", "a[0]", "reward", "info cost", "info success"]
    assert [line.get_ydata().tolist() for line in drawn["x[0]"]] == [[0] * 4, [1] * 4]
    assert drawn["info cost"][1].get_ydata().tolist() == [0.5, 1, 1.5, 2]


def test_images_are_not_in_tables_and_not_drawn(tmp_path):
    class Camera(Counter):
        observation_space = gym.spaces.Box(0, 255, (40, 40, 1), np.uint8)

        def __init__(self):
            super().__init__()
            self.observation_space = Camera.observation_space

        def _observation(self):
            return np.full((40, 40, 1), self.t, np.uint8)

    record(Camera(), tmp_path / "steps", episodes=1)
    assert np.load(tmp_path / "steps/0000.npz")["observations"].shape == (5, 40, 40, 1)
    with open(tmp_path / "steps/0000.csv", newline="") as file:
        columns = next(csv.reader(file))
    assert columns == ["episode", "step", "action_0", "reward", "terminated", "truncated"]
    assert list(trajectories.read(tmp_path / "steps/0000.npz")) == ["a[0]", "reward"]
