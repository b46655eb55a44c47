"""Files and directories that survive a crash or a power cut and reveal damage."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import files


def sealed(directory, **contents):
    directory.mkdir(parents=True)
    for name, content in (contents or {"weights": "1 2 3"}).items():
        (directory / name).write_text(content)
    files.write_manifest(directory, "about.json", {"format": 2, "agent": "TD3"})
    return directory


def test_a_sealed_directory_opens_with_its_description(tmp_path):
    directory = sealed(tmp_path / "a", weights="1 2 3", replay="")
    description = files.read_manifest(directory, "about.json", 2)
    assert description["agent"] == "TD3" and list(description["files"]) == ["replay", "weights"]
    assert list(description)[-1] == "sha256"


def test_it_opens_by_a_path_with_dots(tmp_path, monkeypatch):
    sealed(tmp_path / "a")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert files.read_manifest(Path("../a"), "about.json", 2)["agent"] == "TD3"
    assert files.read_manifest(Path("../here/../a"), "about.json", 2)["agent"] == "TD3"


@settings(max_examples=300, deadline=None)
@given(
    position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), name=st.sampled_from(["about.json", "weights"])
)
def test_every_flipped_bit_is_seen(tmp_path_factory, position, bit, name):
    directory = sealed(tmp_path_factory.mktemp("sealed") / "a")
    content = bytearray((directory / name).read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    (directory / name).write_bytes(content)
    with pytest.raises(files.DamagedError, match=name if name == "weights" else None):
        files.read_manifest(directory, "about.json", 2)


def test_files_of_another_directory_longer_shorter_and_missing_ones_are_named(tmp_path):
    a = sealed(tmp_path / "a", weights="1 2 3")
    b = sealed(tmp_path / "b", weights="4 5 6")
    for content in (b"4 5 6", b"1 2 3 ", b"1 2", b""):
        (a / "weights").write_bytes(content)
        with pytest.raises(files.DamagedError, match=f"{a}/weights is damaged, or belongs"):
            files.read_manifest(a, "about.json", 2)
    (a / "weights").unlink()
    with pytest.raises(files.DamagedError, match=f"{a}/weights is missing"):
        files.read_manifest(a, "about.json", 2)
    shutil.copy(b / "about.json", a)
    shutil.copy(b / "weights", a)
    assert files.read_manifest(a, "about.json", 2) == files.read_manifest(b, "about.json", 2)


def test_what_is_no_file_or_no_json_is_named(tmp_path):
    directory = sealed(tmp_path / "a")
    (directory / "weights").unlink()
    (directory / "weights").mkdir()
    with pytest.raises(files.DamagedError, match=f"{directory}/weights is a directory"):
        files.read_manifest(directory, "about.json", 2)
    for text in (b'{"x": \xff', b'{"x": undefined', b'{"x": ' + b"9" * 5000, b'{"x": ' + b"[" * 9999 + b"]" * 9999):
        (directory / "about.json").write_bytes(files._with_checksum(text + b",\n  "))
        with pytest.raises(files.DamagedError, match=f"{directory}/about.json cannot be read"):
            files.read_manifest(directory, "about.json", 2)
    (directory / "about.json").write_bytes(files._with_checksum(b'{"format": 2,\n  '))
    with pytest.raises(files.DamagedError, match=f"{directory}/about.json must have format"):
        files.read_manifest(directory, "about.json", 2)


def test_other_formats_are_named_sealed_or_not(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/about.json").write_text('{"format": 1}')
    for directory, version in ((tmp_path / "old", 2), (sealed(tmp_path / "a"), 3)):
        with pytest.raises(files.DamagedError, match=f"has format {version - 1}; this version"):
            files.read_manifest(directory, "about.json", version)


def test_a_description_cannot_point_out_of_its_directory(tmp_path):
    (tmp_path / "secret").write_text("1 2 3")
    for outside in ("../secret", str(tmp_path / "secret")):
        directory = tmp_path / "a"
        directory.mkdir()
        files.write_manifest(directory, "about.json", {"format": 2})
        content = (
            (directory / "about.json").read_bytes().replace(b'"files": {}', f'"files": {{"{outside}": "0"}}'.encode())
        )
        body = content[: content.rindex(b'"sha256"')]
        (directory / "about.json").write_bytes(files._with_checksum(body))
        with pytest.raises(files.DamagedError, match="is missing"):
            files.read_manifest(directory, "about.json", 2)
        shutil.rmtree(directory)


def test_what_killed_saves_left_is_removed_and_what_is_under_way_stays(tmp_path):
    left = tmp_path / f"{files.SCRATCH}left"
    foreign = tmp_path / ".precious"
    for directory in (left, foreign):
        directory.mkdir()
        (directory / "file").write_text("content")
    with files.scratch_directory(tmp_path) as first:
        assert not left.exists() and foreign.exists() and first.is_dir()
        with files.scratch_directory(tmp_path) as second:
            assert first.exists() and second.exists()
        assert first.exists() and not second.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".precious"]


def test_a_scratch_directory_of_a_living_process_stays_and_of_a_killed_one_goes(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tfdpg import files\n"
        "with files.scratch_directory(Path(sys.argv[1])) as scratch: print(scratch, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    theirs = Path(process.stdout.readline().strip())
    with files.scratch_directory(tmp_path):
        assert theirs.exists()
    process.kill()
    process.communicate()
    with files.scratch_directory(tmp_path):
        assert not theirs.exists()


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError("no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / f"{files.SCRATCH}left").mkdir()
    with files.scratch_directory(tmp_path) as scratch:
        assert scratch.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{files.SCRATCH}left"]


@pytest.mark.parametrize("stops_at", range(1, 10))
def test_whenever_a_replacement_is_killed_the_old_or_the_new_is_found(tmp_path, monkeypatch, stops_at):
    target = sealed(tmp_path / "agent", weights="old")
    calls = 0

    class Killed(BaseException):
        pass

    def counted(original):
        def call(*arguments, **keywords):
            nonlocal calls
            calls += 1
            if calls >= stops_at:
                raise Killed  # and so does whatever tries to tidy up
            return original(*arguments, **keywords)

        return call

    with pytest.raises(Killed) if stops_at < 9 else monkeypatch.context():
        with files.scratch_directory(tmp_path) as scratch:
            shutil.copytree(sealed(tmp_path / "new" / "agent", weights="new"), scratch, dirs_exist_ok=True)
            with monkeypatch.context() as patch:
                patch.setattr(Path, "rename", counted(Path.rename))
                patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
                patch.setattr(files, "flush", counted(files.flush))
                files.replace(scratch, target)
    found = files.current_path(target)
    assert (found / "weights").read_text() == ("old" if stops_at <= 6 else "new")
    files.read_manifest(found, "about.json", 2)
    with files.scratch_directory(tmp_path) as scratch:
        (scratch / "weights").write_text("newest")
        files.replace(scratch, target)
    assert (target / "weights").read_text() == "newest"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent", "new"]


class Disk:
    """The worst state after a power cut: all names as they are at that moment, and only flushed content."""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.flushed = {}
        self.unflushed_names = set()
        self.check = lambda: None
        fsync = os.fsync
        rename = Path.rename
        rmtree = shutil.rmtree

        def flush(descriptor):
            fsync(descriptor)
            status = os.fstat(descriptor)
            self.flushed[status.st_ino] = status.st_size, status.st_mtime_ns
            self.unflushed_names.discard(status.st_ino)

        def move(path, target):
            moved = rename(path, target)
            if self.has(target):
                self.unflushed_names.add(Path(target).parent.stat().st_ino)
                self.check()
            return moved

        def remove(path, **keywords):
            is_ours = self.has(path) and Path(path).exists()
            if is_ours:
                assert Path(path).parent.stat().st_ino not in self.unflushed_names, "removed before its heir is safe"
            rmtree(path, **keywords)
            if is_ours:
                self.check()

        monkeypatch.setattr(os, "fsync", flush)
        monkeypatch.setattr(Path, "rename", move)
        monkeypatch.setattr(shutil, "rmtree", remove)

    def has(self, path):
        return Path(path).is_relative_to(self.root)

    def copy_after_power_loss(self, place):
        """Copy the remaining files to `place`."""
        for path in self.root.rglob("*"):
            copy = place / path.relative_to(self.root)
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            status = path.stat()
            is_safe = self.flushed.get(status.st_ino) == (status.st_size, status.st_mtime_ns)
            copy.write_bytes(path.read_bytes() if is_safe else b"")
        return place
