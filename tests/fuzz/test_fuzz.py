"""Files that were damaged, and unusual command lines. A range of cases: TFDPG_FUZZ=500:1000."""

import os

import pytest

from tests.fuzz import run, run_many

STREAMS = ("saved", "exports", "command_lines")
A_HUNDRED = {"saved": pytest.mark.slow, "exports": pytest.mark.slow, "command_lines": pytest.mark.hours}


@pytest.mark.parametrize(
    "stream, first, stop",
    [
        *(pytest.param(stream, 40, 50, id=f"{stream}-quick") for stream in STREAMS),
        *(pytest.param(stream, 0, 100, id=f"{stream}-a hundred", marks=mark) for stream, mark in A_HUNDRED.items()),
    ],
)
def test_some_cases(stream, first, stop):
    for number in range(first, stop):
        run(stream, number)


@pytest.mark.hours
@pytest.mark.parametrize("stream", STREAMS)
def test_ten_thousand_cases(stream):
    assert not run_many(stream, *map(int, os.environ.get("TFDPG_FUZZ", "0:10000").split(":")))
