"""The page of results is what the files give, and each file is repeated from its name."""

import importlib.metadata
import re
import shlex

import numpy as np
import pytest

from examples.results import run, table
from tests.docs.substitutions import FLAGS
from tfdpg.agents import classes
from tfdpg.cli.training import parse_training_flags
from tfdpg.plotting.curves import COMMAND, command

FILES = [file for file in sorted(run.RESULTS.rglob("*.csv")) if command(file)]


def write(directory, kind, env, seed, returns, *, steps=100_000, seconds=10**6, flags=""):
    """A file of results with an evaluation each `steps`."""
    rows = [f"{i},{(i + 1) * steps},{value},100\n" for i, value in enumerate(returns)]
    head = f"{COMMAND}td3{flags} --env {env} --epochs {len(rows)} --seeds {seed}\n# commit 1a2b; numpy 2; {seconds} s "
    file = directory / f"{kind}-{env.replace('/', '-')}-{seed}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{head}since it was last begun, on one core\nepoch,env_steps,val_return,steps_per_second\n")
    with file.open("a") as lines:
        lines.writelines(rows)
    return file


@pytest.fixture
def empty_directory(tmp_path, monkeypatch):
    """A directory of results that stands for that of the project, with a page."""
    directory = tmp_path / "results"
    (directory / "ablation").mkdir(parents=True)
    (directory / "queue.txt").write_text("# names\n\nablation/x-Pendulum-v1-3  td3 --env Pendulum-v1 --seeds 3\n")
    monkeypatch.setattr(run, "RESULTS", directory)
    monkeypatch.setattr(table, "RESULTS", directory)
    monkeypatch.setattr(table, "PAGE", tmp_path / "results.md")
    table.PAGE.write_text(f"# Results\n{table.BEGIN}\n{table.END}\nThe end.\n")
    return directory


def test_the_page_is_what_the_files_give():
    table.main(["--check"])


def flag_values(words):
    """The flags of a command line with their values, without the environment, the seed and the length."""
    return {part for part in " ".join(words).split("--") if part.split(" ")[0] not in ("", "env", "seeds", "epochs")}


def test_the_page_begins_with_scores_of_its_tables():
    page = table.PAGE.read_text()
    shown = {
        (version, steps, line[0].strip("*")): line[-2].strip("*")[:4]
        for version in table.VERSIONS
        for steps in table.STEPS
        for line in rows(page.split(f"### {version}, after {steps:,} steps")[1].split("##")[0], "quartile mean |")[1:]
    }
    first, later, _ = table.STEPS
    peers = {name: float(value) for (version, steps, name), value in shown.items() if (version, steps) == ("v4", first)}
    own = {kind: peers.pop(kind) for kind in list(peers) if kind.startswith("td7")}
    flash = max(peers, key=peers.__getitem__)
    assert flash.split(" (")[0] in {other.name for other in table.published()}
    methods = "td7-averaged", "td7-embeddings", flash, "XQC, 2 updates per step"
    order = [("v4", first, method) for method in methods]
    order += [("v4", later, method) for method in ("td7-averaged", flash)]
    order += [("v5", steps, kind) for kind in ("td7-embeddings", "recipe") for steps in (first, later)]
    said = "\n".join(page.split("\n\n")[1:3])
    assert re.findall(r"\d\.\d\d", re.sub(r"aim was \d\.\d\d", "", said)) == [shown[each] for each in order]
    assert f"**{own['td7-averaged']:.2f}**" in said and "FlashSAC" in said and flash.startswith("FlashSAC")


def test_the_colour_of_a_kind_is_the_same_in_all_pictures_and_intervals_do_not_extend_the_axis(empty_directory):
    for seed, last in enumerate((0, 1000, 2000)):
        write(empty_directory, "td3", "Hopper-v5", seed, [100, last])
    write(empty_directory, "acer", "Ant-v5", 0, [1, 2])
    write(empty_directory, "td3", "Ant-v5", 0, [1, 2])
    write(empty_directory, "td3-100k", "Ant-v4", 0, [1, 2])
    results = table.load(empty_directory)
    drawn = {}
    for picture, (_, curves) in table.pictures(results).items():
        (axes,) = table.figure_of(curves, table.places(results)).axes
        drawn[picture.stem] = {line.get_label().split(" (")[0]: line.get_color() for line in axes.lines}
        if picture.stem == "Hopper-v5":
            bottom, top = axes.get_ylim()
            assert -0.1 * top < bottom < 0 and top > 2000  # the interval reaches to -1484
    td3 = drawn["Hopper-v5"]["td3"]
    assert td3 == drawn["Ant-v5"]["td3"] == drawn["Ant-v4"]["td3-100k"] != drawn["Ant-v5"]["acer"]


