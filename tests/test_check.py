"""`tfdpg.check`, on environments that are broken in one way each and on valid ones."""

import json
import re
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import tfdpg
from tests.agents.roster import ACER, SMALL, brief
from tests.broken import (
    ZOO,
    Board,
    DictAction,
    Endless,
    GapsFilled,
    HugeImage,
    Image,
    LaterRaising,
    Long,
    Mixed,
    Named,
    NoOptions,
    NoSeed,
    OldReset,
    OldStep,
    Outside,
    RightLimit,
    Slow,
    TextObservation,
    Tiny,
    Told,
    TupleAction,
    Unbounded,
    ValidEnv,
)
from tests.docs.pages import fences
from tests.environments import Counter, Distances
from tfdpg import cli, environments
from tfdpg.checking import random_steps

pytestmark = brief


@pytest.mark.parametrize("broken", ZOO, ids=lambda broken: broken.__name__)
def test_each_finding_is_that_of_an_environment(broken):
    found = tfdpg.check(broken(), steps=5 if broken is HugeImage else 200, verbose=0)
    what, remedy = ZOO[broken]
    assert len(found) == 1, found
    assert what in found[0].what and remedy in found[0].remedy
    assert "\n" not in found[0].what + found[0].remedy


@pytest.mark.parametrize(
    "valid_env", [ValidEnv, RightLimit, Image, Mixed, Board, GapsFilled], ids=lambda valid_env: valid_env.__name__
)
def test_nothing_is_found_where_nothing_is_wrong(valid_env):
    assert tfdpg.check(valid_env(), verbose=0) == []


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5", "CartPole-v1", "MountainCarContinuous-v0"])
def test_nothing_is_found_in_gymnasiums_own(env_id):
    assert tfdpg.check(env_id, verbose=0) == []


def test_what_was_hardly_looked_at_is_said(capsys, monkeypatch):
    monkeypatch.setattr(random_steps, "SECONDS", 0.1)
    (found,) = tfdpg.check(Slow())
    assert re.match(r"It is slow: a million steps take \d+ hours", found.what) and "async" in found.remedy
    shown = capsys.readouterr().out
    assert re.search(r"none ended in \d+ steps: too few to see one end$", shown, re.MULTILINE)
    assert re.search(r"steps/s; stopped after 0 seconds, at \d+ of 1,000 steps", shown)
    assert tfdpg.check(TimeLimit(Endless(), 500), steps=100) == []
    assert "none ended in 100 steps: too few to see one end; take more (--steps)" in capsys.readouterr().out


def test_what_is_no_number_is_a_finding():
    *_, found = tfdpg.check(TextObservation(), verbose=0)
    assert "must be real numbers" in found.what and "<U1" in found.what


def test_wrappers_do_not_hide_old_forms():
    for broken in (OldReset, OldStep, NoSeed, NoOptions):
        (found,) = tfdpg.check(TimeLimit(broken(), 10), verbose=0)
        assert found.what.startswith(("`reset`", "`step`"))
    assert tfdpg.check(TimeLimit(Endless(), 5000), verbose=0) == []  # its limit is known, but was not reached


def test_what_refuses_one_thing_does_not_hide_another():
    class Both(Named):
        action_space = Unbounded.action_space

    found = tfdpg.check(Both(), verbose=0)
    assert len(found) == 2 and "'arm/name'" in found[0].what and "infinite" in found[1].what


def test_the_numbers_of_unsupported_spaces_are_checked_in_the_same_run():
    found = tfdpg.check(Told(), steps=200, verbose=0)
    parts = ("is not supported", "is not finite: arm__1[1] = inf", "are large: arm__1[0] (offset 1,000,")
    for finding, part in zip(found, parts, strict=True):
        assert part in finding.what


def test_what_was_seen_before_an_error_is_reported():
    small, raised = tfdpg.check(LaterRaising(), verbose=0)
    assert "are small: x[1]" in small.what and "ZeroDivisionError" in raised.what


def test_the_remedies_of_action_spaces_work():
    (found,) = tfdpg.check(DictAction(), verbose=0)
    make_space, wrap = re.findall("`([^`]+)`", found.remedy)
    names = {"gymnasium": gym, "env": DictAction()}
    exec(f"{make_space}\n{wrap}", names)
    assert tfdpg.check(names["env"], verbose=0) == []
    assert tfdpg.Spec.of(names["env"]).high.tolist() == [3, 5, 5]

    (found,) = tfdpg.check(TupleAction(), verbose=0)
    (wrap,) = re.findall(r"gymnasium\S+\(env, function, new_space\)", found.remedy)
    names = {
        "gymnasium": gym,
        "env": TupleAction(),
        "function": lambda action: (action[:1], np.rint(action[1]).astype(int)),
        "new_space": gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 2])),
    }
    assert tfdpg.check(eval(wrap, names), verbose=0) == []


