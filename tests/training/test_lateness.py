"""The file with the histograms of a real-time run, and the picture of it."""

import matplotlib.figure
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL, brief
from tests.commands import QUIET, TINY
from tests.environments import Counter
from tests.training.test_realtime import RUN, Plant
from tfdpg import cli
from tfdpg.training.lateness import EDGES_MS, Lateness, read_histograms, write_histograms

pytestmark = brief
LATENESS = "lateness.csv"


def plot(*arguments):
    return cli.main(["plot", *map(str, arguments), "--lateness"])


def test_steps_are_counted_in_the_bins_of_their_overhead_and_delay(tmp_path):
    lateness = Lateness()
    for called, returned in [(0, 10), (10.5, 20), (20.5, 30), (30.5, 43), (43.5, 53)]:
        lateness.add(called / 1000, returned / 1000)
    lateness.pause()
    lateness.add(9, 9.01)
    assert lateness.end_epoch()[:2] == pytest.approx((0.5, 0.5))
    write_histograms(tmp_path / LATENESS, lateness.overheads, lateness.delays)
    overheads, delays = read_histograms(tmp_path / LATENESS)
    assert np.array_equal(overheads, lateness.overheads) and np.array_equal(delays, lateness.delays)
    (half,) = np.flatnonzero(overheads)
    assert EDGES_MS[half] <= 0.5 <= EDGES_MS[half + 1] and overheads[half] == 4
    assert delays[0] == 3 and EDGES_MS[np.flatnonzero(delays)[1]] <= 3 <= EDGES_MS[np.flatnonzero(delays)[1] + 1]


@pytest.mark.slow
def test_a_callback_writes_the_file_and_adds_to_one(tmp_path):
    file = tmp_path / "new" / LATENESS
    for append, steps in ((False, 117), (True, 117 + 58), (False, 58)):
        agent = tfdpg.TD3(Plant(length=10_000), **SMALL)
        epochs = 2 if steps == 117 else 1
        logger = tfdpg.callbacks.LatenessLogger(file, append=append)
        agent.fit(Plant(length=10_000), **RUN | {"epochs": epochs}, callbacks=[logger])
        overheads, delays = read_histograms(file)
        assert steps <= overheads.sum() == delays.sum() <= steps + 3
    before = file.read_bytes()
    with pytest.raises(ValueError, match="`LatenessLogger` does nothing where `realtime` is False"):
        agent.fit(Counter(), **RUN | {"realtime": False}, callbacks=[tfdpg.callbacks.LatenessLogger(file)])
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [lambda text: text.replace("delays", "delay"), lambda text: text.replace("0.01,", "0.02,"), lambda text: text[:99]],
)
def test_a_damaged_file_is_named_before_the_first_step(tmp_path, change):
    file = tmp_path / LATENESS
    write_histograms(file, *np.ones((2, len(EDGES_MS) - 1), int))
    file.write_text(change(file.read_text()))
    plant = Plant()
    with pytest.raises(ValueError, match="lateness.csv is damaged"):
        logger = tfdpg.callbacks.LatenessLogger(file, append=True)
        tfdpg.TD3(Plant(), **SMALL).fit(plant, **RUN, callbacks=[logger])
    assert not plant.actions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The environment is a real machine")
def test_tfdpg_train_writes_the_file_and_continues_it_and_plot_draws_it(tmp_path, capsys, monkeypatch):
    words = [*TINY, *QUIET, "--steps-per-epoch", "25", "--epochs", "2", "--verbose", "0"]
    env = ["--env", "tests.environments:tfdpg-test/Machine-v0"]
    assert cli.main(["train", "ddpg", *env, *words, "--realtime", "--run-dir", str(tmp_path / "real")]) == 0
    run = tmp_path / "real/seed-0"
    before = read_histograms(run / LATENESS)[0].sum()
    assert before >= 40  # there are pauses at resets
    assert cli.main(["train", "--resume", str(run), "--epochs", "3"]) == 0
    assert read_histograms(run / LATENESS)[0].sum() >= before + 20
    assert cli.main(["train", "ddpg", *env, *words, "--run-dir", str(tmp_path / "usual")]) == 0
    assert not (tmp_path / "usual/seed-0" / LATENESS).exists()
    capsys.readouterr()

    drawn = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda *args, **kw: drawn.append(args[0]) or save(*args, **kw)
    )
    write_histograms(tmp_path / "other.csv", *np.ones((2, len(EDGES_MS) - 1), int))
    out = tmp_path / "pictures/late.png"
    assert plot(tmp_path, tmp_path / "other.csv", "--out", out, "--title", "Late") == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    assert [axes.get_xlabel() for axes in figure.axes] == ["overhead between steps (ms)", "delay of steps (ms)"]
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    (_, other) = [text.get_text() for text in figure.legends[0].get_texts()]
    assert other == "other"
    shares = figure.axes[0].patches[0].get_data().values
    assert shares.sum() == pytest.approx(1) and figure.axes[0].patches[1].get_data().values[0] == pytest.approx(1 / 121)
    assert plot(run, tmp_path / "other.csv", "--out", out, "--label", "arm") == 1
    assert "`--label` must give a label for each of 2 histograms" in capsys.readouterr().err


def test_what_has_no_histograms_is_no_real_time_run(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    reason = f"it has no {LATENESS}, so it was no real-time run (`--realtime`) or has no epoch yet"
    for path, expected in ((run, reason), (tmp_path / "nowhere", "there is no such directory")):
        assert plot(path) == 1
        assert capsys.readouterr().err == f"tfdpg: No real-time run in {path}: {expected}\n"
    (tmp_path / "elsewhere").touch()
    (run / LATENESS).symlink_to(tmp_path / "elsewhere")
    assert plot(run) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    write_histograms(tmp_path / "other.csv", *np.ones((2, len(EDGES_MS) - 1), int))
    for flag in ("--separate", "--aggregate"):
        assert plot(tmp_path / "other.csv", flag) == 1
        assert f"`{flag}` does nothing where `--lateness`" in capsys.readouterr().err
