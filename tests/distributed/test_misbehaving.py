"""Workers whose environments misbehave, return numbers that are not finite, or hang."""

import functools
import importlib
import re
import time

import keras
import numpy as np
import pytest

from tests.agents.roster import AGENTS, brief
from tests.distributed.environments import FaultyInOneWorker
from tfdpg import distributed
from tfdpg.distributed import worker_pool

pytestmark = brief
SHORT = {"epochs": 10**6, "steps_per_epoch": 60, "actors": 2, "chunk": 10, "verbose": 0}


def fitted(fault, **options):
    agent = AGENTS["DDPG"](FaultyInOneWorker(), update_after=10**6)
    distributed.fit(agent, functools.partial(FaultyInOneWorker, fault, 23), **SHORT | options)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reward None", "raises"])
def test_the_worker_is_named(local_ray, fault):
    kind, message = (ValueError, "reward=None") if fault != "raises" else (np.linalg.LinAlgError, "the mass is 0")
    with pytest.raises(kind, match=message) as raised:
        fitted(fault)
    *_, remote = raised.value.__notes__
    where = next(note for note in raised.value.__notes__ if note.startswith("It was raised"))
    assert re.fullmatch(r"It was raised in worker 1, in process \d+ on the machine [\d.]+\.", where)
    assert not str(raised.value).startswith("\x1b") and remote.startswith("Traceback of that process:\nray::Worker")


@pytest.mark.slow
@pytest.mark.parametrize("shards", [0, 2])
def test_the_worker_whose_numbers_are_not_finite_is_named(local_ray, shards):
    with pytest.raises(ValueError, match=r"\(worker 1\).* reward = inf, of row [34]"):
        fitted({"reward": np.inf}, replay_shards=shards)


@pytest.mark.slow
def test_a_module_that_is_missing_on_a_worker_s_machine_is_named(local_ray, tmp_path, monkeypatch):
    (tmp_path / "tfdpg_test_only_here.py").write_text(
        "from tests.environments import Counter\n\n\nclass Env(Counter): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # the workers of a running cluster do not use this path
    make_env = importlib.import_module("tfdpg_test_only_here").Env
    with pytest.raises(ModuleNotFoundError) as raised:
        distributed.fit(AGENTS["DDPG"](FaultyInOneWorker(), update_after=10**6), make_env, **SHORT)
    assert str(raised.value) == "No module named 'tfdpg_test_only_here'"
    where, hint, *_ = raised.value.__notes__
    assert re.match(r"It was raised in worker [01], in process \d+ on the machine [\d.]+\.", where)
    assert hint.startswith("Install the missing module on that machine")


@pytest.mark.hours
def test_workers_that_hang_are_named_and_end(local_ray, monkeypatch):
    began = []

    def limit_once_worker_0_has_started(batch, logs):
        if not began and logs["env_steps"] > 20:  # which are all that worker 1 sends
            began.append(time.monotonic())
            monkeypatch.setattr(worker_pool, "STARTUP_SECONDS", 12.0)

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=limit_once_worker_0_has_started)]
    with pytest.raises(TimeoutError, match=r"Workers \[1\] did not .*12.5 seconds"):
        fitted("hangs", step_timeout=0.05, steps_per_epoch=10**6, callbacks=callbacks)
    hanging = 60  # seconds
    assert time.monotonic() - began[0] < hanging - 5
