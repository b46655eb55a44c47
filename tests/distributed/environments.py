"""Environments that report on the process that they run in."""

import json
import os
import sys
from pathlib import Path

from tests.environments import Counter, Reach
from tests.misbehaving import Misbehaving
from tfdpg.training.environment.env_runner import TRAINING, reset_seed


def counter():
    """Make a `Counter`. Workers import this module to find the function."""
    return Counter(length=5, ends="truncated")


class ReportingCounter(Counter):
    """A `Counter` that writes a report on its process at a certain step. It can also sleep and fail."""

    def __init__(self, directory, raises_at=None, raises_in=None, sleep=0.0, length=5):
        super().__init__(length=length, ends="truncated")
        self.directory = Path(directory)
        self.raises_at = raises_at
        self.raises_in = raises_in
        self.sleep = sleep

    def reset(self, *, seed=None, options=None):
        with open(self.directory / "seeds.txt", "a") as file:
            file.write(f"{os.getpid()} {seed}\n")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        outcome = super().step(action)
        if self.total == 30:
            self._write_report()
        if self.total == self.raises_at:
            raise ZeroDivisionError("this environment is broken")
        return outcome

    def _write_report(self):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        megabytes = {name: int(status[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon", "RssShmem")}
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        facts = {"pid": os.getpid(), "modules": sorted(sys.modules), "variables": {n: os.environ[n] for n in names}}
        part = self.directory / f"{os.getpid()}.part"
        part.write_text(json.dumps(facts | megabytes))
        part.rename(self.directory / f"{os.getpid()}.json")


def read_reports(directory):
    """Return the reports in a directory."""
    return [json.loads(file.read_text()) for file in Path(directory).glob("*.json")]


class FaultyInOneWorker(Misbehaving):
    """Misbehaves in worker 1 only, which it recognises by the seed of the first reset."""

    def reset(self, *, seed=None, options=None):
        if self.total == 0 and seed != reset_seed(0, TRAINING, 1, 0):
            self.fault = None
        return super().reset(seed=seed, options=options)


def reach():
    """Make a `Reach`, whose observations have goals."""
    return Reach()
