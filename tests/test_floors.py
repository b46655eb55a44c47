"""A file imports from lower floors or from its own package (DESIGN: the house)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tfdpg

PACKAGE = Path(tfdpg.__file__).parent
FLOORS = {
    **dict.fromkeys(("arguments", "environments", "ranges", "options", "files", "spaces", "spec", "streams"), 0),
    **dict.fromkeys(("losses", "exploration", "replay", "acting"), 1),
    "networks": 2,
    "export": 3,
    "training": 4,
    "agents": 5,
    **dict.fromkeys(("distributed", "cli", "run_options", "runs", "curves", "plotting", "filming", "__main__"), 6),
}
COMMANDS = {"cli", "run_options", "runs", "curves", "plotting", "filming", "__main__"}
NUMPY_ONLY = [*(part for part in FLOORS if FLOORS[part] == 0), "exploration", "replay", "acting"]


def parts():
    return sorted(
        {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} - {"__init__"}
    )


def imports(file):
    """The parts of tfdpg that a file imports, wherever in it; `if TYPE_CHECKING` counts too."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            if node.module == "tfdpg":
                names = [f"tfdpg.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        yield from (name for name in names)


def files(part):
    return [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else sorted((PACKAGE / part).rglob("*.py"))


def test_every_part_has_a_floor():
    assert set(parts()) == set(FLOORS)


@pytest.mark.parametrize("part", FLOORS)
def test_imports_go_down(part):
    for file in files(part):
        for name in imports(file):
            if name.startswith("tfdpg."):
                other = name.split(".")[1]
                allowed = (
                    other == part
                    or FLOORS[other] < FLOORS[part]
                    or {part, other} <= COMMANDS
                    or (part in COMMANDS and other == "distributed")
                )
                allowed = allowed or FLOORS[other] == FLOORS[part] == 0
                assert allowed, f"{file.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("part", NUMPY_ONLY)
def test_numpy_floors_know_no_tensorflow(part):
    for file in files(part):
        for name in imports(file):
            assert name.split(".")[0] not in ("tensorflow", "keras"), f"{file.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("part", FLOORS)
def test_only_distributed_knows_ray(part):
    for file in files(part) if part != "distributed" else []:
        assert "ray" not in {name.split(".")[0] for name in imports(file)}, f"{file.relative_to(PACKAGE)} imports ray"


def test_importing_distributed_imports_neither_ray_nor_tensorflow():
    code = (
        "import sys, tfdpg.distributed, tfdpg.distributed.worker, tfdpg.distributed.shard, tfdpg.distributed.policies;"
        "heavy = {'tensorflow', 'keras', 'ray'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_tfdpg_imports_nothing_heavy():
    code = (
        "import sys, tfdpg; heavy = {'tensorflow', 'keras', 'gymnasium', 'numpy', 'ray', 'tyro'} & set(sys.modules);"
        "assert not heavy, heavy; assert 'TD3' in dir(tfdpg)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    for name in tfdpg.__all__:
        assert getattr(tfdpg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'PPO'"):
        tfdpg.PPO  # noqa: B018


def test_files_are_rooms_one_can_see_across():
    long = {
        str(file.relative_to(PACKAGE)): n
        for file in PACKAGE.rglob("*.py")
        if (n := len(file.read_text().splitlines())) > 350
    }
    assert not long
