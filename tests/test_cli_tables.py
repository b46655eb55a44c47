"""`tfdpg plot` takes the files of results that other programs write."""

from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest

from tests.agents.roster import brief
from tfdpg import cli
from tfdpg.cli import curves, tables

pytestmark = brief

FILES = {
    "plain/td3.csv": ("step,return\n1000,-5\n2000,3\n", [1000, 2000], [-5, 3]),
    "spinup/exp_s0/progress.txt": (
        "Epoch\tAverageEpRet\tAverageTestEpRet\tTotalEnvInteracts\n1\t9\t1\t4000\n2\t9\t2\t8000\n",
        [4000, 8000],
        [1, 2],
    ),
    "sb3/progress.csv": (
        "rollout/ep_rew_mean,time/total_timesteps,eval/mean_reward\n3,100,\n,200,7\n4,300,\n,400,8\n",
        [200, 400],
        [7, 8],
    ),
    "sb3/0.monitor.csv": ('#{"t_start": 1.5, "env_id": "X"}\nr,l,t\n-3.5,200,1.2\n-2,100,2\n', [200, 300], [-3.5, -2]),
    "garage.csv": (
        "Training/AverageReturn,Evaluation/AverageReturn,TotalEnvSteps\n1,2,3\n4,5,6\n",
        [3, 6],
        [2, 5],
    ),
    "tensorboard.csv": ("Wall time,Step,Value\n17.5,10,0.5\n18.5,20,0.75\n", [10, 20], [0.5, 0.75]),
    "results.csv": ("# of other.py\n# twice\ntimesteps,ret,score\n1,0,2\n3,0,4\n", [1, 3], [2, 4]),
    "own.csv": ("# tfdpg train never_imported:X --env Y\nenv_steps,val_return\n1,2\n3,4\n", [1, 3], [2, 4]),
}


def write(directory, name, text):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", FILES)
def test_usual_columns_are_found(tmp_path, name):
    text, steps, returns = FILES[name]
    curve = curves.read(write(tmp_path, name, text), "env_steps", "val_return", 1)
    np.testing.assert_array_equal((curve.x, curve.y), (steps, returns))


@pytest.mark.parametrize(
    "names, expected",
    [
        (["sb3/td3-0.csv", "sb3/td3-1.csv"], ["td3"]),
        (["seed-0/progress.csv", "seed-1/progress.csv"], ["sb3"]),
        (["exp_s0/progress.txt", "exp_s10/progress.txt"], ["exp"]),
        (["SAC_1/monitor.csv", "SAC_2/monitor.csv", "TD3_1/monitor.csv"], ["SAC", "TD3"]),
        (["lr-1e-3.csv", "lr-1e-4.csv"], ["lr-1e-3", "lr-1e-4"]),
        (["Hopper-v4.csv", "Hopper-v5.csv"], ["Hopper-v4", "Hopper-v5"]),
        (["a/td3.csv", "b/td3.csv"], ["td3 (sb3/a/td3.csv)", "td3 (sb3/b/td3.csv)"]),
        (["run_1.csv", "3.csv"], ["sb3"]),
    ],
)
def test_files_that_differ_in_a_seed_are_one_curve(tmp_path, monkeypatch, names, expected):
    monkeypatch.chdir(tmp_path)
    for name in names:
        write(tmp_path / "sb3", name, "steps\treward\n1\t2\n" if name.endswith("txt") else "steps,reward\n1,2\n")
    runs = [curves.read(Path("sb3") / name, "env_steps", "val_return", 1) for name in names]
    groups = curves.label_runs(runs, separate=False)
    assert list(groups) == expected and sum(map(len, groups.values())) == len(names)
    assert len(curves.label_runs(runs, separate=True)) == len(names)


def test_curves_of_other_programs_stand_beside_runs(tmp_path, monkeypatch, capsys):
    figures = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    command = "# tfdpg train td3 --env Pendulum-v1 --seeds 1"
    own = write(tmp_path, "own/td3.csv", f"{command}\nenv_steps,val_return,q1\n1000,1,3\n2000,2,3\n")
    other = write(tmp_path, "sb3/progress.csv", FILES["sb3/progress.csv"][0])
    for name in ("sb3/0.monitor.csv", "more/x-0.csv", "more/x-1.csv"):  # a directory with progress.csv is of these
        write(tmp_path, name, "r,l,t\n1,200,3\n2,200,4\n")
    paths = [str(tmp_path / name) for name in ("sb3", "own", "more")]

    def legend(*more):
        assert cli.main(["plot", *paths, "--out", str(tmp_path / "x.png"), *more]) == 0, capsys.readouterr().err
        assert figures[-1].axes[0].get_xlabel() == "environment steps (thousands)"
        return [text.get_text() for text in figures[-1].legends[0].get_texts()]

    assert legend() == ["sb3 (1 seed)", "TD3, Pendulum-v1 (1 seed)", "x (2 seeds)"]
    assert legend("--label", "SB3 TD3", "ours", "$x$") == ["SB3 TD3 (1 seed)", "ours (1 seed)", "$x$ (2 seeds)"]
    np.testing.assert_allclose(figures[-1].axes[0].lines[0].get_xdata(), [0.2, 0.4])
    assert legend("--y", "q1,rollout/ep_rew_mean,t")[1] == "TD3, Pendulum-v1 (1 seed)"
    assert figures[-1].axes[0].lines[0].get_ydata().tolist() == [3, 4]

    def error(*arguments):
        assert cli.main(["plot", *map(str, arguments)]) == 1
        return capsys.readouterr().err

    assert "`--aggregate` is for runs of tfdpg, because" in error(own, other, "--aggregate")
    other.write_text("a,reward\n1,2\n")
    wanted = f"{other} has no column with a usual name of steps. Name it with `--x`. It has: a, reward"
    assert wanted in error(own, other)
    other.write_text("step,b\n1,2\n")
    assert "no column with a usual name of returns. Name it with `--y`. It has: step, b" in error(other)
    assert f"{other} has no column 'q1'. It has: step, b" in error(other, "--y", "q1")
    (tmp_path / "text.csv").write_bytes(b"\xff\xfe")
    assert "text.csv is damaged" in error(tmp_path / "text.csv")


def test_the_usual_names_differ():
    for names in tables.USUAL.values():
        assert len(set(names)) == len(names) and all(name.isalpha() and name.islower() for name in names)
