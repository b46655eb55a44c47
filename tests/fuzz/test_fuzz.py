"""Files that were damaged, and unusual command lines. A range of cases: TFDPG_FUZZ=500:1000."""

import os

import pytest

from tests.fuzz import run, run_many

STREAMS = ("saved", "exports", "command_lines")


@pytest.mark.parametrize(
    "first, stop", [(40, 50), pytest.param(0, 100, marks=pytest.mark.slow)], ids=["quick", "a hundred"]
)
@pytest.mark.parametrize("stream", STREAMS)
def test_some_cases(stream, first, stop):
    for number in range(first, stop):
        run(stream, number)


@pytest.mark.hours
@pytest.mark.parametrize("stream", STREAMS)
def test_ten_thousand_cases(stream):
    assert not run_many(stream, *map(int, os.environ.get("TFDPG_FUZZ", "0:10000").split(":")))
