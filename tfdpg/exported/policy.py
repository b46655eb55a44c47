"""An exported policy, loaded without the training code."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.acting import GreedyPolicy, load_numpy_policy
from tfdpg.arguments import real, reject
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.exported.recurrent import named_recurrent_inputs, recurrent_spec_of, step
from tfdpg.exported.safety import UnsafeModelError, loadable
from tfdpg.exported.versions import ExportError, latest_version, metadata
from tfdpg.spec import Packed, Spec

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Where the signature `z` is verified, and what `Policy.z` asks for by itself."""
NUMPY_POLICY = "policy.npz"
"""The file that stock policies have beside the SavedModel; see `tfdpg.acting.save_numpy_policy`."""


class Policy(GreedyPolicy):
    """A policy and its critics from a SavedModel, which is loaded, with TensorFlow, when it is first asked.

    The critics of one with a memory judge whole sequences from an episode's start, `[time, ...]` or
    `[batch, time, ...]`.

    Args:
        directory: a version's directory, with `saved_model.pb` and `tfdpg.json`.
        trusted: see `load`.

    Attributes:
        directory: where it was loaded from.
        trusted: whether its SavedModel is loaded whatever it does.
        metadata: the content of `tfdpg.json`.
        spec: the spaces that it serves.
        recurrent_spec: what it recalls of an episode; None where it has no memory.

    Example:
        ```python
        policy = tfdpg.load("exported_models/td3-halfcheetah")
        action = policy(observation)
        value = policy.q1(observation, action)
        ```
    """

    def __init__(self, directory: Path, trusted: bool = False):
        self.directory = directory
        self.trusted = trusted
        self.metadata: dict[str, Any] = metadata(directory)
        try:
            spec = Spec.from_json(self.metadata)
            recurrent_spec = recurrent_spec_of(spec, self.metadata)
        except Exception as error:
            raise _unloadable(directory, error) from error
        super().__init__(spec, recurrent_spec, self._step)

    @functools.cached_property
    def _model(self) -> Any:
        """The SavedModel."""
        import_tensorflow()
        import tensorflow as tf

        try:
            with loadable(self.directory, self.trusted) as path:
                model = tf.saved_model.load(path)
            pi = model.signatures["pi"]
            found = _shapes(pi.structured_input_signature[1]), _shapes(pi.structured_outputs)
            if found != (wanted := self._expected_tensors()):
                raise ExportError(f"`pi` must take and give {wanted}, as tfdpg.json says. Received: {found}")
            return model
        except UnsafeModelError:
            raise
        except Exception as error:
            raise _unloadable(self.directory, error) from error

    def _expected_tensors(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The types and shapes of the inputs and the outputs of `pi`, by name, without the batch."""
        discrete = self.spec.actions is not None
        inputs = {leaf.name: (leaf.dtype, leaf.shape) for leaf in self.spec.leaves}
        outputs: dict[str, Any] = {"pi": ("int64", ()) if discrete else ("float32", (self.spec.act_dim,))}
        if self.recurrent_spec is not None:
            inputs |= _shapes(named_recurrent_inputs(self.recurrent_spec, self.recurrent_spec.initial_state(1)))
            outputs |= {name: ("float32", (width,)) for name, width in self.recurrent_spec.parts}
        return inputs, outputs

    def numpy(self) -> GreedyPolicy:
        """The policy alone, computed in NumPy, for a process without TensorFlow; it begins anew.

        Raises:
            ValueError: its network is not a stock one.
            ExportError: `policy.npz` is damaged.
        """
        if not (self.directory / NUMPY_POLICY).exists():
            raise ValueError(
                f"The model in {self.directory} has no {NUMPY_POLICY}: its policy is no stock network in float32."
            )
        try:
            actor = load_numpy_policy(self.directory / NUMPY_POLICY, self.spec, self.recurrent_spec)
        except Exception as error:
            raise _unloadable(self.directory, error) from error
        return GreedyPolicy(self.spec, self.recurrent_spec, actor.greedy)

    def q1(self, observation: Any, action: Any, reward: Any = None) -> np.ndarray:
        """The first critic's values of actions in observations: one (a scalar) or a batch `[batch]`.

        Of one with a memory: of the steps of a sequence from an episode's start, `[time]`, or of a batch of them,
        `[batch, time]`; if rewards are remembered, `reward` are those of the steps.
        """
        return self._critic_outputs("q1", observation, action, reward)["q1"]

    def q2(self, observation: Any, action: Any, reward: Any = None) -> np.ndarray:
        """The second critic's values; the same as `q1`'s where there is only one."""
        return self._critic_outputs("q2", observation, action, reward)["q2"]

    def pi_and_q(self, observation: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The action as `policy(observation)` gives it, and `q1` and `q2` of it, in one call.

        Args:
            observation: one, or a batch.

        Returns:
            The action or actions, and two values, each a scalar or `[batch]`; the same twice where there is one critic.

        Raises:
            ValueError: the policy has a memory, whose critics judge sequences, or the model is from before `pi_and_q`.
        """
        if "pi_and_q" not in self._model.signatures:
            why = (
                "it is older: export it again"
                if self.recurrent_spec is None
                else "its critics judge sequences: see `q1`"
            )
            raise ValueError(f"The model in {self.directory} has no signature `pi_and_q`, since {why}.")
        outputs = self._run("pi_and_q", observation)
        return self.spec.shaped(outputs["pi"]), outputs["q1"], outputs["q2"]

    def z(
        self, observation: Any, action: Any, levels: float | Sequence[float] = LEVELS, reward: Any = None
    ) -> dict[str, np.ndarray]:
        """The distribution of the return, of an agent with a distributional critic.

        Args:
            observation: one, or a batch.
            action: one, or a batch.
            levels: where the quantiles and the conditional values at risk are wanted, one or several in [0, 1].
            reward: see `q1`.

        Returns:
            `atoms` and `probs`, or `weights`, `means` and `stddevs`; and `quantiles` and `cvar`, a number for each
            level. Each `[n]` for one observation, `[batch, n]` for a batch; with a memory `[time, n]` for a sequence.

        Raises:
            ValueError: the model has no distributional critic, or a level is not in [0, 1].
        """
        if "z" not in self._model.signatures:
            raise ValueError(f"The model in {self.directory} has no signature `z`: its critic gives values only.")
        wanted = np.array([real("levels", level, 0, 1) for level in np.atleast_1d(levels).tolist()], np.float32)
        return self._critic_outputs("z", observation, action, reward, levels=wanted[None])

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
        return type(self), (self.directory, self.trusted)

    def _need_stochastic(self, signature: str) -> None:
        if signature not in self._model.signatures:
            raise ValueError(f"The model in {self.directory} has no signature `{signature}`: its policy is no ACER's.")

    def _step(self, packed: Packed) -> np.ndarray:
        """The policy's forward pass (see `tfdpg.acting.ForwardPass`)."""
        return step(self.spec, self.recurrent_spec, self._call, packed)

    def _critic_outputs(
        self, name: str, observation: Any, action: Any, reward: Any, **others: Any
    ) -> dict[str, np.ndarray]:
        """What a critic says of actions in observations, or of sequences of them."""
        if self.recurrent_spec is None:
            packed = self.spec.pack(observation)
            given = () if self.spec.is_single(observation) else (len(packed[0]),)
        else:
            packed, given = self.spec.pack_steps(observation)
        is_batch = len(given) == (1 if self.recurrent_spec is None else 2)
        inputs = self.spec.unpack(packed) | {"a": self._actions("action", action, given)}
        if self.recurrent_spec is not None and self.recurrent_spec.uses_reward:
            if np.shape(reward) != given:
                raise reject("reward", f"numbers of shape {given}, those of the steps", reward)
            inputs["r"] = np.asarray(reward, np.float32).reshape(-1)
        elif reward is not None:
            raise ValueError(f"`reward` is for policies that remember rewards. Received one: {self!r}")
        leading = given if is_batch else (1, *given)
        inputs = {key: values.reshape(*leading, *values.shape[1:]) for key, values in inputs.items()}
        outputs = self._call(name, inputs | others)
        return outputs if is_batch else {key: values[0] for key, values in outputs.items()}

    def _run(self, name: str, observation: Any) -> dict[str, np.ndarray]:
        outputs = self._call(name, self.spec.unpack(self.spec.pack(observation)))
        return {key: values[0] if self.spec.is_single(observation) else values for key, values in outputs.items()}

    def _call(self, name: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        signature = self._model.signatures[name]
        import tensorflow as tf

        outputs = signature(**{key: tf.constant(values) for key, values in inputs.items()})
        return {key: values.numpy() for key, values in outputs.items()}


def _shapes(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (each.dtype.name, tuple(each.shape[1:])) for name, each in arrays.items()}


def _unloadable(directory: Path, error: Exception) -> ExportError:
    return ExportError(f"The exported model in {directory} cannot be loaded: {error}")


def load(directory: str | Path, *, trusted: bool = False) -> Policy:
    """Loads an exported policy; it needs no training code and no agent class.

    Before TensorFlow first loads the SavedModel, all of its operations are checked. One that could do anything but
    compute, such as read or write files, is refused with an `ExportError` when the policy is first called.

    Args:
        directory: a model directory, of which the newest version is taken, or a version's directory.
        trusted: whether to load the SavedModel whatever its operations do.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: a file of it is damaged, missing, changed or of another export.
    """
    return Policy(latest_version(directory), trusted)
