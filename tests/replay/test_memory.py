import gc

import numpy as np

from tfdpg.replay.memory import allocate_array, available_memory

GIB = 1 << 30


def system(tmp_path, cgroup, files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   16777216 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return available_memory(tmp_path)


def test_version_2_counts_every_group_on_the_way(tmp_path):
    files = {
        "memory.max": f"{8 * GIB}\n",
        "memory.current": f"{GIB}\n",
        "a/memory.max": f"{4 * GIB}\n",
        "a/memory.current": f"{GIB}\n",
        "a/b/memory.max": "max\n",
    }
    assert system(tmp_path, "0::/a/b\n", files) == 3 * GIB


def test_version_1(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/a/memory.limit_in_bytes": f"{2 * GIB}",
        "memory/a/memory.usage_in_bytes": f"{GIB}",
    }
    assert system(tmp_path, "4:cpu,memory:/a\n1:name=systemd:/a\n", files) == GIB


def test_without_limits_it_is_the_machine_s(tmp_path):
    assert system(tmp_path, "0::/\n", {"memory.max": "max\n"}) == 16 * GIB


def test_unknown_system(tmp_path):
    assert available_memory(tmp_path) is None


def test_here():
    assert available_memory() > 1 << 20


def test_a_file_that_somebody_removed_is_not_missed(tmp_path):
    array = allocate_array((2, 3), np.float32, tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    array[:] = 1
    del array
    gc.collect()
