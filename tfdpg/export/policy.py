"""An exported policy, loaded without the training code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.arguments import real, reject
from tfdpg.export.signatures import LEVELS
from tfdpg.export.verify import ExportError
from tfdpg.export.versions import latest_version, metadata
from tfdpg.spec import Spec


class Policy:
    """A policy and its critics from a SavedModel.

    Args:
        directory: a version's directory, with `saved_model.pb` and `tfdpg.json`.

    Attributes:
        directory: where it was loaded from.
        metadata: the content of `tfdpg.json`.
        spec: the spaces that it serves.

    Example:
        ```python
        policy = tfdpg.load("exported_models/td3-halfcheetah")
        action = policy(observation)
        value = policy.q1(observation, action)
        ```
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.metadata: dict[str, Any] = metadata(directory)
        try:
            self.spec = Spec.from_json(self.metadata)
            self._model = tf.saved_model.load(str(directory))
        except Exception as error:
            raise ExportError(f"The exported model in {directory} cannot be loaded: {error}") from error

    def __call__(self, observation: Any) -> np.ndarray:
        """The actions for one observation or a batch, in the environment's units and shape, float32.

        Those of a Discrete space are int64, one number or `[batch]`.
        """
        return self.spec.shaped(self._run("pi", observation)["pi"])

    def q1(self, observation: Any, action: Any) -> np.ndarray:
        """The first critic's values of actions in observations: one (a scalar) or a batch `[batch]`."""
        return self._value("q1", observation, action)

    def q2(self, observation: Any, action: Any) -> np.ndarray:
        """The second critic's values; the same as `q1`'s where there is only one."""
        return self._value("q2", observation, action)

    def z(self, observation: Any, action: Any, levels: float | Sequence[float] = LEVELS) -> dict[str, np.ndarray]:
        """The distribution of the return, of an agent with a distributional critic.

        Args:
            observation: one, or a batch.
            action: one, or a batch.
            levels: where the quantiles and the conditional values at risk are wanted, one or several in [0, 1].

        Returns:
            `atoms` and `probs`, or `weights`, `means` and `stddevs`; and `quantiles` and `cvar`, a number for each
            level. Each `[n]` for one observation, `[batch, n]` for a batch.

        Raises:
            ValueError: the model has no distributional critic, or a level is not in [0, 1].
        """
        if "z" not in self._model.signatures:
            raise ValueError(f"The model in {self.directory} has no signature `z`: its critic gives values only.")
        wanted = tf.constant([real("levels", level, 0, 1) for level in np.atleast_1d(levels).tolist()], tf.float32)
        return self._run("z", observation, a=self._actions(observation, action), levels=wanted)

    def v(self, observation: Any) -> np.ndarray:
        """The value of one observation (a scalar) or of a batch `[batch]`, of an agent with a stochastic policy.

        Raises:
            ValueError: the model's policy is deterministic.
        """
        self._need_stochastic("v")
        return self._run("v", observation)["v"]

    def distribution(self, observation: Any) -> dict[str, np.ndarray]:
        """The distribution of actions of a stochastic policy: `probs`, or `loc` and `scale` in the environment's units.

        Each `[n]` for one observation, `[batch, n]` for a batch.

        Raises:
            ValueError: the model's policy is deterministic.
        """
        self._need_stochastic("distribution")
        return self._run("distribution", observation)

    def __repr__(self) -> str:
        trained = self.metadata.get("environment") or {}
        where = f" on {trained['id']}" if trained else ""
        return f"<Policy of {self.metadata.get('agent')}{where}: {self.directory}>"

    def __reduce__(self) -> Any:
        return type(self), (self.directory,)

    def _need_stochastic(self, signature: str) -> None:
        if signature not in self._model.signatures:
            raise ValueError(f"The model in {self.directory} has no signature `{signature}`: its policy is no ACER's.")

    def _value(self, name: str, observation: Any, action: Any) -> np.ndarray:
        return self._run(name, observation, a=self._actions(observation, action))[name]

    def _actions(self, observation: Any, action: Any) -> tf.Tensor:
        """An action for each observation, as signatures take them."""
        spec, given = self.spec, np.asarray(action)
        first = next(iter(observation.values())) if spec.is_dict else observation
        lanes = () if spec.is_single(observation) else (len(first),)
        shapes = [(*lanes, *spec.act_shape), (*lanes, spec.act_dim), *([lanes] if spec.act_dim == 1 else [])]
        if given.shape not in shapes or given.dtype.kind not in "biuf":
            raise reject("action", f"numbers of shape {(*lanes, *spec.act_shape)}, as the observations want", action)
        if spec.actions is None:
            return tf.constant(given.astype(np.float32).reshape(-1, spec.act_dim))
        if not ((given >= spec.low) & (given <= spec.high) & (given == np.floor(given))).all():
            raise reject("action", f"in {spec.action_space}", action)
        return tf.constant(given.astype(np.int64).reshape(-1))

    def _run(self, name: str, observation: Any, **others: tf.Tensor) -> dict[str, np.ndarray]:
        outputs = self._model.signatures[name](**others, **self._inputs(observation))
        single = self.spec.is_single(observation)
        return {key: output.numpy()[0] if single else output.numpy() for key, output in outputs.items()}

    def _inputs(self, observation: Any) -> dict[str, tf.Tensor]:
        arrays = self.spec.unpack(self.spec.pack(observation))
        return {name: tf.constant(values) for name, values in arrays.items()}


def load(directory: str | Path) -> Policy:
    """Loads an exported policy; it needs no training code and no agent class.

    Args:
        directory: a model directory, of which the newest version is taken, or a version's directory.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: a file of it is damaged, missing, changed or of another export.
    """
    return Policy(latest_version(directory))


def describe(directory: str | Path) -> str:
    """What an exported model holds, for people: its signatures with shapes and types, and `tfdpg.json`."""
    policy = load(directory)
    lines = [str(policy.directory), "signatures:"]
    for name, signature in policy._model.signatures.items():
        _, inputs = signature.structured_input_signature
        taken = ", ".join(
            _describe_tensor(key, inputs[key]) for key in sorted(inputs, key=lambda key: (key in ("a", "levels"), key))
        )
        given = ", ".join(_describe_tensor(key, spec) for key, spec in signature.structured_outputs.items())
        lines.append(f"  {name}({taken}) -> {given}")
    lines += [f"observation space: {policy.spec.observation_space}", f"action space: {policy.spec.action_space}"]
    skipped = ("observation_space", "action_space", "format", "files", "sha256")
    lines += [f"{key}: {json.dumps(value)}" for key, value in policy.metadata.items() if key not in skipped]
    return "\n".join(lines)


def _describe_tensor(name: str, spec: tf.TensorSpec) -> str:
    if spec.shape.rank is None:
        return f"{name}: {spec.dtype.name}[levels] or [batch, levels]"
    shape = ", ".join("batch" if i == 0 else "any" if size is None else str(size) for i, size in enumerate(spec.shape))
    return f"{name}: {spec.dtype.name}[{shape}]"
