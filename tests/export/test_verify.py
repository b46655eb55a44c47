"""The tolerances of the verification."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import AGENTS
from tests.environments import Counter
from tests.export.runtimes import verify
from tfdpg.export import verify as verification
from tfdpg.exported import ExportError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose signature returns its input."""
    module = tf.Module()
    path = tmp_path_factory.mktemp("models") / "model"
    module.pi = tf.function(lambda x: {"a": x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(module, str(path), signatures={"pi": module.pi})
    return path


def checked(model, values, difference, in_half_precision=False):
    """Verify the model against references that are larger by `difference` for the first value."""
    more = np.zeros(len(values), np.float32)
    more[0] = difference
    cases = {"pi": [{"x": np.array(values, np.float32)}]}
    verify(model, {"pi": lambda inputs: {"a": inputs["x"] + more}}, cases, in_half_precision)


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, -6.0], [0.0, 900.0], [0.0, 6.0, np.inf]], ids=str)
@pytest.mark.parametrize("half, share", [(False, 1e-5), (True, 2e-2)], ids=["single", "half"])
def test_values_near_0_are_compared_on_the_scale_of_the_largest(model, values, half, share):
    scale = max(abs(value) for value in values if np.isfinite(value))
    checked(model, values, 0.8 * share * scale, half)
    with pytest.raises(ExportError, match="'pi' differs from the agent"):
        checked(model, values, 1.25 * share * scale, half)


def test_values_of_less_than_1_are_compared_as_if_1_were_the_largest(model):
    checked(model, [0.0, 0.01], 0.8e-5)
    with pytest.raises(ExportError, match="'pi' differs from the agent"):
        checked(model, [0.0, 0.01], 1.25e-5)


def test_exports_are_verified_in_float32(tmp_path, monkeypatch):
    """The rounding errors of TensorFloat-32, with which a GPU multiplies matrices by default, are too large."""
    is_fast = tf.config.experimental.tensor_float_32_execution_enabled
    compare = verification.compare
    states = []
    monkeypatch.setattr(verification, "compare", lambda *given: states.append(is_fast()) or compare(*given))
    assert is_fast()
    version = AGENTS["DDPG"](Counter()).export(tmp_path / "model")
    assert states and not any(states) and is_fast()
    states.clear()
    tfdpg.export.convert(version, tmp_path / "onnx", "onnx")
    assert states and not any(states) and is_fast()