@pytest.mark.slow
def test_each_name_belongs_to_its_command():
    """Parsing takes half a second, so only commands with a flag or a value that no other command has are parsed."""
    parsed = {}
    for name, arguments in run.names().items():
        agent, *words = shlex.split(arguments)
        env = words[words.index("--env") + 1]
        seed = words[words.index("--seeds") + 1]
        assert name.endswith(f"-{env.replace('/', '-')}-{seed}")
        if not flag_values(words) <= parsed.setdefault(agent, set()):
            parsed[agent] |= flag_values(words)
            if classes.is_external(agent):
                classes.import_agent(agent)
            (config,) = parse_training_flags(classes.full_name(agent), words)[1]
            assert (config.env, config.seed) == (env, int(seed))


def rows(text, title):
    lines = text.split(title)[1].strip().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def test_scores_are_means_of_three_evaluations_and_over_seeds(empty_directory):
    write(empty_directory, "td3", "Hopper-v5", 0, [*[100] * 7, 150, 200, 550, 900], steps=10_000)
    write(empty_directory, "td3", "Hopper-v5", 1, [*[100] * 7, 200, 500, 500, 800], steps=10_000)
    text = table.written(table.load(empty_directory), [])
    own, published = [line for line in rows(text, "## td3") if line[0] == "Hopper-v5"][:2]
    assert own[:6] == ["Hopper-v5", "2", "110,000", "350 ± 71", "–", "–"]
    assert own[6:] == ["**575 ± 35**", "850"]  # ends: of 200, 550 and 900, of 500, 500 and 800
    assert published == ["Hopper-v5", "3,564", "3,135", "3,472", "3,691"]
    write(empty_directory, "td3", "Hopper-v5", 2, [1000.0], steps=50_000)
    assert rows(table.written(table.load(empty_directory), []), "## td3")[2][3] == "350 ± 71 (2)"


def test_an_aggregate_says_which_tasks_it_is_of(empty_directory):
    for env, (random, td3) in table.RANDOM_AND_TD3.items():
        for version in table.VERSIONS:
            for seed in (0, 1):
                write(
                    empty_directory,
                    f"recipe{'-100k' * (version == 'v4')}",
                    f"{env}-{version}",
                    seed,
                    [(random + td3) / 2 + seed, td3, td3, td3],
                )
    text = table.written(table.load(empty_directory), [])
    middle = np.mean([0.5 + 0.5 / (td3 - random) for random, td3 in table.RANDOM_AND_TD3.values()])
    for version in table.VERSIONS:
        first = rows(text, f"### {version}, after 100,000 steps")[2]
        assert (
            first[0] == "**recipe**" and first[6].startswith(f"**{middle:.2f} (0.50 to 0.50)") and first[7] == "**–**"
        )
        assert rows(text, f"### {version}, after 300,000 steps")[2][0] == "**recipe**"
    v4, v5 = (text.split(f"### {version}, after 100,000 steps")[1].split("###")[0] for version in table.VERSIONS)
    assert "| SAC | 6,156 | 1,103 | 690 | 747 | 632 | 0.28 (" in v4 and "SAC" not in v5
    for seed in (0, 1):
        (empty_directory / f"recipe-Ant-v5-{seed}.csv").unlink()
    first = rows(table.written(table.load(empty_directory), []), "### v5, after 100,000 steps")[2]
    assert first[4] == "–" and first[6] == "**0.50 (4 of 5: HalfCheetah, Hopper, Walker2d, Humanoid)**"


