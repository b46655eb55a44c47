"""An exported policy, loaded without the training code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.acting import LaneMemory, Memory, NoMemory
from tfdpg.arguments import real, reject
from tfdpg.export.memory import named, recall_of
from tfdpg.export.signatures import LEVELS
from tfdpg.export.verify import ExportError
from tfdpg.export.versions import latest_version, metadata
from tfdpg.spec import Packed, Spec


class Policy:
    """A policy and its critics from a SavedModel.

    One with a memory (`recurrent`) carries it from call to call, for each row of a batch, and begins anew where their
    number changes. It is told when episodes end (`reset`), and of rewards, if it remembers them (`received`); its
    critics judge whole sequences from an episode's start, `[time, ...]` or `[batch, time, ...]`.

    Args:
        directory: a version's directory, with `saved_model.pb` and `tfdpg.json`.

    Attributes:
        directory: where it was loaded from.
        metadata: the content of `tfdpg.json`.
        spec: the spaces that it serves.
        recall: what it recalls of an episode; None where it has no memory.

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
            self.recall = recall_of(self.spec, self.metadata)
            self._model = tf.saved_model.load(str(directory))
        except Exception as error:
            raise ExportError(f"The exported model in {directory} cannot be loaded: {error}") from error
        self._memory: Memory = NoMemory() if self.recall is None else LaneMemory(self.recall)
        self._acted = np.zeros(0, bool)

    def __call__(self, observation: Any, action_before: Any = None) -> np.ndarray:
        """The actions for one observation or a batch, in the environment's units and shape, float32.

        Those of a Discrete space are int64, one number or `[batch]`.

        Args:
            observation: one, or a batch.
            action_before: what was done after the last call, where that was not what it gave, for a policy that
                remembers actions; where an episode begins it is left aside.
        """
        packed, single = self.spec.pack(observation), self.spec.is_single(observation)
        if len(self._acted) != len(packed[0]):
            self._acted = np.zeros(len(packed[0]), bool)
        if action_before is not None:
            self._correct(self._actions("action_before", action_before, () if single else self._acted.shape))
        actions = self.spec.shaped(self._memory.keep(self._memory.ask(self._step, packed)))
        self._acted[:] = True
        return actions[0] if single else actions

    def received(self, reward: Any) -> None:
        """Tells a policy that remembers rewards what the last actions were rewarded with, a number or `[batch]`."""
        if np.shape(reward) not in ((), self._acted.shape):
            raise reject("reward", f"of shape {self._acted.shape}, as the last observations", reward)
        self._memory.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Begins anew in the lanes (rows of a batch) whose episode ended, bool `[batch]`."""
        self.reset(np.asarray(ended, bool))

    def reset(self, lanes: Any = None) -> None:
        """Begins anew in all lanes (rows of a batch), or in some, by their numbers or a mask."""
        ended = np.zeros(len(self._acted), bool)
        try:
            ended[slice(None) if lanes is None else lanes] = True
        except IndexError as error:
            raise reject("lanes", f"numbers below {len(ended)}, or a mask of so many", lanes) from error
        self._acted[ended] = False
        self._memory.end(ended)

    def q1(self, observation: Any, action: Any, reward: Any = None) -> np.ndarray:
        """The first critic's values of actions in observations: one (a scalar) or a batch `[batch]`.

        Of one with a memory: of the steps of a sequence from an episode's start, `[time]`, or of a batch of them,
        `[batch, time]`; if rewards are remembered, `reward` are those of the steps.
        """
        return self._judge("q1", observation, action, reward)["q1"]

    def q2(self, observation: Any, action: Any, reward: Any = None) -> np.ndarray:
        """The second critic's values; the same as `q1`'s where there is only one."""
        return self._judge("q2", observation, action, reward)["q2"]

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
            why = "it is older: export it again" if self.recall is None else "its critics judge sequences: see `q1`"
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
        wanted = tf.constant([real("levels", level, 0, 1) for level in np.atleast_1d(levels).tolist()], tf.float32)
        return self._judge("z", observation, action, reward, levels=wanted)

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

    def _step(self, packed: Packed) -> np.ndarray:
        """The policy's forward pass (see `tfdpg.acting.ForwardPass`)."""
        inputs = self.spec.unpack(packed)
        if self.recall is None:
            return self._call("pi", inputs)["pi"]
        outputs = self._call("pi", inputs | named(self.recall, packed[-1]))
        return np.concatenate([outputs["pi"], *(outputs[name] for name, _ in self.recall.parts)], axis=1)

    def _correct(self, executed: np.ndarray) -> None:
        """Remembers other actions than it gave, in the lanes where it gave some."""
        if self.recall is None or not self.recall.action:
            raise ValueError(f"`action_before` is for policies that remember actions. Received one: {self!r}")
        if self._acted.any():
            own = named(self.recall, self._memory.state)["a_before"]
            self._memory.keep(np.where(self._acted[:, None], executed, own))

    def _judge(self, name: str, observation: Any, action: Any, reward: Any, **others: Any) -> dict[str, np.ndarray]:
        """What a critic says of actions in observations, or of sequences of them."""
        if self.recall is None:
            packed = self.spec.pack(observation)
            given = () if self.spec.is_single(observation) else (len(packed[0]),)
        else:
            packed, given = self.spec.pack_steps(observation)
        is_batch = len(given) == (1 if self.recall is None else 2)
        inputs = self.spec.unpack(packed) | {"a": self._actions("action", action, given)}
        if self.recall is not None and self.recall.reward:
            if np.shape(reward) != given:
                raise reject("reward", f"numbers of shape {given}, those of the steps", reward)
            inputs["r"] = np.asarray(reward, np.float32).reshape(-1)
        elif reward is not None:
            raise ValueError(f"`reward` is for policies that remember rewards. Received one: {self!r}")
        leading = given if is_batch else (1, *given)
        inputs = {key: values.reshape(*leading, *values.shape[1:]) for key, values in inputs.items()}
        outputs = self._call(name, inputs | others)
        return outputs if is_batch else {key: values[0] for key, values in outputs.items()}

    def _actions(self, name: str, action: Any, leading: tuple[int, ...]) -> np.ndarray:
        """An action for each observation, as signatures take them: a row, or an entry if Discrete."""
        spec, given = self.spec, np.asarray(action)
        shapes = [(*leading, *spec.act_shape), (*leading, spec.act_dim), *([leading] if spec.act_dim == 1 else [])]
        if given.shape not in shapes or given.dtype.kind not in "biuf":
            raise reject(name, f"numbers of shape {(*leading, *spec.act_shape)}, as the observations want", action)
        if spec.actions is None:
            return given.astype(np.float32).reshape(-1, spec.act_dim)
        if not ((given >= spec.low) & (given <= spec.high) & (given == np.floor(given))).all():
            raise reject(name, f"in {spec.action_space}", action)
        return given.astype(np.int64).reshape(-1)

    def _run(self, name: str, observation: Any) -> dict[str, np.ndarray]:
        outputs = self._call(name, self.spec.unpack(self.spec.pack(observation)))
        return {key: values[0] if self.spec.is_single(observation) else values for key, values in outputs.items()}

    def _call(self, name: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        outputs = self._model.signatures[name](**{key: tf.constant(values) for key, values in inputs.items()})
        return {key: values.numpy() for key, values in outputs.items()}


def load(directory: str | Path) -> Policy:
    """Loads an exported policy; it needs no training code and no agent class.

    Args:
        directory: a model directory, of which the newest version is taken, or a version's directory.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: a file of it is damaged, missing, changed or of another export.
    """
    return Policy(latest_version(directory))
