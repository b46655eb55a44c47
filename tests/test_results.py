"""The page of results is what the files give, and each file is repeated from its name."""

import importlib.metadata
import re
import shlex

import numpy as np
import pytest

from examples.results import run, table
from tests.docs.substitutions import FLAGS
from tfdpg.cli.curves import COMMAND, command
from tfdpg.cli.training import parse_training_flags

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
        (line[0].strip("*"), steps): re.search(r"\d\.\d\d", line[-1])[0]
        for steps in table.STEPS
        for line in rows(page.split(f"### After {steps:,} steps")[1].split("##")[0], "mean score |")
        if re.search(r"\d\.\d\d", line[-1])
    }
    flash = next(name for name, _ in shown if name.startswith("FlashSAC"))
    first, later, last = table.STEPS
    order = [(kind, steps) for kind in ("td7-embeddings", "recipe", "td3") for steps in (first, later)]
    order += [("td3", last), (flash, first), (flash, later)]
    assert re.findall(r"\d\.\d\d", page.split("\n\n")[1]) == [shown[each] for each in order]
    published = {other.name for other in table.published()}
    for steps in (first, later):
        best = max((name for name, at in shown if at == steps), key=lambda name: float(shown[name, steps]))
        assert best == flash and best.split(" (")[0] in published


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
            (config,) = parse_training_flags(agent, words)[1]
            assert (config.env, config.seed) == (env, int(seed))


def rows(text, title):
    lines = text.split(title)[1].strip().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def test_scores_are_means_of_the_last_tenth_and_over_seeds(empty_directory):
    write(empty_directory, "td3", "Hopper-v5", 0, [*[100] * 8, 200, 300, 900], steps=10_000)
    write(empty_directory, "td3", "Hopper-v5", 1, [*[100] * 8, 200, 500, 500], steps=10_000)
    text = table.written(table.load(empty_directory), [])
    own, published = [line for line in rows(text, "## td3") if line[0] == "Hopper-v5"][:2]
    assert own[:6] == ["Hopper-v5", "2", "110,000", "400 ± 141", "–", "–"]
    assert own[6:] == ["**550 ± 71**", "700"]  # ends: of 900 and 300, of 500 and 500
    assert published == ["Hopper-v5", "3,564", "3,135", "3,472", "3,691"]
    write(empty_directory, "td3", "Hopper-v5", 2, [1000.0], steps=50_000)
    assert rows(table.written(table.load(empty_directory), []), "## td3")[2][3] == "400 ± 141 (2)"


def test_an_aggregate_says_which_tasks_it_is_of(empty_directory):
    for env, (random, td3) in table.RANDOM_AND_TD3.items():
        for seed in (0, 1):
            write(empty_directory, "recipe", f"{env}-v5", seed, [(random + td3) / 2 + seed, td3, td3, td3])
    middle = np.mean([0.5 + 0.5 / (td3 - random) for random, td3 in table.RANDOM_AND_TD3.values()])
    text = table.written(table.load(empty_directory), [])
    assert rows(text, "### After 100,000 steps")[2][0::6] == ["**recipe**", f"**{middle:.2f}**"]
    assert rows(text, "### After 300,000 steps")[2][0::6] == ["**recipe**", "**1.00**"]
    (sac,) = [line for line in rows(text, "### After 100,000 steps") if line[0] == "SAC" and line[1] == "6,156"]
    assert sac == ["SAC", "6,156", "1,103", "690", "747", "632", "0.28"]
    for seed in (0, 1):
        (empty_directory / f"recipe-Ant-v5-{seed}.csv").unlink()
    first = rows(table.written(table.load(empty_directory), []), "### After 100,000 steps")[2]
    assert first[4] == "–" and first[6] == "**0.50 (4 of 5: HalfCheetah, Hopper, Walker2d, Humanoid)**"


def test_ablations_say_how_long_they_took_if_their_files_do(empty_directory):
    env = "dm_control/cheetah-run-v0"
    changed = empty_directory / "ablation"
    write(changed, "delay-1", env, 0, [200, 300], seconds=4000)
    write(changed, "delay-2", env, 0, [200, 400], seconds=1999)  # fewer than 200,000 steps at 100 a second take
    ((_, *found),) = [rows(table.written([], table.load(changed)), "## Ablations")[1:]]
    assert found == [
        [env, "delay-1", "1", "200,000", "200", "**300**", "20.0"],
        [env, "delay-2", "1", "200,000", "200", "**400**", "–"],
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
    assert lines[2] == ["at", "the", "end", "7.0", "9.0", "-2.0"]
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


@pytest.mark.slow
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