def test_intervals_and_interquartile_means_need_seeds(empty_directory):
    normalised = []
    for number, (env, (random, td3)) in enumerate(table.RANDOM_AND_TD3.items()):
        for seed in range(3):
            value = (number + 1) / 5 + (seed - 1) / 100
            normalised.append(value)
            write(empty_directory, "recipe", f"{env}-v4", seed, [random + value * (td3 - random)])
    found = rows(table.written(table.load(empty_directory), []), "### v4, after 100,000 steps")[2][6:]
    middle = np.sort(normalised)[3:-3].mean()
    low, high = map(float, re.fullmatch(r"\*\*0\.60 \((\S+) to (\S+)\)\*\*", found[0]).groups())
    assert low < 0.6 < high and high - low < 0.04
    assert found[1].startswith(f"**{middle:.2f} (")


def test_scores_are_drawn_over_steps_and_at_the_pace_of_the_fastest_run(empty_directory):
    for env, (random, td3) in table.RANDOM_AND_TD3.items():
        for seed, rate in ((0, 100), (1, 50)):
            file = write(empty_directory, "recipe", f"{env}-v4", seed, [random, td3, td3, td3])
            file.write_text(file.read_text().replace(",100\n", f",{rate}\n"))
    write(empty_directory, "td3", "Ant-v4", 0, [1, 2])  # has not all tasks
    results = table.load(empty_directory)
    ((label, (_, steps, minutes)),) = table.score_curves(results).items()
    assert label == "recipe (v4)"
    np.testing.assert_allclose(steps.y, [0, 1 / 2, 2 / 3, 1], atol=1e-12)
    np.testing.assert_allclose(minutes.x, steps.x / 100 / 60)
    drawn = table.score_pictures(results)
    assert [picture.name for picture in drawn] == ["score-steps.svg", "score-time.svg"]
    over_steps, over_time = (figure().axes[0] for _, figure in drawn.values())
    flash = {line.get_label(): line for line in over_steps.lines}["FlashSAC, published"]
    assert flash.get_xydata().tolist() == [[100, 0.886], [200, 1.245], [300, 1.473]]
    assert [line.get_label() for line in over_time.lines] == ["recipe (v4)"]


def test_ablations_say_how_long_they_took_if_their_files_do(empty_directory):
    env = "dm_control/cheetah-run-v0"
    changed = empty_directory / "ablation"
    write(changed, "delay-1", env, 0, [200, 300], seconds=4000)
    write(changed, "delay-2", env, 0, [200, 400], seconds=1999)  # fewer than 200,000 steps at 100 a second take
    ((_, *found),) = [rows(table.written([], table.load(changed)), "## Ablations")[1:]]
    assert found == [
        [env, "delay-1", "1", "200,000", "200", "**250**", "20.0"],
        [env, "delay-2", "1", "200,000", "200", "**300**", "–"],
    ]


def test_the_best_choice_has_the_smallest_mean_rank(empty_directory):
    changed = empty_directory / "ablation"
    for kind, first, second in (("a", 1, 30), ("b", 2, 20), ("c", 3, 10)):
        write(changed, f"choice-{kind}", "Hopper-v5", 0, [99, first, first, first, first])
        write(changed, f"choice-{kind}", "Pusher-v5", 0, [second, second])
    write(changed, "choice-d", "Hopper-v5", 0, [1000])
    text = table.written([], table.load(changed))
    found = rows(text, "## Choice of a recipe")[2:]
    assert [line[0] for line in found[:3]] == ["a", "b", "c"] and all(line[-1] == "**0.50**" for line in found[:3])
    write(changed, "choice-c", "Pusher-v5", 0, [99, 99])
    text = table.written([], table.load(changed))
    assert rows(text, "## Choice of a recipe")[2] == ["c", "1", "3.0", "99.0", "**0.00**"]