def test_the_remedy_of_small_features_is_accepted():
    (found,) = tfdpg.check(Tiny(), verbose=0)
    (option,) = re.findall("`(normalize_observations=True)`", found.remedy)
    agent = eval(f"tfdpg.DDPG(Tiny(), {option}, **SMALL)", {"tfdpg": tfdpg, "Tiny": Tiny, "SMALL": SMALL})
    agent.fit(Tiny(), epochs=1, steps_per_epoch=200, verbose=0)
    assert np.abs(agent.data.normalizers[0](np.array([[0.5, 2e-4]]))).min() > 0.3


def test_steps_reach_the_end_of_an_episode_unless_they_are_given(capsys):
    for env in (Long(), TimeLimit(Long(), 2300), environments.make("tests.broken:Long", max_episode_steps=2200)):
        assert tfdpg.check(env) == []
        assert re.search(r"^episodes +1 of 2,[234]00 steps; 0 terminated, 1 truncated$", capsys.readouterr().out, re.M)
    assert tfdpg.check(TimeLimit(Long(), 2300), steps=1000) == []
    assert "none ended in 1,000 steps: too few" in capsys.readouterr().out
    assert "No episode ended in 10,000 steps" in tfdpg.check(Endless(), verbose=0)[0].what


def test_an_object_that_is_no_environment_is_a_finding():
    (found,) = tfdpg.check(object(), verbose=0)
    assert "builtins.object" in found.what and "shimmy" in found.remedy


@pytest.mark.parametrize(
    "kind, mode",
    [
        *((SyncVectorEnv, mode) for mode in AutoresetMode),
        (AsyncVectorEnv, AutoresetMode.NEXT_STEP),
        pytest.param(AsyncVectorEnv, AutoresetMode.SAME_STEP, marks=pytest.mark.slow),
        pytest.param(AsyncVectorEnv, AutoresetMode.DISABLED, marks=pytest.mark.slow),
    ],
)
def test_of_a_vector_environment_the_first_sub_environment_is_looked_at(kind, mode, capsys):
    for one, parts in ((ValidEnv, 0), (Outside, 1)):
        envs = kind([one, one], autoreset_mode=mode)
        assert len(tfdpg.check(envs, steps=50)) == parts
        envs.close()
    assert "2 sub-environments" in capsys.readouterr().out


def test_a_vector_environment_that_agents_refuse_is_a_finding():
    (found,) = tfdpg.check(gym.make_vec("CartPole-v1", num_envs=2), verbose=0)
    assert "reset single sub-environments" in found.what


