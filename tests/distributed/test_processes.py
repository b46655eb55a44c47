"""A local Ray cluster, and the distinction between lost processes and errors."""

import contextlib
import ipaddress
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from ray._private import ray_constants
from ray.exceptions import ActorUnavailableError

from tfdpg.distributed import processes
from tfdpg.distributed.plan import require_ray


class Go:
    def between(self):
        raise ActorUnavailableError("another actor is gone", None)

    def wrong(self):
        raise ValueError("wrong")


class Handler:
    """A handler for SIGTERM in this process."""

    def __init__(self):
        self.received = []

    def __call__(self, number, frame):
        self.received.append(number)


HANDLER = Handler()


@pytest.fixture(scope="module")
def local_ray():
    """A Ray cluster that `connected` starts and stops, in a process that handles SIGTERM."""
    assert not ray.is_initialized()
    former = signal.signal(signal.SIGTERM, HANDLER)
    try:
        with processes.connected(None, cpus=2):
            yield
        caught = int(re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
        assert caught & 1 << signal.SIGTERM - 1, "After `ray.shutdown` the system handles SIGTERM, and Python does not."
    finally:
        signal.signal(signal.SIGTERM, former)


@pytest.mark.slow
def test_a_ray_that_is_started_here_listens_on_this_machine_only(local_ray):
    actor = processes.start_ray_actor(Go)
    with pytest.raises(ValueError, match="wrong"):
        ray.get(actor.wrong.remote())
    sockets = listeners()
    names = descendants()
    listening = [(names[pid], sockets[inode]) for pid in names for inode in inodes(pid) & sockets.keys()]
    assert [pair for pair in listening if not pair[1].is_loopback] == []
    found = {name for name, _ in listening}
    assert {"gcs_server", "raylet", names[os.getpid()]} <= found and any(name.startswith("ray::Go") for name in found)
    ray.kill(actor)


def listeners():
    """Return the addresses of all listening TCP sockets of this machine, by inode."""
    found = {}
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for fields in map(str.split, file.read_text().splitlines()[1:]):
            digits = fields[1].partition(":")[0]
            state = fields[3]
            inode = fields[9]
            if state == "0A":
                words = [bytes.fromhex(digits[start : start + 8])[::-1] for start in range(0, len(digits), 8)]
                address = ipaddress.ip_address(b"".join(words))
                found[inode] = getattr(address, "ipv4_mapped", None) or address
    return found


def descendants():
    """Return the names of this process and of all its descendants, by process ID."""
    names = {}
    parents = {}
    for file in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            status = dict(re.findall(r"^(Name|Pid|PPid):\s*(.*)$", file.read_text(), re.MULTILINE))
            names[int(status["Pid"])] = status["Name"]
            parents[int(status["Pid"])] = int(status["PPid"])
    found = new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found = found | new
    return {pid: names[pid] for pid in found}


def inodes(pid):
    """Return the inodes of the sockets of a process."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
    return found


def test_sigterm_comes_to_the_process_s_own_handler(local_ray, capfd):
    assert signal.getsignal(signal.SIGTERM) is HANDLER  # Ray's handler would end the tests at the next line
    os.kill(os.getpid(), signal.SIGTERM)
    assert HANDLER.received == [signal.SIGTERM] and "SIGTERM" not in capfd.readouterr().err


def test_a_ray_that_listens_elsewhere_is_ended(monkeypatch):
    calls = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: calls.append(ray_constants.ENABLE_RAY_CLUSTER))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.2")
    message = "127.0.0.1 or ::1 only. .* at 192.0.2.2"
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    with pytest.raises(RuntimeError, match=message), processes.connected(None, cpus=1):
        pass
    assert calls == [False, "shutdown"] and ray_constants.ENABLE_RAY_CLUSTER


def test_another_thread_leaves_sigterm_alone():
    def keep():
        with processes.preserved_sigterm_handler():
            pass

    with ThreadPoolExecutor(1) as threads:
        threads.submit(keep).result()


def test_an_older_ray_is_refused(monkeypatch):
    for version in ("2.58.1", "1.13.0"):
        monkeypatch.setattr(ray, "__version__", version)
        message = f"needs Ray 2.59 .*Received: Ray {version}"
        with pytest.raises(ImportError, match=message):
            require_ray()
    for version in ("2.59.0", "2.60.0rc0", "3.0.0.dev0"):
        monkeypatch.setattr(ray, "__version__", version)
        require_ray()


def test_a_process_lost_inside_a_call_counts_as_lost(local_ray):
    actor = processes.start_ray_actor(Go)
    with pytest.raises(Exception) as caught:
        ray.get(actor.between.remote())
    assert processes.is_process_lost(caught.value)
    with pytest.raises(ValueError, match="wrong") as caught:
        ray.get(actor.wrong.remote())
    assert not processes.is_process_lost(caught.value)
    ray.kill(actor)