def test_the_check_finds_another_page_another_picture_and_another_file(empty_directory, capsys):
    file = write(empty_directory, "td3", "Hopper-v5", 0, [1, 2, 3])
    with pytest.raises(SystemExit, match="results.md, .*Hopper-v5.svg"):
        table.main(["--check"])
    table.main([])
    table.main(["--check"])
    page = table.PAGE.read_text()
    assert (
        page.startswith("# Results\n<!--") and page.endswith("\nThe end.\n") and "(../examples/results/Hopper" in page
    )
    (empty_directory / "Hopper-v5.svg").unlink()
    with pytest.raises(SystemExit, match=r"give: \S+Hopper-v5.svg\. Write"):
        table.main(["--check"])
    table.main([])
    file.write_text(file.read_text().replace("300000,3", "300000,4"))
    with pytest.raises(SystemExit, match="results.md, .*Hopper-v5.svg"):
        table.main(["--check"])
    file.rename(empty_directory / "td3-Hopper-v4-0.csv")
    with pytest.raises(ValueError, match="should be named"):
        table.main(["--check"])


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """What is trained, which only leaves evaluations behind."""
    calls = []

    def train(arguments, run_dir):
        calls.append((arguments, run_dir))
        (directory := run_dir / "seed-0").mkdir(parents=True, exist_ok=True)
        (directory / "progress.csv").write_text("epoch,env_steps,val_return,q1\n0,100000,5,1\n1,200000,7,1\n")
        return directory, 12.3

    monkeypatch.setattr(run, "train", train)
    monkeypatch.chdir(tmp_path)
    return calls


def test_a_run_is_repeated_from_its_name_and_compared(empty_directory, trained, tmp_path, capsys):
    committed = write(empty_directory, "td3", "Hopper-v5", 0, [5, 9])
    before = committed.read_text()
    run.main(["td3-Hopper-v5-0"])
    assert trained == [("td3 --env Hopper-v5 --epochs 2 --seeds 0", run.Path("runs/td3-Hopper-v5-0"))]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["at", "100,000", "steps", "5.0", "5.0", "+0.0"]
    assert lines[2] == ["at", "the", "end", "6.0", "7.0", "-1.0"]
    assert " ".join(lines[4]) == "the first 1 of 2 evaluations are the same to the last digit"
    new = tmp_path / "runs/td3-Hopper-v5-0.csv"
    head, made, *rest = new.read_text().splitlines()
    assert head == before.splitlines()[0] and rest[0] == "epoch,env_steps,val_return" and len(rest) == 3
    assert (
        made.startswith("# commit ")
        and f"; tensorflow {importlib.metadata.version('tensorflow')}" in made
        and "; 12 s since it was last begun, on " in made
    )
    assert committed.read_text() == before
    with pytest.raises(SystemExit, match="only --overwrite replaces"):
        run.main(["td3-Hopper-v5-0", "--out", str(committed)])
    run.main(["td3-Hopper-v5-0", "--overwrite"])
    assert committed.read_text() == new.read_text()


def test_what_is_queued_is_made_by_its_name(empty_directory, trained, tmp_path, capsys):
    run.main(["--list"])
    assert capsys.readouterr().out == "ablation/x-Pendulum-v1-3 (to be made): td3 --env Pendulum-v1 --seeds 3\n"
    run.main(["ablation/x-Pendulum-v1-3", "--run-dir", "there", "--overwrite"])
    assert trained == [("td3 --env Pendulum-v1 --seeds 3", run.Path("there"))]
    assert command(empty_directory / "ablation/x-Pendulum-v1-3.csv") == ["td3", "--env", "Pendulum-v1", "--seeds", "3"]
    with pytest.raises(SystemExit, match="There is no 'x'"):
        run.main(["x"])
    (empty_directory / "memory-0.csv").write_text("# python examples/recurrent.py\n")
    with pytest.raises(SystemExit, match="begins with: # python examples/recurrent"):
        run.main(["memory-0"])


@pytest.mark.hours
def test_a_training_repeats_itself(empty_directory, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    options = f"{FLAGS['td3']} {FLAGS['all']}".replace("--seeds 0", "--seeds 3")
    (empty_directory / "queue.txt").write_text(f"x-Pendulum-v1-3 td3 --env Pendulum-v1 {options}\n")
    run.main(["x-Pendulum-v1-3", "--overwrite"])
    run.main(["x-Pendulum-v1-3", "--run-dir", "again"])
    assert "the first 1 of 1 evaluations are the same" in capfd.readouterr().out
    run.main(["x-Pendulum-v1-3", "--run-dir", "again"])  # which has all of its epochs
    (empty_directory / "x-Pendulum-v1-3.csv").unlink()
    (empty_directory / "queue.txt").write_text(f"x-Pendulum-v1-3 td3 --env Pendulum-v1 {options} --gamma 0.9\n")
    with pytest.raises(SystemExit, match="again/seed-3 is of another command"):
        run.main(["x-Pendulum-v1-3", "--run-dir", "again"])
