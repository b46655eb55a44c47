"""Mutation tests: wrong signs, targets, discounts, clips, delays, weights and traces must make quick tests fail.

    python -m tests.mutations              # all of them, one after the other; exits with 1 if one survives
    python -m tests.mutations td3 retrace  # those whose name contains one of these words

Each mutation is applied to a copy of the package, in which its tests must then fail. Without a mutation the tests must
pass, which is checked first.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutations import Mutation, declarations, returns, updates

ROOT = Path(__file__).parents[2]
MUTATIONS = [Mutation(*fields) for fields in (*returns.MUTATIONS, *updates.MUTATIONS, *declarations.MUTATIONS)]


def passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Return whether tests pass in a source tree."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-n0",
        *(f"tests/{test}" for test in tests),
    ]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    status = subprocess.run(command, cwd=tree, env=environment, capture_output=True).returncode
    assert status in (0, 1), f"pytest ended with {status}: {' '.join(command)}"
    return status == 0


def main() -> int:
    """Try the mutations that the command line names; return the exit status."""
    patterns = sys.argv[1:]
    wanted = [
        mutation for mutation in MUTATIONS if not patterns or any(pattern in mutation.name for pattern in patterns)
    ]
    alive = []
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for part in ("tfdpg", "tests", "examples", "exported_models", "docs"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, tree)
        for tests in sorted({mutation.tests for mutation in wanted}):
            assert passes(tree, tests), f"{tests} fail without a mutation"
        for mutation in wanted:
            file = tree / "tfdpg" / mutation.file
            text = file.read_text()
            assert text.count(mutation.before) == 1, f"{mutation.name}: {mutation.before!r} must be in {file} once"
            file.write_text(text.replace(mutation.before, mutation.after))
            is_alive = passes(tree, mutation.tests)
            file.write_text(text)
            alive += [mutation.name] if is_alive else []
            print(f"{'ALIVE ' if is_alive else 'killed'} {mutation.name}", flush=True)
    print(f"{len(wanted) - len(alive)} of {len(wanted)} killed")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
