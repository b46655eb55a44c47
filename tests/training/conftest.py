import shutil

import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL
from tests.environments import Counter


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    agent = tfdpg.DDPG(Counter(), **SMALL, **EAGER)
    agent.fit(Counter(), epochs=1, steps_per_epoch=30, verbose=0)
    directory = tmp_path_factory.mktemp("one") / "agent"
    agent.save(directory)
    return directory


@pytest.fixture
def saved(one, tmp_path):
    """A saved agent, for tests that only read it or spoil it."""
    return shutil.copytree(one, tmp_path / "agent")
