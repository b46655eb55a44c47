"""Figures of the learning curves of runs."""

import itertools
import json

import matplotlib.figure
import numpy as np
import pytest

from tfdpg import cli
from tfdpg.cli import curves, plotting
from tfdpg.cli.curves import LearningCurve


def write_run(directory, seed=0, returns=(0.0, 1.0, 2.0), steps=100_000, **config):
    """Write the files of a run directory that `tfdpg plot` reads."""
    config = {"agent": "td3", "seed": seed, "env": "Hopper-v5", "options": {}} | config
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(config))
    rows = [f"{i},{(i + 1) * steps},{value},{-value}\n" for i, value in enumerate(returns)]
    (directory / "progress.csv").write_text("".join(["epoch,env_steps,val_return,loss_q\n", *rows]))
    return directory


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures that `tfdpg plot` saves."""
    drawn = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure, *args, **kwargs):
        drawn.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return drawn


def plot(*arguments):
    return cli.main(["plot", *map(str, arguments)])


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_axes_legend_and_title_say_what_is_shown(tmp_path, figures):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"slow/seed-{seed}", seed, (0.0, 500.0 + seed, 1500.0), 400_000, options={"pi_lr": 3e-4})
    write_run(tmp_path / "usual/seed-0", verbose=2)
    out = tmp_path / "pictures/curves.png"
    assert plot(tmp_path, "--out", out, "--title", "Hopping") == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps (thousands)", "evaluation return")
    assert axes.get_title(loc="left") == "Hopping"
    assert legend(figure) == ["pi_lr=0.0003 (3 seeds)", "pi_lr=0.001 (1 seed)"]
    note = figure.legends[0].get_title().get_text()
    what = "mean and 95 % confidence interval over seeds (Student's t); below three seeds single curves"
    assert note.replace("\n", " ") == f"TD3, Hopper-v5: {what}"
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert {"200", "1,000"} <= set(ticks)
    assert "1,400" in [label.get_text() for label in axes.get_yticklabels()]
    assert len(axes.collections) == 1 and len(axes.lines) == 2
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0, 501, 1500])


def test_fewer_than_three_seeds_are_single_curves(tmp_path, figures):
    for seed in (0, 1):
        write_run(tmp_path / f"seed-{seed}", seed, (seed, seed))
    assert plot(tmp_path, "--out", tmp_path / "curves.svg") == 0
    (axes,) = figures[0].axes
    assert len(axes.lines) == 2 and not axes.collections and axes.lines[0].get_color() == axes.lines[1].get_color()
    assert legend(figures[0]) == ["TD3, Hopper-v5 (2 seeds)"] and not figures[0].legends[0].get_title().get_text()


def test_configurations_are_told_apart_by_what_differs_and_not_by_where_they_are(tmp_path):
    runs = [
        write_run(tmp_path / "a/seed-0", options={"gamma": 0.99, "verbose": 0}, write_interval=100, num_envs=1),
        write_run(tmp_path / "b/c/other", 1, options={"hidden_units": [256, 256], "forgotten_option": None}),
        write_run(tmp_path / "a/seed-2", 2, env="Walker2d-v5"),
        write_run(tmp_path / "d/seed-0", 3, options={"hidden_units": [64], "gamma": 0.9}),
        write_run(tmp_path / "e/seed-0", env_kwargs={"length": 5}),
        write_run(tmp_path / "f/seed-0", agent="d4pg", options={"gamma": 0.5}),
        write_run(tmp_path / "g/seed-0", agent="sarsa"),
        write_run(tmp_path / "h/seed-0", distributed={"actors": 4}),
        write_run(tmp_path / "i/seed-0", 7, options={"gamma": 0.99, "epochs": 3, "validation_episodes": 2}),
    ]
    labels = curves.label_runs([curves.read(run, "env_steps", "val_return", 1) for run in runs], separate=False)
    base = "gamma=0.99, hidden_units=(256, 256)"
    alone = f"actors=None, {base}"
    assert [(label, [run.path.parent.name for run in group]) for label, group in labels.items()] == [
        (f"TD3, Hopper-v5, {alone}", ["a", "i"]),
        (f"TD3, Hopper-v5, actors=None, forgotten_option=None, {base}", ["c"]),
        (f"TD3, Walker2d-v5, {alone}", ["a"]),
        ("TD3, Hopper-v5, actors=None, gamma=0.9, hidden_units=(64,)", ["d"]),
        (f"TD3, Hopper-v5, actors=None, length=5, {base}", ["e"]),
        ("D4PG, Hopper-v5", ["f"]),
        ("SARSA, Hopper-v5", ["g"]),
        (f"TD3, Hopper-v5, actors=4, {base}", ["h"]),
    ]


def test_each_run_by_itself_has_its_seed_or_its_path_for_a_label(tmp_path):
    runs = [write_run(tmp_path / "a", 0), write_run(tmp_path / "b", 1), write_run(tmp_path / "c", 1)]
    read = [curves.read(run, "env_steps", "val_return", 1) for run in runs]
    labels = list(curves.label_runs(read, separate=True))
    assert labels == ["seed=0", f"seed=1 ({tmp_path}/b)", f"seed=1 ({tmp_path}/c)"]


def test_labels_of_one_s_own_columns_and_smoothing(tmp_path, figures, capsys):
    run = write_run(tmp_path / "a", returns=(2.0, 4.0, 9.0))
    (run / "labels.json").write_text('{"loss_q": "loss in $", "q1": "value"}')
    write_run(tmp_path / "b", returns=(1.0, 1.0, 1.0), env="Walker2d-v5")
    options = ["--y", "loss_q", "--x", "epoch", "--smooth", "2", "--label", "hopping", "walking", "--separate"]
    assert plot(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "curves.pdf", *options) == 0
    (axes,) = figures[0].axes
    assert legend(figures[0]) == ["hopping", "walking"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "loss in $")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [-2, -3, -6.5])
    assert plot(tmp_path / "b", "--out", tmp_path / "b.pdf", *options[:2]) == 0  # an earlier version wrote no labels
    assert figures[1].axes[0].get_ylabel() == "loss q"
    (run / "labels.json").write_text("[1]")
    assert plot(tmp_path / "a", "--out", tmp_path / "a.pdf") == 1
    assert f"{run}/labels.json is damaged" in capsys.readouterr().err
    (run / "labels.json").unlink()
    assert plot(tmp_path, "--out", tmp_path / "x.png", "--label", "one") == 1
    error = capsys.readouterr().err
    assert "each of 2 curves: Hopper-v5; Walker2d-v5. Received: 1 labels" in error


def test_more_curves_than_colours_are_told_apart():
    run = LearningCurve(None, {"seed": 0}, np.arange(2.0), np.arange(2.0))
    lines = plotting.draw({str(number): [run] for number in range(30)}, "x", "y").axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 30


def test_nothing_of_long_labels_is_cut(tmp_path):
    run = LearningCurve(None, {"seed": 0}, np.arange(2.0), np.arange(2.0))
    figure = plotting.draw(
        {f"{number}, " + "name=value, " * 30 + "of_letters" * 20: [run] for number in range(6)}, "x", "y"
    )
    figure.savefig(tmp_path / "curves.png")
    box = figure.legends[0].get_window_extent()
    size = figure.bbox
    assert size.x0 <= box.x0 and box.x1 <= size.x1 and size.y0 <= box.y0 and box.y1 <= size.y1
    assert figure.axes[0].get_window_extent().height > 200


def test_seeds_at_other_steps_and_of_other_lengths_are_averaged_where_all_of_them_are():
    def run(x, y):
        return LearningCurve(None, {}, np.array(x, float), np.array(y, float))

    x, values = curves.interpolate([run([0, 10, 20], [0, 10, 20]), run([5, 15], [1, 3]), run([0, 15, 30], [6, 6, 6])])
    assert x.tolist() == [5, 10, 15]
    np.testing.assert_allclose(values, [[5, 10, 15], [1, 2, 3], [6, 6, 6]])
    with pytest.raises(ValueError, match="no part of the x axis in common"):
        curves.interpolate([run([0, 1], [0, 0]), run([2, 3], [0, 0])])


def test_results_are_plotted_like_the_run_that_they_come_from(tmp_path, figures):
    run = write_run(tmp_path / "runs/seed-0", 0, options={"gamma": 0.9}, env="dm_control/cheetah-run-v0")
    file = tmp_path / "results/td3-dm_control-cheetah-run-v0-1.csv"
    file.parent.mkdir()
    command = "tfdpg train td3 --env dm_control/cheetah-run-v0 --gamma 0.9 --epochs 3 --seeds 1"
    file.write_text(f"# {command}\n# commit 1a2b; 9 s\n{(run / 'progress.csv').read_text()}")
    (tmp_path / "results/other.csv").write_text("# python other.py\nenv_steps,val_return\n1,2\n")
    assert plot(run, file.parent, "--out", tmp_path / "curves.png") == 0
    assert legend(figures[0]) == ["TD3, dm_control/cheetah-run-v0 (2 seeds)"]
    lines = figures[0].axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[0, 1, 2], [0, 1, 2]]
    for path in (file, tmp_path):  # a directory with runs is of these: a file beside them may be of one of them
        assert plot(path, "--out", tmp_path / "curves.png") == 0 and len(figures[-1].axes[0].lines) == 1


def aggregated(directory, seeds, **envs):
    """Write runs in several environments. The returns depend on the seed and the environment."""
    for (env, value), seed in itertools.product(envs.items(), range(seeds)):
        write_run(directory / f"{env}-{seed}", seed, (value + seed, value + 2 * seed), env=f"{env}-v5")


def test_environments_are_pooled_on_one_scale(tmp_path, figures):
    aggregated(tmp_path, 4, Hopper=18.0, Walker2d=3.0)
    assert plot(tmp_path, "--aggregate", "--out", tmp_path / "curves.png") == 0
    (axes,) = figures[0].axes
    scores = sorted([seed / (3226 - 18) for seed in range(4)] + [seed / (3946 - 3) for seed in range(4)])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [np.mean(scores[2:6]), 2 * np.mean(scores[2:6])])
    assert axes.get_ylabel() == "evaluation return\n(0: random, 1: TD3 at 1M steps)" and len(axes.collections) == 1
    assert legend(figures[0]) == ["TD3 (2 environments, 4 seeds each)"]
    note = figures[0].legends[0].get_title().get_text().replace("\n", " ")
    interval = "95 % bootstrap interval over the seeds of each, widened for few seeds"
    assert note == f"interquartile mean over Hopper-v5, Walker2d-v5 and {interval}"


def test_scales_of_one_s_own_and_that_of_dm_control(tmp_path, figures):
    aggregated(tmp_path / "a", 1, Hopper=18.0, Pendulum=-1200.0)
    ranges = ["--normalize", "Hopper-v5=8:28", "Pendulum-v5=-1600:-400"]
    assert plot(tmp_path / "a", "--aggregate", *ranges, "--out", tmp_path / "curves.png") == 0
    (axes,) = figures[0].axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [(0.5 + 1 / 3) / 2] * 2)
    assert axes.get_ylabel() == "evaluation return\n(normalised)" and not axes.collections
    for task in ("walker-walk", "cheetah-run"):
        write_run(tmp_path / "b" / task, returns=(len(task), 500.0), env=f"dm_control/{task}-v0")
    assert plot(tmp_path / "b", "--aggregate", "--out", tmp_path / "curves.png") == 0
    assert figures[1].axes[0].lines[0].get_ydata().tolist() == [11, 500]
    assert figures[1].axes[0].get_ylabel() == "evaluation return"


def test_success_rates_are_pooled_without_a_scale(tmp_path, figures):
    for task, rates in (("Reach", (0.5, 1.0)), ("Push", (0.0, 0.5))):
        run = write_run(tmp_path / task, env=f"Fetch{task}-v4")
        lines = ["env_steps,val_success_rate", *(f"{1000 * i},{rate}" for i, rate in enumerate(rates, 1))]
        (run / "progress.csv").write_text("\n".join([*lines, ""]))
    assert plot(tmp_path, "--aggregate", "--y", "val_success_rate", "--out", tmp_path / "curves.png") == 0
    assert figures[0].axes[0].lines[0].get_ydata().tolist() == [0.25, 0.75]
    assert figures[0].axes[0].get_ylabel() == "evaluation success rate"


def test_what_cannot_be_compared_is_not_pooled(tmp_path, capsys):
    aggregated(tmp_path / "a", 2, Hopper=18.0, Walker2d=3.0)

    def error(*arguments):
        assert plot(tmp_path, "--aggregate", "--out", tmp_path / "curves.png", *arguments) == 1
        return capsys.readouterr().err

    assert "give one of them" in error("--separate")
    pooled = "val_return or return or val_success_rate or success_rate"
    assert f"`--y` must be {pooled}. Received: loss_q" in error("--y", "loss_q")
    assert "`--normalize` is for returns" in error("--y", "success_rate", "--normalize", "Hopper-v5=0:1")
    for text in ("Hopper-v5", "Hopper-v5=3", "Hopper-v5=3:1", "=1:3", "Hopper-v5=0:inf"):
        assert f"must be ENV=LOW:HIGH, with LOW < HIGH. Received: {text}" in error("--normalize", text)
    assert "names Ant-v5, and the runs are of Hopper-v5, Walker2d-v5" in error("--normalize", "Ant-v5=0:1")
    write_run(tmp_path / "c", env="Pendulum-v1")
    wanted = "Returns of Hopper-v5, Pendulum-v1, Walker2d-v5 have no scale in common."
    assert (message := error()).startswith(f"tfdpg: {wanted}") and "--normalize Pendulum-v1=LOW:HIGH" in message
    unequal = error("--normalize", "Pendulum-v1=-1200:-150")
    assert "Received: TD3: 2 of Hopper-v5, 1 of Pendulum-v1, 2 of Walker2d-v5" in unequal
    write_run(tmp_path / "d/0", env="Hopper-v5", options={"gamma": 0.9})
    write_run(tmp_path / "d/1", 1, env="Hopper-v5", options={"gamma": 0.9})
    missing = error("--exclude", str(tmp_path / "c"))
    assert "gamma=0.99: 2 of Hopper-v5, 2 of Walker2d-v5; gamma=0.9: 2 of Hopper-v5" in missing
    assert plot(tmp_path, "--normalize", "Hopper-v5=0:1", "--out", tmp_path / "curves.png") == 1
    assert "`--normalize` is for `--aggregate`" in capsys.readouterr().err


def test_rows_that_a_run_wrote_again_and_empty_ones_do_not_count(tmp_path):
    run = write_run(tmp_path / "a", returns=(1.0, 2.0))
    with open(run / "progress.csv", "a") as file:
        file.write("1,200000.0,5.0,0\n2,300000,nan,0\n3,400000,7,0\n4,500000,82")  # of 8260, as it is being written
    read = curves.read(run, "env_steps", "val_return", 1)
    assert (read.x.tolist(), read.y.tolist()) == ([100_000, 200_000, 400_000], [1, 5, 7])


def test_errors_say_what_was_looked_for(tmp_path, capsys):
    run = write_run(tmp_path / "runs/seed-0")

    def error(*arguments):
        assert plot(*arguments) == 1
        return capsys.readouterr().err

    assert "needs run directories" in error()
    (tmp_path / "empty").mkdir()
    nothing = f"No run to plot in {tmp_path}"
    assert f"{nothing}/empty: no directory at or below it has run.json and progress.csv" in error(
        run, tmp_path / "empty"
    )
    assert f"{nothing}/nope: there is no such directory" in error(tmp_path / "nope")
    table = tmp_path / "table.csv"
    table.write_text("# tfdpg train td3 --env Hopper-v5 --no-such-flag 3\nenv_steps,val_return\n1,2\n")
    assert f"{table} begins with a command that this tfdpg does not accept: there is no flag --no-such-flag" in error(
        table
    )
    table.write_text("# tfdpg train td3 --env 'Hopper-v5\nenv_steps,val_return\n1,2\n")
    assert f"{table} begins with a command that cannot be read: No closing quotation" in error(table)
    begun = write_run(tmp_path / "begun/seed-0", returns=())
    assert f"{begun} has no epoch yet" in error(begun)
    assert "None of the 1 runs in" in error(run, "--select", "nothing")
    assert "select=['nothing'], exclude=[]" in error(run, "--select", "nothing")
    assert "has no column 'reward'. It has: epoch, env_steps" in error(run, "--y", "reward")
    file = write_run(tmp_path / "early/seed-0", returns=(float("nan"),)) / "progress.csv"
    assert f"{file} has no line with numbers for 'env_steps' and 'val_return' yet" in error(run, file.parent)
    for text, what in (
        ("", "No columns"),
        ("a\n1\n1,2\n", "Expected 1 fields in line 5"),
        ("env_steps\nx\n", "string 'x'"),
    ):
        file.write_text(f"# of two lines\n\n{text}")
        assert f"{file} is damaged: " in (message := error(file.parent)) and what in message
    for name in ("curves.doc", "curves"):
        assert ".pdf" in (message := error(run, "--out", tmp_path / name)) and f"Received: {tmp_path}/{name}" in message
    assert "`smooth` must be a positive integer" in error(run, "--smooth", 0)
    for text in ("[]", "3", "{", "null", "{}", '{"agent": "td3"}', '{"agent": "td3", "options": 3}'):
        (run / "run.json").write_text(text)
        assert f"{run}/run.json is damaged" in error(run)


def test_a_dollar_sign_is_no_formula(tmp_path, figures):
    text = "costs $x_{ b$"
    run = write_run(tmp_path / "a/seed-0", env=f"module:{text}")
    write_run(tmp_path / "b/seed-0")
    for more in ([], ["--label", text, "other"], ["--aggregate"]):
        selected = ["--select", "b/"] if "--aggregate" in more else []
        assert plot(tmp_path, "--out", tmp_path / "x.png", "--title", text, *more, *selected) == 0
    assert figures[0].axes[0].get_title(loc="left") == text
    assert any(text in each for each in legend(figures[0])) and text in legend(figures[1])[0]
    (run / "progress.csv").write_bytes("epoch,é\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="a/seed-0/progress.csv is damaged: byte 6 is not text in UTF-8"):
        curves.find_runs([tmp_path])
