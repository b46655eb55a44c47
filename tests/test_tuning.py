"""`tfdpg tune` and `tfdpg.tune`: the search space, the runs of a search, and its result."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import optuna
import pytest
from optuna.trial import TrialState

import tfdpg
from tests.agents.roster import brief
from tests.commands import TINY
from tfdpg import cli
from tfdpg.agents.options import OPTIONS
from tfdpg.cli.run_options import read_config, train_command
from tfdpg.cli.training import parse_training_flags
from tfdpg.options import Choices, Search, options_of
from tfdpg.plotting.curves import find_runs
from tfdpg.tuning import report, runs
from tfdpg.tuning.command import parse_tune_flags
from tfdpg.tuning.options import TuneOptions
from tfdpg.tuning.search import best_trials
from tfdpg.tuning.space import DEFAULT, dimensions

pytestmark = brief
PENDULUM = ["--env", "Pendulum-v1"]
SEARCHED = {name: [each.name for each in options_of(kind) if each.search] for name, kind in OPTIONS.items()}


def space(agent, *flags):
    options, config = parse_tune_flags(agent.lower(), [*PENDULUM, *flags])
    return dimensions(config, options.search), config


@pytest.mark.parametrize("agent", OPTIONS)
def test_each_range_passes_the_checks_of_its_option_and_contains_its_default_or_is_extended(agent):
    declared = {option.name: option for option in options_of(OPTIONS[agent])}
    _, config = parse_tune_flags(agent.lower(), PENDULUM)
    for name in SEARCHED[agent]:
        (dimension,) = dimensions(config, [name])  # checks the ends of the range
        assert dimension.initial == declared[name].default == OPTIONS[agent](**config.agent_options).values()[name]
        if isinstance(dimension.mark, Choices):
            assert dimension.initial in dimension.mark.values and len(dimension.mark.values) > 1
        else:
            assert dimension.mark.low <= dimension.initial <= dimension.mark.high
            assert isinstance(dimension.mark.low, int) == isinstance(dimension.initial, int)
    assert len(SEARCHED[agent]) >= 12


@pytest.mark.parametrize("agent", OPTIONS)
def test_drawn_values_are_in_their_ranges_and_valid_and_the_first_trial_can_be_entered(agent):
    names = [name for name in SEARCHED[agent] if name not in ("norm", "critics")]
    found, config = space(agent, "--search", *names)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    seen = {dimension.name: set() for dimension in found}
    study.enqueue_trial({dimension.parameter: dimension.initial_parameter for dimension in found})
    for number in range(40):
        trial = study.ask()
        drawn = {dimension.name: dimension.draw(trial) for dimension in found}
        for dimension in found:
            value = drawn[dimension.name]
            seen[dimension.name].add(value)
            if isinstance(dimension.mark, Choices):
                assert value in dimension.mark.values
            else:
                assert dimension.mark.low <= value <= dimension.mark.high
            assert number or value == pytest.approx(dimension.initial)
        valid = dataclasses.replace(config, options=config.options | drawn)
        if number > 2:
            continue  # to parse takes a while
        command = shlex.split(train_command(valid))
        parsed = parse_training_flags(command[2], command[3:])[1][0]
        assert json.dumps(parsed.agent_options, sort_keys=True) == json.dumps(valid.agent_options, sort_keys=True)
    assert all(len(values) > 1 for values in seen.values())


@pytest.mark.parametrize(
    "mark, expected",
    [
        (Search(1, 5), {1, 2, 3, 4, 5}),
        (Choices(None, 1.0), {None, 1.0}),
        (Choices((64, 64), (8,)), {(64, 64), (8,)}),
    ],
)
def test_all_integers_and_all_choices_are_drawn(mark, expected):
    from tfdpg.tuning.space import Dimension

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    assert {Dimension("option", mark, None).draw(study.ask()) for _ in range(60)} == expected


def test_the_default_search_has_the_options_that_have_an_effect():
    def names(agent, *flags):
        return [dimension.name for dimension in space(agent, *flags)[0]]

    assert names("td3") == ["pi_lr", "q_lr", "gamma", "batch_size", "act_noise", "hidden_units"]
    assert names("acer") == ["lr", "gamma", "batch_size", "sigma"]  # 100 x 100 units are not among the choices
    assert "hidden_units" not in names("d4pg", "--torso", "control")
    assert "hidden_units" not in names("td3", "--networks", "mine:networks")
    assert "pi_lr" not in names("td3", "--pi-lr", "0.5")  # outside the range: the user knows something
    assert "act_noise" not in names("td3", "--act-noise", "0")  # not on a logarithmic scale
    assert set(DEFAULT) <= {name for each in SEARCHED.values() for name in each}


def test_ranges_are_extended_by_the_initial_value():
    found, _ = space("td3", "--pi-lr", "0.01", "--gamma", "0.9", "--search", "pi-lr", "gamma", "hidden_units")
    rate, gamma, units = found
    assert rate.mark == Search(1e-4, 0.01, "log") and gamma.mark == Search(0.9, 0.999, "log of 1 - x")
    assert gamma.parameter == "1 - gamma" and gamma.initial_parameter == pytest.approx(0.1)
    assert units.mark.values == ((64, 64), (128, 128), (256, 256), (400, 300))
    (units,), _ = space("acer", "--search", "hidden_units")
    assert units.mark.values[-1] == (100, 100) and units.initial_parameter == "100 100"


@pytest.mark.parametrize(
    "words, message",
    [
        ("td3 --search pi_rl", "`search` must name options with a search range: .*Did you mean 'pi_lr'.*: pi_rl$"),
        ("td3 --search pi_lr pi_lr", "`search` must name different options. Received: pi_lr, pi_lr"),
        ("td3 --search gamma --gamma 1.0", "`gamma` is searched on the scale 'log of 1 - x'.* gamma=1.0"),
        ("td3 --search act_noise --act-noise 0.1 0.2", r"`act_noise` is searched .*act_noise=\(0.1, 0.2\)"),
        ("td3 --search polyak --recipe normalized", "polyak, which cannot be searched here: `polyak` does nothing"),
        ("d4pg --search hidden_units --torso control", "hidden_units, which cannot be searched here: .*torso"),
        ("td3 --trials 0", "`trials` must be a positive integer"),
        ("td3 --jobs 2 --ray-address auto", "`jobs` does nothing where `ray_address` is given"),
        ("td3 --seeds 1", "there is no flag --seeds. Did you mean --seed?"),
        ("td3 --actors 1", "there is no flag --actors"),
        ("sac", "there is no agent 'sac'"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *words.split(), *PENDULUM]) in (1, 2)
    shown = capsys.readouterr().err.splitlines()
    assert re.search(f"^tfdpg: .*{message}", shown[0]) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("sac", "Pendulum-v1", {}), ValueError, "^`agent` must be one of ddpg, td3.*'sac'"),
        (("td3", object(), {}), ValueError, "^`env` must be the id"),
        (("td3", "Pendulum-v1", {"epoch": 3}), TypeError, "no flag 'epoch'. Did you mean 'epochs'"),
        (("td3", "Pendulum-v1", {"pi": None}), TypeError, "no flag 'pi'"),
        (("td3", "Pendulum-v1", {"gamma": 2}), ValueError, "^`gamma` must be"),
        (("td3", "Pendulum-v1", {"trials": 0}), ValueError, "^`trials` must be"),
        (("td3", "Pendulum-v1", {"env_kwargs": [1, 2]}), ValueError, "^`env_kwargs` must be a dict. Received: .*1, 2"),
        (
            ("td3", "Pendulum-v1", {"env_kwargs": {1: 2}}),
            ValueError,
            "^`env_kwargs` must be a dict by name.*1: 2",
        ),
        (("td3", "NoSuch-v0", {}), ValueError, "NoSuch"),
    ],
)
def test_arguments_are_checked(arguments, error, message, tmp_path):
    agent, env, options = arguments
    with pytest.raises(error, match=message):
        tfdpg.tune(agent, env, run_dir=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_the_signature_has_the_options_of_a_search_with_their_defaults():
    import inspect

    parameters = inspect.signature(tfdpg.tune).parameters
    for option in options_of(TuneOptions):
        assert parameters[option.name].default == option.default


def test_without_optuna_the_error_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"^A search needs optuna: pip install 'tfdpg\[tune\]'$"):
        tfdpg.tune("td3", "Pendulum-v1", run_dir=tmp_path / "new")
    assert cli.main(["tune", "td3", *PENDULUM]) == 1
    assert "pip install 'tfdpg[tune]'" in capsys.readouterr().err


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="is not empty, and holds no search"):
        tfdpg.tune("td3", "Pendulum-v1", run_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def written_run(directory, returns, *, column="val_return", epochs=None):
    """A run directory that looks as if it were complete."""
    config = parse_training_flags("td3", [*PENDULUM, "--epochs", str(epochs or len(returns))])[1][0]
    (directory / "export").mkdir(parents=True)
    rows = [f"{epoch},{1000 * (epoch + 1)},{value}" for epoch, value in enumerate(returns)]
    (directory / "progress.csv").write_text("\n".join([f"epoch,env_steps,{column}", *rows, ""]))
    return runs.Run(directory, config)


def test_a_run_is_complete_once_it_is_exported_also_if_it_reached_its_target_early(tmp_path):
    run = written_run(tmp_path / "run", [1, 9], epochs=5)
    assert run.is_complete()
    (tmp_path / "run/export").rmdir()
    assert not run.is_complete()


def test_scores_are_read_while_the_run_is_written(tmp_path):
    run = written_run(tmp_path / "run", [1, 2, 3, 4], epochs=5)
    assert run.scores() == [1, 2, 3, 4] and runs.score(run.scores()) == 3
    with (tmp_path / "run/progress.csv").open("a") as file:
        file.write("3,4000,7\n4,5000,")  # a step that was repeated after a resumption, then a row without evaluation
        assert run.scores() == [1, 2, 3, 4]
        file.write("1")
        file.flush()
        assert run.scores() == [1, 2, 3, 7]
        file.write("2\n")
        file.flush()
        assert run.scores() == [1, 2, 3, 7, 12]
    rates = written_run(tmp_path / "rates", [0.5, 1.0], column="val_return,val_success_rate")
    (tmp_path / "rates/progress.csv").write_text("epoch,env_steps,val_return,val_success_rate\n0,10,-9,0.5\n1,20,,\n")
    assert rates.scores() == [0.5]
    (tmp_path / "rates/progress.csv").write_text("epoch,env_steps,val_return,val_success_rate\n0,10,-9,nan\n")
    assert rates.scores() == [-9]
    assert runs.Run(tmp_path / "none", rates.config).scores() == []


def settings(tmp_path, **returns):
    found = []
    for number, (name, scores) in enumerate(returns.items()):
        made = {seed: written_run(tmp_path / name / str(seed), [score]) for seed, score in enumerate(scores)}
        values = {"pi_lr": 0.001 * (number + 1), "hidden_units": (64, 64)}
        config = dataclasses.replace(made[0].config, options=made[0].config.options | values)
        found.append(report.Setting(number, name == "initial", 100 - number, values, config, made))
    return found


def test_the_table_and_the_comparison_are_of_the_new_seeds(tmp_path):
    initial, lucky, best = settings(tmp_path, initial=[1, 2, 3], lucky=[0, 0, 0], best=[2, 1, 9])
    assert report.table([best, initial]).splitlines() == [
        "                   search    new seeds  pi_lr  hidden_units",
        "trial 2             98.00  4.00 ± 2.52  0.003         64 64",
        "trial 0 (initial)  100.00  2.00 ± 0.58  0.001         64 64",
    ]
    text = report.comparison(best, [best, initial, lucky])
    assert "with the same seeds: 2.00 ± 2.08 (higher with 2 of 3 seeds)." in text
    assert "No setting has a higher mean" in report.comparison(initial, [initial, lucky])
    (tmp_path / "lucky/1/progress.csv").unlink()
    assert lucky.rank() == -float("inf") and report.mean_and_error(lucky.scores()) == "1 of 3 failed"
    assert "no mean difference" in report.comparison(best, [best, lucky._replace(is_initial=True)])


def test_the_initial_values_and_earlier_confirmed_trials_are_compared_with_the_best():
    study = optuna.create_study(direction="maximize")
    for number, score in enumerate([1, 9, 2, 8, 4, 7, 3, 6, 5]):
        study.add_trial(optuna.trial.create_trial(value=score, user_attrs={"initial": number == 0}))
    assert [trial.value for trial in best_trials(study.trials, [2, 3])] == [9, 8, 7, 6, 5, 2, 1]


def test_the_report_names_the_best_command_and_plots_the_importance(tmp_path, capsys):
    study = optuna.create_study(direction="maximize")
    found = settings(tmp_path, initial=[1, 2], best=[2, 3])
    report.write_report(tmp_path, study, found, [1, 2])
    assert "too few different trials" in capsys.readouterr().out
    for value in (1e-4, 3e-4, 1e-3, 3e-3, 5e-4, 2e-4):
        trial = study.ask()
        rate = optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
        study.add_trial(
            optuna.trial.create_trial(
                params={"pi_lr": value, "1 - gamma": 0.01 * (1 + trial.number % 3)},
                distributions={"pi_lr": rate, "1 - gamma": optuna.distributions.FloatDistribution(1e-3, 0.1)},
                value=value,
            )
        )
    report.write_report(tmp_path, study, found, [1, 2])
    out = capsys.readouterr().out
    assert f"wrote {tmp_path}/importance.svg" in out
    assert "\ntfdpg train td3 --env Pendulum-v1 --pi-lr 0.002 --hidden-units 64 64 --epochs 1 --seeds 0\n" in out
    assert study.user_attrs["best"]["trial"] == 1 and study.user_attrs["best"]["options"]["pi_lr"] == 0.002
    assert "<svg" in (tmp_path / "importance.svg").read_text()
    for value in (1e-4, 1e-3):
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.PRUNED,
                params={"pi_lr": value, "1 - gamma": 0.02},
                distributions=study.trials[-1].distributions,
                intermediate_values={1: -5.0},
            )
        )
    labels = [text.get_text() for text in report.importance(study).axes[0].get_yticklabels()]
    assert sorted(labels) == ["gamma", "pi_lr"]


SMALL_SEARCH = [*PENDULUM, *TINY, "--epochs", "4", "--steps-per-epoch", "100", "--max-ep-len", "20"]
SMALL_SEARCH += ["--validation-episodes", "1", "--search", "pi_lr", "gamma"]


def started(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "tfdpg", "tune", "ddpg", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(run):
    file = run / "progress.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


def wait_for_epoch(process, run):
    while rows(run) < 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.hours
def test_a_killed_search_is_resumed_by_the_same_command_with_the_trial_that_was_trained(tmp_path):
    words = [*SMALL_SEARCH, "--epochs", "20", "--trials", "3", "--confirm", "1", "--run-dir", tmp_path]
    trial = tmp_path / "trials/1/seed-0"
    process = started(*words)
    wait_for_epoch(process, trial)
    holder = json.loads((trial / "lock").read_text())["process"]
    process.kill()
    os.kill(holder, signal.SIGKILL)
    process.communicate()
    done = rows(trial)
    study = optuna.load_study(study_name="tfdpg", storage=f"sqlite:///{tmp_path}/study.db")
    before = study.trials[1]
    assert 1 <= done < 20 and [each.state for each in study.trials] == [TrialState.COMPLETE, TrialState.RUNNING]

    process = started(*words)  # killed again, but the process of its trial goes on
    wait_for_epoch(process, tmp_path / "trials/2/seed-0")
    process.kill()
    process.communicate()
    process = started(*words)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "trial 2: -" in out and "trial 0: " not in out and "The best command:" in out
    assert "resumed at step" in (tmp_path / "trials/1/seed-0.txt").read_text()
    assert [rows(tmp_path / f"trials/{number}/seed-0") for number in range(3)] == [20, 20, 20]
    trials = study.get_trials()
    assert [each.state for each in trials] == [TrialState.COMPLETE] * 3
    assert trials[1].params == before.params and trials[1].user_attrs["run"] == str(trial)
    assert sorted(trials[1].intermediate_values) == list(range(1, 21))
    for each in trials:
        options = read_config(tmp_path / f"trials/{each.number}/seed-0").options
        drawn = each.user_attrs["options"]
        assert drawn == {name: options[name] for name in drawn} and bool(drawn) == (each.number > 0)
    assert len({each.params["pi_lr"] for each in trials}) == 3
    assert len(find_runs([tmp_path])) == 6
    command = shlex.split(study.user_attrs["best"]["command"])
    best = tmp_path / f"trials/{study.user_attrs['best']['trial']}/seed-0"
    parsed = parse_training_flags(command[2], command[3:])[1][0]
    saved = {name: read_config(best).agent_options[name] for name in parsed.agent_options}
    assert json.loads(json.dumps(parsed.agent_options)) == saved
    assert cli.main(["export", str(best), str(tmp_path / "model")]) == 0

    process = started(*words)
    out, _ = process.communicate()
    assert process.returncode == 0 and "The best command:" in out and "trial 0: " not in out
    process = started(*words, "--gamma", "0.5")
    _, errors = process.communicate()
    assert process.returncode == 1 and "holds a search with gamma=0.99" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, status", [pytest.param(signal.SIGINT, 130, marks=pytest.mark.hours), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_a_search_with_checkpoints_and_says_how_to_resume_it(tmp_path, number, status):
    words = [*SMALL_SEARCH, "--epochs", "100000", "--jobs", "2", "--run-dir", tmp_path]
    process = started(*words)
    for trial in (0, 1):
        wait_for_epoch(process, tmp_path / f"trials/{trial}/seed-0")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in errors
    assert f"Resume the search with: tfdpg tune ddpg {shlex.join(map(str, words))}" in errors
    for trial in (0, 1):
        assert list((tmp_path / f"trials/{trial}/seed-0/checkpoints").iterdir())
        assert "Resume with: tfdpg train --resume" in (tmp_path / f"trials/{trial}/seed-0.txt").read_text()
    study = optuna.load_study(study_name="tfdpg", storage=f"sqlite:///{tmp_path}/study.db")
    assert [each.state for each in study.trials] == [TrialState.RUNNING] * 2


@pytest.mark.slow
def test_a_trial_below_the_median_is_pruned_and_can_be_resumed(tmp_path):
    words = [*SMALL_SEARCH, "--confirm", "0", "--run-dir", str(tmp_path)]
    assert cli.main(["tune", "ddpg", *words, "--trials", "1"]) == 0
    study = optuna.load_study(study_name="tfdpg", storage=f"sqlite:///{tmp_path}/study.db")
    initial = study.trials[0]
    for _ in range(5):  # better than any return of Pendulum
        study.add_trial(
            optuna.trial.create_trial(
                params=initial.params,
                distributions=initial.distributions,
                user_attrs={"options": {}, "run": ""},
                value=1.0,
                intermediate_values=dict.fromkeys(range(1, 5), 1.0),
            )
        )
    assert cli.main(["tune", "ddpg", *words, "--trials", "7"]) == 0
    pruned = study.get_trials()[6]
    run = tmp_path / "trials/6/seed-0"
    assert pruned.state == TrialState.PRUNED and pruned.value == pruned.intermediate_values[pruned.last_step] < 0
    assert 1 <= rows(run) < 4 and not pruned.user_attrs["diverged"]
    assert cli.main(["train", "--resume", str(run)]) == 0 and rows(run) == 4


@pytest.mark.hours
def test_a_trial_that_diverges_counts_as_pruned_and_a_first_trial_that_fails_ends_the_search(tmp_path, capsys):
    words = [*SMALL_SEARCH, "--confirm", "0", "--trials", "1"]
    diverging = ["--q-lr", "1e30", "--search", "q_lr", "--run-dir", str(tmp_path / "a")]
    assert cli.main(["tune", "ddpg", *words, *diverging]) == 1
    shown = capsys.readouterr()
    assert "trial 0: diverged after 0 of 4 epochs" in shown.out and "No trial of" in shown.err
    (trial,) = optuna.load_study(study_name="tfdpg", storage=f"sqlite:///{tmp_path}/a/study.db").trials
    assert trial.state == TrialState.PRUNED and trial.user_attrs["diverged"]
    words += ["--env", "tests.environments:tfdpg-test/Counter-v0", "--env-kwargs", "bad='reward'", "bad_at=50"]
    for number in (0, 1):
        assert cli.main(["tune", "ddpg", *words, "--trials", "5", "--run-dir", str(tmp_path / "b")]) == 1
        shown = capsys.readouterr().err
        log = tmp_path / f"b/trials/{number}/seed-0.txt"
        assert re.search(rf"trial {number} failed with exit status 1.*reward.*\(see {log}\)", shown)


def test_a_run_of_another_search_is_not_resumed(tmp_path):
    config = parse_training_flags("td3", [*PENDULUM])[1][0]
    dataclasses.replace(config, networks="foreign:networks").write(tmp_path)
    run = runs.Run(tmp_path, config)
    with pytest.raises(ValueError, match=r"must be a run of this search, with \['Pendulum-v1'\]. Received: .*foreign"):
        run.poll(runs.LocalLauncher(1))
    (tmp_path / "run.json").rename(tmp_path / "mine")
    (tmp_path / "run.json").symlink_to(tmp_path / "mine")
    with pytest.raises(tfdpg.cli.run_options.files.UnsafeFileError):
        run.poll(runs.LocalLauncher(1))
    assert run.process is None
