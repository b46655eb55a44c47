"""`policy.h`, compiled with the system's compiler and compared with the policy in NumPy."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tfdpg import cli
from tfdpg.acting import ACTIVATIONS, GreedyPolicy, greedy_forward
from tfdpg.export import convert
from tfdpg.export.source import Source
from tfdpg.exported import ExportError
from tfdpg.formats import c
from tfdpg.formats.c_header import ACTIVATE, c_header
from tfdpg.networks import numpy_critic
from tfdpg.spec import Spec

MAIN = """\
#include <stdio.h>
#include "policy.h"
int main(void) {
    float x[POLICY_X], a[POLICY_A];
    %(start)s
    while (fread(x, sizeof x, 1, stdin) == 1) {
        policy_pi(x, a%(state)s);
        fwrite(a, sizeof a, 1, stdout);
    }
    return 0;
}
"""
STRICT = ["-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
MIXED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8),
        "gear": spaces.Discrete(3, start=-1),
        "switches": spaces.MultiDiscrete([2, 3]),
        "speed": spaces.Box(-np.inf, np.inf, (2,)),
    }
)
KINDS = {
    "plain": lambda: tfdpg.TD3("Pendulum-v1", **SMALL, seed=1),
    "layer": lambda: tfdpg.TD3("Pendulum-v1", **SMALL, norm="layer", normalize_observations=True, seed=1),
    "batch": lambda: tfdpg.TD3("Pendulum-v1", **SMALL, norm="batch", seed=1),
    "blocks": lambda: tfdpg.TD3("Pendulum-v1", **SMALL | {"hidden_units": (8,)}, blocks=2, seed=1),
    "mixed": lambda: tfdpg.D4PG(
        Spec(MIXED, spaces.Box(-1, 3, (2,))), **SMALL, torso="two_branch", v_min=-9, v_max=9, seed=1
    ),
    "lstm": lambda: tfdpg.TD3(
        "Pendulum-v1",
        **SMALL,
        recurrent="lstm",
        recurrent_units=(4, 3),
        remembers=("observation", "action", "reward"),
        seed=1,
    ),
    "gru": lambda: tfdpg.TD3("Pendulum-v1", **SMALL, recurrent="gru", recurrent_units=4, seed=1),
    "rnn": lambda: tfdpg.TD3("Pendulum-v1", **SMALL, recurrent="rnn", recurrent_units=4, remembers=("observation",)),
    "discrete": lambda: tfdpg.ACER("CartPole-v1", hidden_units=(8,), seed=1),
    "scale": lambda: tfdpg.ACER("Pendulum-v1", hidden_units=(8,), learn_sigma=True, seed=1),
}
QUICK = ("layer", "mixed")


@pytest.fixture(scope="module")
def agent():
    """An agent that no test changes."""
    return KINDS["plain"]()


@pytest.fixture(scope="module")
def plain(agent, tmp_path_factory):
    """An export, from which the header is made without the agent."""
    return agent.export(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def header(plain, tmp_path_factory):
    """The directory of its header."""
    return convert(plain, tmp_path_factory.mktemp("header") / "3 TD3-Cheetah.v5", "c")


pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def run(directory, actor, observations, compiler=("cc", "-std=c99")):
    """Return the actions of the compiled header for an episode of flat observations."""
    words = {"start": "", "state": ""}
    if actor.recurrent_spec is not None:
        words = {"start": "policy_state state; policy_start(&state);", "state": ", &state"}
    (directory / "policy.h").write_text(c_header(actor, "a policy")[0])
    (directory / "main.c").write_text(MAIN % words)
    subprocess.run([*compiler, *STRICT, "main.c", "-o", "main", "-lm"], cwd=directory, check=True)
    given = observations.astype(np.float32).tobytes()
    found = subprocess.run([directory / "main"], input=given, capture_output=True, check=True)
    return np.frombuffer(found.stdout, np.float32).reshape(len(observations), -1)


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_c_acts_as_numpy_does(tmp_path, kind):
    agent = KINDS[kind]()
    for normalizer in agent.data.normalizers:
        normalizer.mean.assign([0.3, -0.2, 1.0])
        normalizer.variance.assign([2.0, 0.5, 4.0])
    space = agent.spec.observation_space
    actor = agent.data.evaluation_actor.numpy_policy()
    space.seed(0)
    observations = [space.sample() for _ in range(6)]
    recurrent_spec = agent.data.recurrent_spec and agent.data.recurrent_spec._replace(stored=False)
    by_numpy = GreedyPolicy(agent.spec, recurrent_spec, greedy_forward(agent.spec, recurrent_spec, actor))
    expected = np.array([by_numpy(observation) for observation in observations]).reshape(6, -1)
    parts = [agent.spec.unpack(agent.spec.pack(observation)) for observation in observations]
    flat = np.array([np.concatenate([part[leaf.name].ravel() for leaf in agent.spec.leaves]) for part in parts])
    np.testing.assert_allclose(run(tmp_path, actor, flat), expected, rtol=1e-5, atol=1e-5)
    assert len(np.unique(expected.round(4), axis=0)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tmp_path, activation):
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | {"activation": activation}, seed=2)
    observations = np.random.default_rng(0).normal(0, 3, (6, 3)).astype(np.float32)
    found = run(tmp_path, agent.data.actor.numpy_policy(), observations)
    np.testing.assert_allclose(found, agent.predict(observations), rtol=1e-5, atol=1e-5)


def test_every_activation_is_available_in_c():
    assert set(ACTIVATE) == set(ACTIVATIONS)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_header_compiles_as_cpp(tmp_path):
    actor = KINDS["lstm"]().data.actor.numpy_policy()
    observations = np.random.default_rng(0).normal(size=(3, 3))
    in_c = run(tmp_path, actor, observations)
    np.testing.assert_array_equal(run(tmp_path, actor, observations, ("c++", "-x", "c++", "-std=c++17")), in_c)


SWAPPED = """
static inline int model_pi(const float *x, float *a) {
    const float swapped[MODEL_X] = {x[1], x[0], x[2]};
    return model_unswapped(swapped, a);
}
"""


@pytest.mark.parametrize("change", ["weight", "inputs"])
def test_a_changed_header_is_refused(plain, monkeypatch, tmp_path, change):
    def changed(*given):
        actor = given[0]
        text, weights = c_header(*given)
        if change == "weight":
            weight = next(node for node in actor.nodes[::-1] if node.weights).parts(actor.weights)[0][1, 0]
            assert text.count(f"{weight:.9g}f") == 1
            return text.replace(f"{weight:.9g}f", f"{weight + 0.1:.9g}f"), weights
        text = text.replace("model_pi(", "model_unswapped(").removesuffix("#endif\n") + SWAPPED + "#endif\n"
        return text, weights

    monkeypatch.setattr("tfdpg.formats.c.c_header", changed)
    with pytest.raises(ExportError, match="signature 'pi' differs from the agent"):
        convert(plain, tmp_path / "model", "c")
    assert not (tmp_path / "model").exists()


def test_the_header_says_what_it_is(header):
    assert sorted(path.name for path in header.iterdir()) == ["policy.h", "references.npz", "tfdpg.json"]
    text = (header / "policy.h").read_text()
    assert (
        text.startswith(f"/* The policy of TD3 on Pendulum-v1, by tfdpg {tfdpg.__version__}.")
        and "x (3); a: the action" in text
    )
    facts = json.loads((header / "tfdpg.json").read_text())
    assert facts["export_format"] == "c" and set(facts["signatures"]) == {"pi", "q1", "q2"}
    assert all(signature["difference"] < 1e-5 for signature in facts["signatures"].values())
    assert facts["left_out"] == {"pi_and_q": "it is not in the header"}
    definitions = re.findall(r"static const float \w+\[(\d+)\]", text)
    total = sum(map(int, definitions))
    assert f"Weights: {total} floats, {4 * total} bytes of constants." in text and "bytes.\n*/" not in text


TWO = """\
#include <stdio.h>
#include <string.h>
#include "one/policy.h"
#include "two/policy.h"
int main(void) {
    float x[CAR_X], a[CAR_A], b[PLAIN_A], value;
    car_state state, before;
    car_start(&state);
    while (fread(x, sizeof x, 1, stdin) == 1) {
        before = state;
        char codes[3] = {(char)car_pi(x, a, &state), (char)plain_pi(x, b), 0};
        codes[2] = !memcmp(&before, &state, sizeof state);
        value = plain_q1(x, b);
        fwrite(a, sizeof a, 1, stdout);
        fwrite(b, sizeof b, 1, stdout);
        fwrite(&value, sizeof value, 1, stdout);
        fwrite(codes, sizeof codes, 1, stdout);
        state.r_before = 0.5f;
    }
    return 0;
}
"""


def answers(directory, compiler, weights, observations):
    """Run the program above: return the actions and the value for each observation, and check the return codes."""
    (directory / "main.c").write_text(TWO)
    command = [*compiler, *STRICT, "main.c", str(weights), "-o", "main", "-lm"]
    subprocess.run(command, cwd=directory, check=True)
    found = subprocess.run([directory / "main"], input=observations.tobytes(), capture_output=True, check=True).stdout
    rows = np.frombuffer(found, np.dtype([("numbers", np.float32, 3), ("codes", np.int8, 3)]))
    finite = np.isfinite(observations).all(axis=1)
    assert np.isnan(rows["numbers"][~finite]).all() and np.isfinite(rows["numbers"][finite]).all()
    np.testing.assert_array_equal(rows["codes"][:, :2], np.repeat(~finite[:, None], 2, axis=1))
    np.testing.assert_array_equal(rows["codes"][:, 2], ~finite)  # the state is unchanged
    return rows["numbers"]


@pytest.fixture
def nonfinite_observations():
    observations = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    observations[2, 1] = np.nan
    observations[3, 0] = np.inf
    observations[4] = -np.inf
    return observations


def test_two_headers_in_one_program(nonfinite_observations, tmp_path):
    for name, kind, prefix in (("one", "lstm", "car"), ("two", "plain", "plain")):
        agent = KINDS[kind]()
        critics = {"q1": numpy_critic(agent.spec, agent.networks["q1"])} if kind == "plain" else {}
        (tmp_path / name).mkdir()
        weights_file = "policy.c" if name == "two" else None
        header, weights = c_header(agent.data.actor.numpy_policy(), "a policy", critics, prefix, weights_file)
        (tmp_path / name / "policy.h").write_text(header)
    (tmp_path / "two/policy.c").write_text(f'#include "policy.h"\n\n{weights}')
    answers(tmp_path, ["cc", "-std=c99"], tmp_path / "two/policy.c", nonfinite_observations)
    assert "State of one episode (car_state): 16 floats, 64 bytes." in (tmp_path / "one/policy.h").read_text()
    text = (tmp_path / "two/policy.h").read_text()
    assert "static const" not in text and "bytes of constants, defined in policy.c." in text


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-O1", "-ffast-math"])
def test_two_headers_in_one_program_compute_what_their_saved_models_do(plain, nonfinite_observations, tmp_path, flag):
    version = KINDS["lstm"]().export(tmp_path / "saved")
    convert(version, tmp_path / "one", "c", prefix="car")
    two = convert(plain, tmp_path / "two", "c", prefix="plain", weights_in_c_file=True)
    assert json.loads((two / "tfdpg.json").read_text())["files"].keys() == {"policy.h", "policy.c", "references.npz"}
    car = tfdpg.load(version)
    policy = tfdpg.load(plain)
    expected = []
    for row in nonfinite_observations:
        action = policy(row)
        expected.append([*car(row), *action, policy.q1(row, action)])
        car.received(0.5)
    found = answers(tmp_path, ["cc", "-std=c99", flag], two / "policy.c", nonfinite_observations)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


STATUS = """\
#include <stdio.h>
#include "policy.h"
int main(void) {
    float x[POLICY_X], found[2 + POLICY_A];
    const float a[POLICY_A] = {0.0f};
    while (fread(x, sizeof x, 1, stdin) == 1) {
        found[0] = (float)policy_pi(x, found + 2);
        found[1] = policy_q1(x, a);
        fwrite(found, sizeof found, 1, stdout);
    }
    return 0;
}
"""


@pytest.mark.parametrize("flag", ["-O2", "-ffast-math"])
def test_discrete_observations_outside_their_spaces_get_nan(tmp_path, flag):
    agent = KINDS["mixed"]()
    critics = {"q1": numpy_critic(agent.spec, agent.networks["q1"])}
    header, _ = c_header(agent.data.actor.numpy_policy(), "a policy", critics)
    assert "or 1 if an input is NaN or infinite, or gear or switches is not in its space; then a is NaN." in header
    (tmp_path / "policy.h").write_text(header)
    (tmp_path / "main.c").write_text(STATUS)
    subprocess.run(["cc", "-std=c99", flag, *STRICT, "main.c", "-o", "main", "-lm"], cwd=tmp_path, check=True)
    inside = [("gear", 0, -1), ("gear", 0, 1), ("switches", 0, 1), ("switches", 1, 2)]
    outside = [("gear", 0, number) for number in (-2, 2, 0.5, 1e10)]
    outside += [("switches", 0, -1), ("switches", 0, 2), ("switches", 1, 3), ("switches", 1, 1.5)]
    rows = []
    for name, index, number in inside + outside:
        parts = {leaf.name: np.zeros(leaf.shape, np.float32).ravel() for leaf in agent.spec.leaves}
        parts[name][index] = number
        rows.append(np.concatenate(list(parts.values())))
    given = np.array(rows).tobytes()
    found = subprocess.run([tmp_path / "main"], input=given, capture_output=True, check=True).stdout
    found = np.frombuffer(found, np.float32).reshape(len(rows), 4)
    np.testing.assert_array_equal(found[:, 0], [0] * len(inside) + [1] * len(outside))
    np.testing.assert_array_equal(np.isnan(found[:, 1:]), np.repeat(found[:, :1] == 1, 3, axis=1))


def test_the_prefix_comes_from_the_directory_and_must_be_an_identifier(agent, plain, header, tmp_path):
    text = (header / "policy.h").read_text()
    assert (
        "static inline int policy_3_td3_cheetah_v5_pi(" in text and "#ifndef POLICY_3_TD3_CHEETAH_V5_POLICY_H" in text
    )
    assert not re.search(r"\btfdpg_", text, re.IGNORECASE)
    for prefix in ("", "3d", "Car", "a-b", "a b", "é"):
        with pytest.raises(ValueError, match="`prefix` must be a C identifier"):
            convert(plain, tmp_path / "model", "c", prefix=prefix)
    with pytest.raises(ValueError, match='`weights_in_c_file` need format="c"'):
        convert(plain, tmp_path / "model", "onnx", prefix="car")
    with pytest.raises(ValueError, match="`prefix` does .*`format` is 'onnx'"):
        agent.export(tmp_path / "model", format="onnx", prefix="car")
    assert not (tmp_path / "model").exists()


def test_the_command_line_takes_a_prefix(plain, tmp_path):
    options = ["--format", "c", "--prefix", "car", "--weights-in-c-file"]
    assert cli.main(["convert", str(plain), str(tmp_path / "model"), *options]) == 0
    assert "car_pi(" in (tmp_path / "model/policy.h").read_text() and (tmp_path / "model/policy.c").exists()


CRITICS = {
    "twin": (KINDS["plain"], {"q1", "q2"}),
    "batch": (KINDS["batch"], {"q1", "q2"}),
    "blocks": (KINDS["blocks"], {"q1", "q2"}),
    "categorical, branches": (KINDS["mixed"], {"q1"}),
    "mixture": (lambda: tfdpg.D4PG("Pendulum-v1", **SMALL, critic="mixture", seed=1), {"q1"}),
    "control": (lambda: tfdpg.D4PG("Pendulum-v1", torso="control", v_min=-9, v_max=9, seed=1), {"q1"}),
    "recurrent": (KINDS["gru"], set()),
    "ACER": (KINDS["discrete"], set()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CRITICS)
def test_critics(tmp_path, kind):
    make, critics = CRITICS[kind]
    agent = make()
    directory = agent.export(tmp_path / "model", format="c")
    facts = json.loads((directory / "tfdpg.json").read_text())
    assert set(facts["signatures"]) == {"pi"} | critics
    assert all(signature["difference"] < 1e-5 for signature in facts["signatures"].values())
    text = (directory / "policy.h").read_text()
    assert {name for name in ("q1", "q2") if f"static inline float model_{name}(const float *x" in text} == critics


def test_a_changed_critic_is_refused(plain, monkeypatch, tmp_path):
    def changed(actor, title, critics, *options):
        critics["q2"].weights[-1] += 0.1  # the bias of the last layer
        return c_header(actor, title, critics, *options)

    monkeypatch.setattr("tfdpg.formats.c.c_header", changed)
    with pytest.raises(ExportError, match="signature 'q2' differs from the agent"):
        convert(plain, tmp_path / "model", "c")


def test_a_custom_policy_has_no_header(tmp_path):
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL | {"activation": "gelu"})
    with pytest.raises(ExportError, match="cannot be exported to C, because it is"):
        agent.export(tmp_path / "model", format="c")
    assert not (tmp_path / "model").exists()


def test_the_conversion_does_not_load_the_saved_model_in_python(plain, monkeypatch, tmp_path):
    monkeypatch.setattr(tf.saved_model, "load", None)  # calling it fails
    assert (KINDS["plain"]().export(tmp_path / "agent", format="c") / "policy.h").exists()
    assert (convert(plain, tmp_path / "model", "c") / "policy.h").exists()


def test_without_a_compiler_there_is_no_header(plain, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match="Expected one of cc, gcc, clang"):
        convert(plain, tmp_path / "model", "c")


def test_texts_of_a_file_cannot_become_code(plain, tmp_path):
    source = Source(plain)
    comments = 'x */ int attack(void); /*"\n#include <stdlib.h>'
    source.metadata |= {"agent": comments, "environment": {"id": comments}}
    c.write(source, tmp_path, None)
    text = (tmp_path / "policy.h").read_text()
    title = text.partition("*/")[0]
    assert "int attack_void" in title and "#include" not in title and text.count("int attack") == 2


def test_weights_of_another_width_are_refused():
    policy = KINDS["plain"]().data.actor.numpy_policy()
    first = policy.nodes[0]._replace(weights=((0, (2, 8)), (16, (8,))))
    policy.nodes = (first, *policy.nodes[1:])
    with pytest.raises(ValueError, match="A linear layer of 2 features receives 3"):
        c_header(policy, "a policy")
