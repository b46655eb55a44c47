"""The built distributions contain what they should, and the wheel works without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIRECTORIES = ("tfdpg", "tests", "docs", "examples")
PROJECT_FILES = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE"}
BUILD_FILES = {"setup.cfg", "pyproject.toml", "MANIFEST.in"}
TRAIN = (
    "train td3 --env Pendulum-v1 --hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --epochs 1 "
    "--steps-per-epoch 60 --max-ep-len 20 --validation-episodes 1 --replay-size 500 --jit-compile False --verbose 0"
)
USE = """
import numpy as np, tfdpg
policy = tfdpg.load("exported/pendulum")
assert policy(np.zeros(3, np.float32)).shape == (1,)
print(tfdpg.__file__, tfdpg.__version__)
"""


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(tmp_path):
    def run(*words):
        unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    source = tmp_path / "source"
    source.mkdir()
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    for name in PROJECT_FILES | BUILD_FILES:
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--outdir", "dist", str(source))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfdpg").rglob("*.py")}
    package |= {"tfdpg/py.typed", "tfdpg/export/prediction_log.pbtxt", "tfdpg/exported/operations.txt"}
    assert package == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    generated = {name for name in packed if name.startswith("tfdpg.egg-info/")} | {"PKG-INFO"}
    assert packed - generated == package | PROJECT_FILES | BUILD_FILES

    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment/bin/python"
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel))
    # the dependencies of this environment; its own tfdpg comes later in sys.path, or is editable and not in this path
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    tfdpg = str(tmp_path / "environment/bin/tfdpg")
    run(tfdpg, *TRAIN.split())
    run(tfdpg, "export", "runs/td3-Pendulum-v1/seed-0", "exported/pendulum")
    assert "return: mean" in run(tfdpg, "evaluate", "exported/pendulum", "--episodes", "1")
    file, version = run(str(python), "-c", USE).split()
    assert Path(file).is_relative_to(packages) and version == wheel.name.split("-")[1]
