"""Files that were damaged, and command lines that nobody would type. A range of cases: TFDPG_FUZZ=500:1000."""

import os
import subprocess
import sys

import pytest

from tests.fuzz.__main__ import run
from tests.fuzz.damage import damage  # noqa: F401

STREAMS = ("saved", "exports", "command_lines")


def all_pass(stream, first, stop):
    for number in range(first, stop):
        run(stream, number)


@pytest.mark.parametrize("stream", STREAMS)
def test_ten_cases(stream):
    all_pass(stream, 0, 10)


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_a_hundred_cases(stream):
    all_pass(stream, 0, 100)


@pytest.mark.hours
@pytest.mark.parametrize("stream", STREAMS)
def test_ten_thousand_cases(stream):
    first, stop = os.environ.get("TFDPG_FUZZ", "0:10000").split(":")
    assert subprocess.run([sys.executable, "-m", "tests.fuzz", stream, first, stop]).returncode == 0
