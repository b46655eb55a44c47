"""A file imports from lower layers or from its own package (DESIGN: packages and layers)."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfdpg

PACKAGE = Path(tfdpg.__file__).parent
LAYERS = {
    **dict.fromkeys("arguments companions compat environments files findings hints".split(), 0),
    **dict.fromkeys("imports options ranges spaces spec streams".split(), 0),
    **dict.fromkeys(("losses", "exploration", "replay", "acting"), 1),
    **dict.fromkeys(("exported", "networks"), 2),
    "components": 2,
    "export": 3,
    "training": 4,
    "agents": 5,
    "recipes": 6,
}
"""The core, from the lowest layer to the highest."""
COMPANIONS = {
    "checking": (),
    "distributed": (),
    "diagnosis": ("cli",),
    "formats": ("cli",),
    "serve": ("cli",),
    "plotting": ("cli", "distributed"),
    "tuning": ("cli", "distributed", "plotting"),
    "cli": ("distributed",),
    "__main__": ("cli",),
}
"""What surrounds the core, and which other companions each uses. The command line finds the others in a table."""
NUMPY_ONLY = [*(part for part in LAYERS if LAYERS[part] == 0), "exploration", "replay", "acting"]


def parts():
    return sorted(
        {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} - {"__init__"}
    )


@functools.cache
def imports(file):
    """The modules that a file imports, wherever in it; `if TYPE_CHECKING` counts too."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            if node.module == "tfdpg":
                names = [f"tfdpg.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        found += names
    return found


def annotated(file):
    """The modules that a file imports for type checkers only."""
    blocks = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.If)]
    checked = [block for block in blocks if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"]
    return {node.module for block in checked for node in block.body if isinstance(node, ast.ImportFrom)}


def files(part):
    return [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else sorted((PACKAGE / part).rglob("*.py"))


def test_every_part_has_a_layer():
    assert set(parts()) == {*LAYERS, *COMPANIONS}


def faults(parts, is_wrong):
    """The imports of some parts that are wrong: `is_wrong(part, file, name)`."""
    found = [(part, file, name) for part in parts for file in files(part) for name in imports(file)]
    assert len(found) > 100
    return [f"{file.relative_to(PACKAGE)} imports {name}" for part, file, name in found if is_wrong(part, file, name)]


def test_imports_go_down():
    def goes_up(part, file, name):
        if not name.startswith("tfdpg."):
            return False
        other = name.split(".")[1]
        if other in COMPANIONS:
            return name not in annotated(file)
        allowed = other == part or LAYERS[other] < LAYERS[part]
        return not (allowed or LAYERS[other] == LAYERS[part] == 0 or (part, other) == ("components", "networks"))

    assert faults(LAYERS, goes_up) == []


def test_companions_import_only_the_core_and_the_companions_that_they_name():
    def is_wrong(part, file, name):
        other = name.split(".")[1] if name.startswith("tfdpg.") else part
        return other not in (part, *LAYERS, *COMPANIONS[part])

    assert faults(COMPANIONS, is_wrong) == []
    for part in set(COMPANIONS) - {"__main__"}:
        described = ast.get_docstring(ast.parse((PACKAGE / part / "__init__.py").read_text()))
        assert "A companion of the core" in described and described.count("\n") >= 3, part


WITHOUT_COMPANIONS = """
import sys
import tfdpg
tfdpg.TD3, tfdpg.callbacks, tfdpg.export, tfdpg.load_agent
found = {name.split('.')[1] for name in sys.modules if name.startswith('tfdpg.')} & set(COMPANIONS)
assert not found, found
for name in COMPANIONS:
    sys.modules[f"tfdpg.{name}"] = None  # importing it fails, as if its folder were deleted
small = dict(hidden_units=(4,), start_steps=5, update_after=5, update_every=5, run_eagerly=True)
agent = tfdpg.TD3("Pendulum-v1", **small)
agent.fit("Pendulum-v1", epochs=1, steps_per_epoch=10, max_ep_len=5, verbose=0, validation_env=None)
agent.save(sys.argv[1] + "/agent")
assert tfdpg.load_agent(sys.argv[1] + "/agent").updates == agent.updates > 0
agent.export(sys.argv[1] + "/model")
assert abs(tfdpg.load(sys.argv[1] + "/model")([0.1, 0.2, 0.3])) <= 2
try:
    agent.diagnose("Pendulum-v1")
except ModuleNotFoundError as error:
    assert "tfdpg.diagnosis" in str(error)
else:
    raise AssertionError("a companion was imported")
"""


@pytest.mark.slow
def test_the_core_trains_saves_and_exports_without_companions(tmp_path):
    code = f"COMPANIONS = {sorted(COMPANIONS)}{WITHOUT_COMPANIONS}"
    command = [sys.executable, "-W", "ignore:This training ends at", "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_numpy_layers_know_no_tensorflow():
    def is_tensorflow(part, file, name):
        if file.parent.name == "compat" and file.stem in ("keras", "tensorflow"):
            return False  # imported where these libraries already are
        return name.split(".")[0] in ("tensorflow", "keras")

    assert faults(NUMPY_ONLY, is_tensorflow) == []


def test_only_distributed_knows_ray():
    others = [part for part in (*LAYERS, *COMPANIONS) if part != "distributed"]
    assert faults(others, lambda part, file, name: name.split(".")[0] == "ray") == []


def test_importing_distributed_imports_neither_ray_nor_tensorflow():
    code = (
        "import sys, tfdpg.distributed, tfdpg.distributed.worker;"
        "import tfdpg.distributed.replay_shard, tfdpg.distributed.plan;"
        "heavy = {'tensorflow', 'keras', 'ray'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_tfdpg_imports_nothing_heavy():
    code = (
        "import sys, tfdpg; heavy = {'tensorflow', 'keras', 'gymnasium', 'numpy', 'ray', 'tyro'} & set(sys.modules);"
        "assert not heavy, heavy; assert 'TD3' in dir(tfdpg)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_ddpg_and_td3_know_no_tf_probability(tmp_path):
    code = (
        "import sys; sys.modules['tensorflow_probability'] = sys.modules['tf_keras'] = None;"  # importing them fails
        "import gymnasium as gym, tfdpg; env = gym.make('Pendulum-v1', max_episode_steps=20);"
        "small = dict(hidden_units=(4,), start_steps=5, update_after=5, update_every=5, jit_compile=False);"
        "agents = [make(env, **small) for make in (tfdpg.DDPG, tfdpg.TD3)];"
        "[agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0) for agent in agents];"
        "assert all(agent.updates == 15 for agent in agents), [agent.updates for agent in agents];"
        "tfdpg.load(agents[1].export(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_public_names():
    for name in tfdpg.__all__:
        assert tfdpg.__getattr__(name) is not None  # whatever others have imported
    assert "export" in tfdpg.__all__
    with pytest.raises(AttributeError, match="no attribute 'PPO'"):
        tfdpg.PPO  # noqa: B018


FORMAT = {file: ["pi"] for part in ("export", "exported", "formats", "serve") for file in files(part)}
FORMAT[PACKAGE / "export/signatures.py"] += ["q1", "q2"]
FORMAT[PACKAGE / "formats/c_header.py"] += ["v"]  # of the names of C arrays, `v1`
"""What every export has: the signature `pi`, which clients know by name as they know its input `x`, and `q1` and `q2`,
whose names are in one file."""
GENERIC = (*"training tuning distributed cli diagnosis plotting export exported formats serve".split(),)
"""The parts that know the metrics and networks of an algorithm from its declaration, or from the files of a run or an
export."""
OWNED = re.compile(r"\bq(\d|\\d)|\bloss_|\btd_error\b")
"""Names of metrics and critics, which also occur within longer texts."""


def literals(source):
    """The strings of a source text that are no docstrings, and the attributes that it reads or sets."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr != "pi":  # `evaluation_actor.pi` is any evaluation policy
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@functools.cache
def declared_metrics():
    calls = [node for file in files("agents") for node in ast.walk(ast.parse(file.read_text())) if _makes_metric(node)]
    return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}


def _makes_metric(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Metric"


def owned(source):
    """The names of metrics, critics and policies of algorithms among the literals of a source text."""
    names = {"pi", "q", *declared_metrics()}
    return [text for text in literals(source) if text in names or OWNED.search(text)]


def test_generic_parts_know_no_metric_or_network_by_name():
    names = {file: set(owned(file.read_text())) for part in GENERIC for file in files(part)}
    assert not {file: found for file, found in names.items() if found - {*FORMAT.get(file, [])}}


def test_a_metric_or_network_known_by_name_is_found():
    assert declared_metrics() >= {"loss_q", "loss_pi", "loss_encoder", "td_error", "entropy", "v"}
    found = "'q2' in x", "f'(q1 is {y})'", "x.q1 = 0", "x.startswith('loss_')", "d['pi']", "x = r'q\\d+'", "x = 'kl'"
    for source in found:
        assert owned(source), source
    assert not owned("def f():\n    'The critic q1.'\n    return agent.evaluation_actor.pi, 'entropy of', 'loss'")


def defined_names(file):
    """The names that a file defines: its own, and those of its classes, functions, parameters and variables."""
    yield file.stem
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_former_names_do_not_come_back():
    former = set(Path(__file__).with_name("former_names.txt").read_text().split())
    assert len(former) > 300
    used = {(name, file.name) for file in PACKAGE.rglob("*.py") for name in defined_names(file) if name in former}
    assert not used
