"""Exported policies, loaded without the training code. TensorFlow is imported when a signature is first called."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.acting import GreedyPolicy, RecurrentSpec, greedy_forward, load_numpy_policy
from tfdpg.arguments import real, reject
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.exported.safety import UnsafeModelError, loadable
from tfdpg.exported.versions import ExportError, latest_version, metadata
from tfdpg.spec import Packed, Spec

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The levels at which the signature `z` is verified, and the default levels of `Policy.z`."""
NUMPY_POLICY = "policy.npz"
"""The file with the weights of built-in policies, beside the SavedModel; see `tfdpg.acting.save_numpy_policy`."""
REQUIREMENTS = {
    "pi_and_q": "a policy without recurrent layers",
    "z": "a distributional critic",
    "distribution": "a stochastic policy (ACER)",
}
"""What a model must have to be exported with a signature."""


class Policy(GreedyPolicy):
    """A policy and its critics from a SavedModel, which is loaded, with TensorFlow, at the first call.

    `tfdpg.load` makes it. A recurrent policy keeps its recurrent state between calls, one for each row of the batch.
    Call `reset` or `end` when episodes end, and `received` after each step if the policy receives the previous reward.
    The critics of a recurrent agent take whole sequences from an episode's start, `[time, ...]` or
    `[batch, time, ...]`.

    A pickled or copied policy holds the path of the directory, and begins in the initial recurrent state. Pickle
    `policy.numpy()` to keep the recurrent state, or where the other process does not see the directory.

    Args:
        directory: the directory of a version, with `saved_model.pb` and `tfdpg.json`.
        trusted: whether to load the SavedModel without checking its operations.

    Raises:
        FileNotFoundError: there is no `tfdpg.json`.
        ExportError: a file is damaged, missing, changed or of another export.

    Attributes:
        directory: the directory of the version.
        trusted: whether the SavedModel is loaded without checking its operations.
        metadata: the content of `tfdpg.json`.
        spec: the spaces.
        recurrent_spec: describes the recurrent state; None for a policy without recurrent layers.

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
        super().__init__(spec, recurrent_spec, functools.partial(step, spec, recurrent_spec, self._call))

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
            if found != (expected := self._expected_tensors()):
                raise ExportError(
                    f"the inputs and outputs of `pi` must be those of tfdpg.json. Expected: {expected}. "
                    f"Received: {found}"
                )
            return model
        except UnsafeModelError:
            raise
        except Exception as error:
            raise _unloadable(self.directory, error) from error

    def _expected_tensors(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the types and shapes of the inputs and the outputs of `pi`, by name, without the batch axis."""
        discrete = self.spec.actions is not None
        inputs = {leaf.name: (leaf.dtype, leaf.shape) for leaf in self.spec.leaves}
        outputs: dict[str, Any] = {"pi": ("int64", ()) if discrete else ("float32", (self.spec.act_dim,))}
        if self.recurrent_spec is not None:
            inputs |= _shapes(named_recurrent_inputs(self.recurrent_spec, self.recurrent_spec.initial_state(1)))
            outputs |= {name: ("float32", (width,)) for name, width in self.recurrent_spec.parts}
        return inputs, outputs

    def numpy(self) -> GreedyPolicy:
        """Return the policy in NumPy, without the critics and TensorFlow, in its initial recurrent state.

        Returns:
            An object that is called like this one, with the methods `reset`, `end` and `received`. It can be pickled
            and copied with `copy.deepcopy`; the copy keeps the recurrent state.

        Raises:
            ValueError: the policy is not a built-in network in float32.
            ExportError: `policy.npz` is damaged.
        """
        if not (self.directory / NUMPY_POLICY).exists():
            raise ValueError(
                f"The model in {self.directory} has no {NUMPY_POLICY}, because its policy is not a built-in network in "
                "float32."
            )
        try:
            actor = load_numpy_policy(self.directory / NUMPY_POLICY, self.spec, self.recurrent_spec)
        except Exception as error:
            raise _unloadable(self.directory, error) from error
        forward = greedy_forward(self.spec, self.recurrent_spec, actor)
        return GreedyPolicy(self.spec, self.recurrent_spec, forward)

    @functools.cached_property
    def _values(self) -> dict[str, bool]:
        """The signatures whose output is a value, and whether they take an action."""
        facts = self.metadata["signatures"].items()
        tensors = {name: [[one["name"] for one in each[key]] for key in ("inputs", "outputs")] for name, each in facts}
        return {name: "a" in inputs for name, (inputs, outputs) in tensors.items() if is_value(name, outputs)}

    @property
    def critics(self) -> tuple[str, ...]:
        """The names of the critics, such as `q1` and `q2`; `policy.q1` is `policy.value` for the first of these."""
        return tuple(name for name, takes_action in self._values.items() if takes_action)

    def value(self, name: str, observation: Any, action: Any = None, reward: Any = None) -> np.ndarray:
        """Return a critic's values of actions: one value (a scalar) or a batch `[batch]`.

        For a recurrent agent, return the values of the steps of a sequence from an episode's start, `[time]`, or of a
        batch of sequences, `[batch, time]`. `policy.q1(observation, action)` is short for
        `policy.value("q1", observation, action)`. An agent with one critic has the same values under `q2`. The values
        of observations of a stochastic policy (ACER) are `policy.v(observation)`.

        Args:
            name: the name of the critic, one of `critics`, or of a value of observations.
            observation: an observation, a batch, or for a recurrent agent a sequence or a batch of sequences.
            action: the action for each observation, in the environment's units; ignored for a value of observations.
            reward: the reward of each step, for recurrent agents that receive previous rewards.

        Raises:
            ValueError: an argument has another shape, a Discrete action is not in the action space, or there is no such
                value.
            ExportError: the model cannot be loaded, or is not safe.
        """
        if name not in self._values:
            raise reject("name", f"one of {', '.join(self._values) or 'no values'}", name)
        return self._outputs(name, observation, action, reward)[name]

    def __getattr__(self, name: str) -> Callable[..., np.ndarray]:
        """Return `value` for the critic of that name."""
        if name.startswith("_") or "metadata" not in vars(self) or name not in self._values:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return functools.partial(self.value, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def pi_and_q(self, observation: Any) -> tuple[np.ndarray, ...]:
        """Return the action of `policy(observation)` and its values by each critic, in one call: pi, q1, q2, ...

        Args:
            observation: an observation or a batch.

        Returns:
            The action or actions, and the values, each a scalar or `[batch]`, in the order of `critics`. A single
            critic's value is there twice, as `q1` and `q2`.

        Raises:
            ValueError: the policy is recurrent, so that its critics take sequences.
        """
        outputs = self._outputs("pi_and_q", observation)
        return self.spec.shaped(outputs["pi"]), *(outputs[name] for name in self.critics)

    def z(
        self, observation: Any, action: Any, levels: float | Sequence[float] = LEVELS, reward: Any = None
    ) -> dict[str, np.ndarray]:
        """Return the distribution of the return, for an agent with a distributional critic.

        Args:
            observation: an observation, a batch, or for a recurrent agent a sequence or a batch of sequences.
            action: the action for each observation, in the environment's units.
            levels: the levels of the quantiles and of the conditional values at risk, one or several in [0, 1].
            reward: the reward of each step, for recurrent agents that receive previous rewards.

        Returns:
            `atoms` and `probs`, or `weights`, `means` and `stddevs`; and `quantiles` and `cvar`, a number for each
            level. Each `[n]` for one observation, `[batch, n]` for a batch, and `[time, n]` or `[batch, time, n]` for
            sequences of a recurrent agent.

        Raises:
            ValueError: the model has no distributional critic, or a level is not in [0, 1].
        """
        levels = [real("levels", level, 0, 1) for level in np.atleast_1d(levels).tolist()]
        return self._outputs("z", observation, action, reward, levels=np.array([levels], np.float32))

    def distribution(self, observation: Any) -> dict[str, np.ndarray]:
        """Return a stochastic policy's distribution of actions: `probs`, or `loc` and `scale` in the action's units.

        Args:
            observation: an observation or a batch.

        Returns:
            `probs`, the probability of each action of a Discrete space; or `loc` and `scale`, the means and standard
            deviations of a Gaussian. Each is `[n]` for one observation and `[batch, n]` for a batch.

        Raises:
            ValueError: the policy is deterministic.
        """
        return self._outputs("distribution", observation)

    def __repr__(self) -> str:
        trained = self.metadata.get("environment") or {}
        where = f" on {trained['id']}" if trained else ""
        return f"<Policy of {self.metadata.get('agent')}{where}: {self.directory}>"

    def __reduce__(self) -> Any:
        return type(self), (self.directory, self.trusted)

    def _outputs(
        self, name: str, observation: Any, action: Any = None, reward: Any = None, **others: Any
    ) -> dict[str, np.ndarray]:
        """Call a signature on observations, or on sequences of observations if the policy is recurrent.

        Args:
            name: the signature.
            observation: see `value`.
            action: see `value`; ignored if the signature takes no action.
            reward: see `value`.
            others: further inputs, by name.
        """
        if name not in self._model.signatures:
            needed = f", which needs {REQUIREMENTS[name]}" if name in REQUIREMENTS else ""
            raise ValueError(
                f"The model in {self.directory} has no signature `{name}`{needed}. Its signatures are "
                f"{', '.join(self._model.signatures)}."
            )
        if self.recurrent_spec is None:
            packed = self.spec.pack(observation)
            leading = () if self.spec.is_single(observation) else (len(packed[0]),)
            is_batch = bool(leading)
        else:
            packed, leading = self.spec.pack_steps(observation)
            is_batch = len(leading) == 2
        inputs = self.spec.unpack(packed)
        if "a" in self._model.signatures[name].structured_input_signature[1]:
            inputs["a"] = self._actions("action", action, leading)
        if self.recurrent_spec is not None and self.recurrent_spec.uses_reward:
            if np.shape(reward) != leading:
                raise reject("reward", f"numbers of shape {leading}, one for each step", reward)
            inputs["r"] = np.asarray(reward, np.float32).reshape(-1)
        elif reward is not None:
            raise ValueError(f"`reward` is for policies that receive previous rewards. Received a reward for {self!r}")
        axes = leading if is_batch else (1, *leading)
        inputs = {key: values.reshape(*axes, *values.shape[1:]) for key, values in inputs.items()}
        outputs = self._call(name, inputs | others)
        return outputs if is_batch else {key: values[0] for key, values in outputs.items()}

    def _call(self, name: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        signature = self._model.signatures[name]
        import tensorflow as tf

        outputs = signature(**{key: tf.constant(values) for key, values in inputs.items()})
        return {key: values.numpy() for key, values in outputs.items()}


def is_value(name: str, outputs: Collection[str]) -> bool:
    """Return whether a signature computes values: its output has its own name, and is not the action.

    Args:
        name: the name of the signature.
        outputs: the names of its outputs.
    """
    return name in outputs and name != "pi"


def _shapes(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (each.dtype.name, tuple(each.shape[1:])) for name, each in arrays.items()}


def _unloadable(directory: Path, error: Exception) -> ExportError:
    return ExportError(f"The exported model in {directory} cannot be loaded: {error}")


def load(directory: str | Path, *, trusted: bool = False) -> Policy:
    """Load an exported policy; this needs neither the training code nor the agent's class.

    Before TensorFlow first loads the SavedModel, all of its operations are checked. If one of them could do anything
    but compute, such as read or write files, the first call of the policy raises an `ExportError`.

    Args:
        directory: a model directory, whose newest version is loaded, or the directory of a version.
        trusted: whether to load the SavedModel without checking its operations.

    Returns:
        The policy.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: a file of the model is damaged, missing, changed or of another export.

    Example:
        ```python
        policy = tfdpg.load("exported_models/td3-halfcheetah")
        action = policy(observation)
        ```
    """
    return Policy(latest_version(directory), trusted)


def named_recurrent_inputs(recurrent_spec: RecurrentSpec | None, recurrent_inputs: Any) -> dict[str, Any]:
    """Split the recurrent inputs of a policy, `[batch, n]`, into the inputs of `pi` by name; none without a state."""
    if recurrent_spec is None:
        return {}
    names = {"a_before": recurrent_inputs[:, : recurrent_spec.spec.act_dim]} if recurrent_spec.uses_action else {}
    start = recurrent_spec.previous_width
    if recurrent_spec.uses_reward:
        names["r_before"] = recurrent_inputs[:, start - 1]
    for name, width in recurrent_spec.parts:
        names[name] = recurrent_inputs[:, start : start + width]
        start += width
    return names


def recurrent_metadata(recurrent_spec: RecurrentSpec) -> dict[str, Any]:
    """Describe a recurrent policy for `tfdpg.json`: its inputs at each step, and the parts of its state in order."""
    remembers = ["observation", *["action"] * recurrent_spec.uses_action, *["reward"] * recurrent_spec.uses_reward]
    return {"remembers": remembers, "state": [{"name": name, "shape": [width]} for name, width in recurrent_spec.parts]}


def recurrent_spec_of(spec: Spec, metadata: Mapping[str, Any]) -> RecurrentSpec | None:
    """Read what `recurrent_metadata` wrote; None for a policy without recurrent layers."""
    if "state" not in metadata:
        return None
    remembers = metadata["remembers"]
    parts = [(part["name"], *part["shape"]) for part in metadata["state"]]
    if not all(_is_identifier(name) and isinstance(width, int) and width > 0 for name, width in parts):
        raise ValueError(f"`state` must consist of identifiers and positive integers as widths. Received: {parts}")
    return RecurrentSpec(spec, "action" in remembers, "reward" in remembers, tuple(parts), stored=False)


def _is_identifier(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isidentifier()


def packed_inputs(spec: Spec, recurrent_spec: RecurrentSpec | None, inputs: Mapping[str, np.ndarray]) -> Packed:
    """Pack the inputs of `pi`, by name, for a forward pass (see `tfdpg.acting.ForwardPass`)."""
    packed = spec.pack({leaf.name: inputs[leaf.name] for leaf in spec.leaves} if spec.is_dict else inputs["x"])
    if recurrent_spec is None:
        return packed
    names = named_recurrent_inputs(recurrent_spec, recurrent_spec.initial_state(0))
    return (*packed, np.concatenate([inputs[name].reshape(len(packed[0]), -1) for name in names], axis=1))


def step(
    spec: Spec, recurrent_spec: RecurrentSpec | None, run: Callable[[str, Any], Mapping[str, Any]], packed: Packed
) -> np.ndarray:
    """Compute the forward pass of a policy (see `tfdpg.acting.ForwardPass`) by its signature `pi`.

    Args:
        spec: the spaces.
        recurrent_spec: describes the recurrent state; None for a policy without one.
        run: computes a signature, from its name and its inputs by name.
        packed: observations, and the recurrent inputs if there are any.
    """
    outputs = run("pi", spec.unpack(packed) | named_recurrent_inputs(recurrent_spec, packed[-1]))
    if recurrent_spec is None:
        return outputs["pi"]
    pi = outputs["pi"].reshape(-1, spec.act_dim)
    return np.concatenate([pi, *(outputs[name] for name, _ in recurrent_spec.parts)], axis=1, dtype=np.float32)
