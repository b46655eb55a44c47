"""The commands of docs/production.md, and those of its CI job, are run in their order, with their exit statuses."""

import re
import shlex
import shutil

import gymnasium as gym
import numpy as np
import pytest

from tests.docs.pages import fences
from tests.serve.conftest import serving
from tfdpg import cli
from tfdpg.serve.request_log import RequestLog

PAGE = "docs/production.md"
REQUESTS = 2000


def commands(code):
    """Return the words after `tfdpg` of each command in shell code or in the steps of a job."""
    lines = re.sub(r"\\\n\s+|>\n\s+|\n {10}(?=--)", " ", code).splitlines()
    return [shlex.split(line.partition("tfdpg ")[2]) for line in lines if re.match(r"\s*(- run: +)?tfdpg ", line)]


def make_requests(directory):
    """Control Pendulum with a server that logs the requests to `requests`."""
    env = gym.make("Pendulum-v1")
    with serving(directory, request_log=RequestLog(directory.parent.parent / "requests", print)) as client:
        for episode in range(REQUESTS // 200):
            observation, _ = env.reset(seed=100 + episode)
            for _ in range(200):
                _, content = client.post({"instances": [observation.tolist()]})
                observation, *_ = env.step(np.array(content["predictions"][0], np.float32))


@pytest.mark.slow
def test_the_way_from_a_run_to_production(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    way = [words for block in fences(PAGE, "sh") for words in commands(block.code)]
    assert len(way) >= 12
    for words in way:
        if words[0] == "serve":
            make_requests(tmp_path / "exported_models/pendulum")
            continue
        few = words == ["drift", "exported_models/pendulum", "requests"]  # perhaps too few to tell
        quiet = ["--verbose", "0"] if words[0] == "train" else []
        assert cli.main([*words, *quiet]) in ((0, 2) if few else (0,)), words
    printed = capsys.readouterr().out
    for text in ("new is not worse", "passed: 10 checks with 50 observations", "wrote 20 episodes to acceptance"):
        assert text in printed
    assert (tmp_path / "acceptance.png").stat().st_size and (tmp_path / "drift.png").stat().st_size
    shutil.rmtree(tmp_path / "acceptance")
    (job,) = fences(PAGE, "yaml")
    accepting = commands(job.code)
    assert [words[0] for words in accepting] == ["compare", "verify", "evaluate", "drift"]
    for words in accepting:
        assert cli.main(words) == 0, words
