"""Statistics of observations and actions, in NumPy alone."""

import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from tfdpg.exported import ExportError
from tfdpg.exported.statistics import LEVELS, DataStatistics, action_columns, columns, read, summarize, to_text
from tfdpg.spec import Spec

BOX = spaces.Box(-2, 2, (2,))
NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2, 2))}),
        "camera": spaces.Box(0, 255, (40, 40), np.uint8),
        "gear": spaces.Discrete(3),
    }
)


def component(values, runs=None):
    column = np.asarray(values, np.float32)
    return summarize(column, column[:, None] if runs is None else runs)


def test_components_have_the_names_of_messages_and_large_arrays_are_averaged():
    spec = Spec(NESTED, BOX)
    observations = {
        "arm__joints": np.arange(8.0).reshape(2, 2, 2),
        "camera": np.stack([np.full((40, 40), 7, np.uint8), np.full((40, 40), 9, np.uint8)]),
        "gear": np.array([0, 2]),
    }
    found = columns(observations, spec)
    assert {name: each.tolist() for name, each in found.items()} == {
        "arm__joints[0, 0]": [0, 4],
        "arm__joints[0, 1]": [1, 5],
        "arm__joints[1, 0]": [2, 6],
        "arm__joints[1, 1]": [3, 7],
        "mean of camera": [7, 9],
        "gear": [0, 2],
    }
    assert list(action_columns(np.zeros((3, 2)), spec)) == ["a[0]", "a[1]"]
    discrete = Spec(spaces.Box(-1, 1, (1,)), spaces.Discrete(3))
    (a,) = action_columns(np.array([0, 2, -1]), discrete).values()  # -1 stands for no action
    np.testing.assert_array_equal(a, [0, 2, np.nan])


def test_numbers_that_were_computed_by_hand():
    found = component([*range(1, 101), np.nan, np.inf, -np.inf, np.nan, np.nan])
    assert found.mean == 50.5 and found.deviation == pytest.approx(np.sqrt((100**2 - 1) / 12))
    assert found.missing == pytest.approx(5 / 105) and found.values is None
    np.testing.assert_allclose(found.quantiles, [1 + 99 * level for level in LEVELS], rtol=1e-6)
    assert found.counts.tolist() == [1, 9, *[10] * 8, 9, 1, 5]


def test_few_different_values_are_counted_by_value():
    found = component([3, 1, 1, np.nan])
    assert found.values is not None and found.values.tolist() == [1, 3] and found.counts.tolist() == [2, 1, 0, 1]
    assert found.bins(np.array([1, 2, 3, 4, np.nan], np.float32)).tolist() == [0, 2, 1, 2, 3]
    constant = component([0.1] * 5)
    assert constant.deviation == 0 and constant.counts.tolist() == [5, 0, 0] and constant.steps == 1


def test_the_number_of_steps_of_an_independent_observation_is_that_of_theory():
    rng = np.random.default_rng(0)
    for memory in (0.0, 0.5, 0.9):
        runs = np.zeros((500, 200))
        for t in range(1, len(runs)):
            runs[t] = memory * runs[t - 1] + rng.normal(size=200)
        runs = runs[100:].astype(np.float32)
        found = summarize(runs.ravel(), runs).steps
        assert found == pytest.approx((1 + memory) / (1 - memory), rel=0.15)


def test_statistics_are_equal_when_they_are_read(tmp_path):
    rng = np.random.default_rng(0)
    observations = {"x[0]": component(rng.normal(size=100)), "x[1]": component([np.nan] * 3)}
    given = DataStatistics(100, 200, 500, observations, {"a": component([0, 1, 1])})
    (tmp_path / "statistics.json").write_text(to_text(given))
    again = read(tmp_path)
    assert again[:3] == (100, 200, 500) and to_text(again) == to_text(given)
    assert np.isnan(again.observations["x[1]"].mean) and again.observations["x[1]"].missing == 1


def change(name, value):
    def changed(text):
        content = json.loads(text)
        content["actions"]["a"][name] = value
        return json.dumps(content)

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: '{"observations": {}, "actions": {}}',
        change("quantiles", [0.0]),
        change("quantiles", [*range(10), -1]),
        change("values", []),
        change("counts", [-1, 2, 0, 0]),
        change("counts", [10**30] * 4),
        change("steps", 0),
        change("missing", "x"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    file = tmp_path / "statistics.json"
    file.write_text(damage(to_text(DataStatistics(3, 3, 3, {}, {"a": component([0, 1, 1])}))))
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        read(tmp_path)


def test_without_a_file_the_error_says_why(tmp_path):
    with pytest.raises(ExportError, match=r"has no statistics\.json: the replay buffer was empty"):
        read(tmp_path)


def test_tensorflow_is_not_imported():
    code = "import sys, tfdpg.exported.statistics, tfdpg.diagnosis.drift; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
