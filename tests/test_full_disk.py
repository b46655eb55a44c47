import contextlib
import errno
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.agents.roster import SMALL, fit_briefly
from tests.environments import Counter
from tests.full_disk import TRAIN
from tfdpg import DDPG, files

ROOT = Path(__file__).parents[1]
KILOBYTES = 20, 44, 100, 260, 700, 1500
"""Sizes with room for tables only, for half a policy, for a policy, or for several checkpoints."""


def test_what_could_not_be_written_is_named_with_what_it_takes(tmp_path):
    with pytest.raises(files.DiskFullError) as caught, files.writing(tmp_path / "there" / "file", lambda: 4096):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    free = shutil.disk_usage(tmp_path).free
    found = re.fullmatch(
        r"The disk is full: (.*) takes 4,096 bytes or more, and ([\d,]+) bytes are free.", str(caught.value)
    )
    assert found and found[1] == str(tmp_path / "there" / "file")
    assert abs(int(found[2].replace(",", "")) - free) < free / 10
    with pytest.raises(PermissionError, match="^other$"), files.writing(tmp_path):
        raise PermissionError("other")


@pytest.fixture
def small_files():
    """Limit the size of files that this process may write to 4,096 bytes, as `ulimit -f` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextlib.contextmanager
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


def test_a_limit_on_the_size_of_files_is_named_and_leaves_nothing(tmp_path, small_files):
    agent = DDPG(Counter(), **SMALL)
    writes = {
        "file": lambda: files.write_text(tmp_path / "file", "x" * 5000),
        "agent": lambda: agent.save(tmp_path / "agent"),
        "model": lambda: agent.export(tmp_path / "model"),
    }
    for name, write in writes.items():
        with pytest.raises(files.DiskFullError) as caught, small_files():
            write()
        assert str(caught.value) == (
            f"{tmp_path / name} could not be written: a file is too large. "
            "This process may write files of up to 4,096 bytes (`ulimit -f`)."
        )
        assert list(tmp_path.iterdir()) == []
    agent.save(tmp_path / "agent")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kilobytes, names", [(1, "run.json"), (4, "best|tensorboard"), (60, "best"), (150, "checkpoints|best")]
)
def test_a_training_that_may_write_no_larger_file_ends_with_a_line(tmp_path, kilobytes, names):
    train = shlex.join([sys.executable, "-m", "tfdpg", *TRAIN.split(), "--run-dir", str(tmp_path / "run")])
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-c", f"ulimit -f {kilobytes}; {train}"]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "could not be written" in line]
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    size = f"{kilobytes * 1024:,}"
    assert re.fullmatch(
        rf"tfdpg: {tmp_path}/run/seed-0/({names})\S* could not be written: a file is too large. "
        rf"This process may write files of up to {size} bytes \(`ulimit -f`\).",
        said[0],
    )


def small_disks(directory, kilobytes):
    """Return commands that mount disks in a private namespace, and the directories of the disks."""
    disks = [directory / f"{size}k" for size in kilobytes]
    return [
        f"mkdir {disk} && mount -t tmpfs -o size={size}k tmpfs {disk}"
        for disk, size in zip(disks, kilobytes, strict=True)
    ], disks


def alone(commands):
    """Run commands in a shell with its own mounts. Skip the test if the system does not allow them."""
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode
    ):
        pytest.skip("no disk can be mounted here")
    return subprocess.run(
        ["unshare", "-rm", "bash", "-ec", "\n".join(commands)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_training_ends_with_a_line_and_its_last_checkpoint_is_sound(tmp_path):
    mounts, disks = small_disks(tmp_path, KILOBYTES)
    done = alone([*mounts, f"{sys.executable} -m tests.full_disk {' '.join(map(str, disks))}"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for disk, run in zip(disks, found, strict=True):
        first, *more = [line for line in run["said"].splitlines() if not re.search("warning|^Resume with", line)]
        assert run["status"] == 1, disk
        assert re.fullmatch(
            rf"tfdpg: The disk is full: {disk}/run/seed-0/\S+ (takes|could not).* bytes are free.", first
        )
        assert all(re.match(r"\w+: The disk is full: ", line) for line in more), more
        assert run["left"] == []
    assert found[0]["best"] == [] and found[-1]["best"] != [] and found[0]["steps"] == []
    assert found[-1]["steps"][-1] > found[-2]["steps"][-1] > 500


@pytest.mark.slow
def test_a_replay_in_files_has_its_room_before_the_first_step(tmp_path):
    mounts, (disk,) = small_disks(tmp_path, [100])
    script = (
        "from tfdpg.replay.memory import allocate_array; from pathlib import Path; import numpy as np; "
        f"both = [allocate_array((20_000,), np.float32, Path('{disk}')) for _ in range(2)]"
    )
    done = alone([*mounts, f'{sys.executable} -c "{script}"'])
    assert f"DiskFullError: The disk is full: {disk} takes 80,000 bytes or more" in done.stderr


def test_a_checkpoint_knows_what_it_takes(tmp_path, monkeypatch):
    agent = DDPG(Counter(), **SMALL | {"update_after": 900})
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=300)

    def fails(*arguments, **arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(files.DiskFullError) as caught:
        patch.setattr(np, "savez", fails)
        agent.save(tmp_path / "agent")
    expected = int(re.search(r"agent takes ([\d,]+) bytes or more", str(caught.value))[1].replace(",", ""))
    agent.save(tmp_path / "agent")
    written = sum(file.stat().st_size for file in (tmp_path / "agent").iterdir() if file.suffix == ".npz")
    assert expected < written < 2 * expected + 20_000