def test_the_report_has_what_an_agent_sees(capsys):
    assert tfdpg.check(Mixed(), steps=20) == []
    shown = capsys.readouterr().out
    for line in (
        "camera: uint8 (8, 8, 3) in [0, 255]; 192 features, scaled to [0, 1]",
        "joints: float32 (2,) in [-1, 1]; 2 features, as float32",
        "phase: int64 () from 1 to 3; 3 features, one-hot",
        "modes: int64 (2,) from [0, 0] to [1, 2]; 5 features, one-hot",
        "1 number in [-2, 3], in these units; for DDPG, TD3, D4PG, TD7, ACER",
        "no findings",
    ):
        assert line in shown
    tfdpg.check(ValidEnv(), verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("env_id, agent, options", [("Pendulum-v1", "TD3", SMALL), ("CartPole-v1", "ACER", ACER)])
def test_the_memory_is_that_of_the_agents_replay(env_id, agent, options, capsys):
    tfdpg.check(env_id, steps=1)
    options = {name: value for name, value in options.items() if name != "replay_size"}
    replay = getattr(tfdpg, agent)(gym.make(env_id), **options).replay
    assert f"{replay.nbytes / 1e6:,.0f} MB when full" in (shown := capsys.readouterr().out)
    assert f"{replay.replay_size:,}" in shown


def test_the_command_says_it_all_and_exits_with_1_if_there_is_something(capsys, monkeypatch):
    assert cli.main(["check", "Pendulum-v1", "--env-kwargs", "g=9.0", "max_episode_steps=30"]) == 0
    assert "no findings" in (shown := capsys.readouterr().out) and "of 30 steps" in shown
    assert cli.main(["check", "tests.broken:OldStep"]) == 1
    assert "1 finding\n- `step` returns 4 values" in capsys.readouterr().out
    assert cli.main(["check", "tests.broken:NoActions"]) == 1
    assert "1 finding\n- It has no `action_space`" in capsys.readouterr().out


UNMADE = {
    "Nope-v0": r"cannot be made: Environment `Nope` doesn't exist\..* An environment of your own is module:Class\.",
    "Pendulum-v9": r"provides versioned environments: \[ `v1` \]\.$",
    "tests.test_check": "module:Class",
    "tests.environments:Nope": "module 'tests.environments' has no class 'Nope', and .* environment classes: .*Counter",
    "tests.nowhere:Nope": "No module named 'tests.nowhere'. Modules are looked for in the working directory",
    "tests.broken:Unlicensed": r"it raised RuntimeError: no licence \(.*broken\.py:\d+\)$",
}


@pytest.mark.parametrize("env_id", UNMADE)
def test_the_command_says_why_an_environment_cannot_be_made(env_id, capsys):
    assert cli.main(["check", env_id]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("tfdpg: The environment") and shown.count("\n") == 1 and "{}" not in shown
    assert re.search(UNMADE[env_id], shown)
    with pytest.raises(ValueError, match="cannot be made with {'x': 1}: "):
        environments.make(env_id, x=1)


@pytest.mark.filterwarnings("default")
def test_the_command_has_gymnasiums_warnings_on_a_line(capsys):
    assert cli.main(["check", "Pendulum", "--steps", "200"]) == 0
    shown = "tfdpg: Using the latest versioned environment `Pendulum-v1` instead of the unversioned environment"
    assert capsys.readouterr().err == f"{shown} `Pendulum`.\n"


def test_the_page_shows_what_the_command_prints(capsys):
    shown, _ = fences("docs/checking.md", "text")
    assert cli.main(["check", "Pendulum-v1", "--env-kwargs", "g=9.81"]) == 0
    texts = [" ".join(text.split()) for text in (shown.code, capsys.readouterr().out)]  # the page wraps long lines
    without_speed = [re.sub(r"[\d,.]+ steps/s", "", text) for text in texts]
    assert without_speed[0] == without_speed[1]


def test_the_command_needs_no_tensorflow():
    code = "import sys; from tfdpg.cli import main; assert main(['check', 'Pendulum-v1']) == 0;"
    code += "heavy = {'tensorflow', 'keras', 'ray', 'torch'} & set(sys.modules); assert not heavy, heavy"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert time.perf_counter() - began < 60


def test_a_class_is_made_by_its_module_and_name():
    for env_id in ("tests.environments:Counter", "tests.environments:tfdpg-test/Counter-v0"):
        env = environments.make(env_id, length=4)
        assert isinstance(env.unwrapped, Counter) and env.unwrapped.length == 4
    env = environments.make("tests.environments:Counter", max_episode_steps=2)
    assert env.spec.id == "tests.environments:Counter" and env.spec.max_episode_steps == 2
    envs = environments.make_envs("tests.environments:Counter", {"length": 3}, 2, "sync")
    assert [one.unwrapped.length for one in envs.envs] == [3, 3]
    for missing in ("tests.environments:Nope", "tests.nowhere:Counter", "tests.environments:np"):
        with pytest.raises(ValueError, match="cannot be made"):
            environments.make(missing)
    with pytest.raises(ValueError, match="^run.json imports.*--trusted"):
        environments.check_trusted("tests.environments:Counter", {}, trusted=False, file="run.json")


@pytest.mark.slow
def test_the_command_line_trains_on_a_class_and_goes_on(tmp_path):
    flags = "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5 --replay-size 100"
    flags += " --epochs 1 --steps-per-epoch 20 --validation-episodes 1 --jit-compile False --verbose 0"
    run = str(tmp_path / "run")
    assert cli.main(["train", "td3", "--env", "tests.broken:ValidEnv", "--run-dir", run, *flags.split()]) == 0
    assert cli.main(["train", "--resume", f"{run}/seed-0", "--epochs", "2"]) == 0
    assert cli.main(["evaluate", f"{run}/seed-0", "--episodes", "1"]) == 0


def test_check_prints_its_report_as_json(capsys):
    assert cli.main(["check", "tests.broken:Endless", "--steps", "20", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"environment", "facts", "findings"}
    assert [fact["title"] for fact in shown["facts"]][:2] == ["observations", "actions"]
    assert [set(finding) for finding in shown["findings"]] == [{"what", "remedy"}]
    assert cli.main(["check", "Pendulum-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_features_far_from_1_are_named_with_their_offset_and_scale():
    found = tfdpg.check(Distances(), steps=50, verbose=0)[0]
    match = re.fullmatch(
        r"Features of the observations are large: distance\[0\] \(offset (\S+), scale (\S+), .*\)\.", found.what
    )
    offset, scale = (float(each.replace(",", "")) for each in match.groups())
    assert 52_131 <= offset <= 54_131 and 0 < scale <= 1000
    assert "`normalize_observations=True`" in found.remedy
