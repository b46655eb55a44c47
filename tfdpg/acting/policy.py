"""The greedy policy of an export: observations in, actions of the environment out. NumPy only."""

from typing import Any

import numpy as np

from tfdpg.acting.recurrent import ForwardPass, NoState, PolicyState, RecurrentSpec, RecurrentState
from tfdpg.arguments import reject
from tfdpg.spec import Packed, Spec


class GreedyPolicy:
    """The greedy policy of an export.

    A recurrent policy keeps its recurrent state between calls, one for each row of the batch; the state is reset when
    the batch size changes. Call `reset` when episodes end, and `received` with the rewards if the policy receives the
    previous reward.

    The policy can be pickled and copied with `copy.deepcopy`. The copy returns exactly the same actions, and keeps the
    recurrent state: it continues the episode where the original was. Call `reset` to begin a new one.

    Args:
        spec: the spaces of the environment.
        recurrent_spec: the recurrent inputs; None for a policy that is not recurrent.
        forward: maps packed observations to greedy actions, as in the exported model.

    Attributes:
        spec: the spaces of the environment.
        recurrent_spec: the recurrent inputs; None for a policy that is not recurrent.
    """

    def __init__(self, spec: Spec, recurrent_spec: RecurrentSpec | None, forward: ForwardPass):
        self.spec = spec
        self.recurrent_spec = recurrent_spec
        self._forward = forward
        self._policy_state: PolicyState = (
            NoState(spec.no_action) if recurrent_spec is None else RecurrentState(recurrent_spec._replace(stored=False))
        )
        self._acted = np.zeros(0, bool)

    def __call__(self, observation: Any, action_before: Any = None) -> np.ndarray:
        """Return the actions for one observation or a batch.

        The result for an observation with a non-finite number is `spec.no_action`: NaN in each component, or for
        integers the lowest action minus 1. The recurrent state of that row does not change, and the other rows of the
        batch are not affected.

        Args:
            observation: one observation, or a batch.
            action_before: the actions executed after the last call, if they differ from those returned, for a policy
                that receives the previous action. Rows that start an episode ignore it.

        Returns:
            Actions in the environment's units and shape, float32 or, for a Box of integers, `spec.integer_type`; in a
            Discrete space, an int64 number or `[batch]`.
        """
        packed = self.spec.pack(observation)
        single = self.spec.is_single(observation)
        if len(self._acted) != len(packed[0]):
            self._acted = np.zeros(len(packed[0]), bool)
        if action_before is not None:
            self._correct(self._actions("action_before", action_before, () if single else self._acted.shape))
        actions = self.act(packed)
        self._acted[:] = True
        return self.spec.first(actions) if single else actions

    def received(self, reward: Any) -> None:
        """Pass the rewards of the last actions to a policy that receives the previous reward.

        Other policies ignore them.

        Args:
            reward: a number, or `[batch]`.

        Raises:
            ValueError: the rewards have another shape than the last observations.
        """
        if np.shape(reward) not in ((), self._acted.shape):
            raise reject("reward", f"of shape {self._acted.shape}, as the last observations", reward)
        self._policy_state.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Reset the recurrent state of the rows of the batch whose episode ended.

        Args:
            ended: whether the episode of each row ended, bool `[batch]`.
        """
        self.reset(np.asarray(ended, bool))

    def reset(self, env_indices: Any = None) -> None:
        """Reset the recurrent state.

        Args:
            env_indices: the rows of the batch to reset, as indices or as a mask; None resets all rows.

        Raises:
            ValueError: an index is not that of a row.
        """
        ended = np.zeros(len(self._acted), bool)
        try:
            ended[slice(None) if env_indices is None else env_indices] = True
        except IndexError as error:
            raise reject("env_indices", f"indices below {len(ended)}, or a mask of that length", env_indices) from error
        self._acted[ended] = False
        self._end(ended)

    def act(self, packed: Packed) -> np.ndarray:
        """Return the actions for packed observations, `[batch, *act_shape]`, and advance the recurrent state."""
        actions = self._policy_state.record_step(self._policy_state.forward(self._forward, packed))
        if self.spec.actions is not None and actions.ndim == 2:
            actions = np.where(np.isnan(actions[:, 0]), self.spec.no_action, actions[:, 0]).astype(np.int64)
        return self.spec.shaped(actions)

    def _end(self, ended: np.ndarray) -> None:
        self._policy_state.end(ended)

    def _correct(self, executed: np.ndarray) -> None:
        """Replace the previous action by the executed one in all rows that have acted."""
        if self.recurrent_spec is None or not self.recurrent_spec.uses_action:
            raise ValueError(f"`action_before` must be None: {self!r} does not receive the previous action")
        if self._acted.any():
            own = self._policy_state.state[:, : self.spec.act_dim]
            self._policy_state.record_step(np.where(self._acted[:, None] & np.isfinite(executed), executed, own))

    def _actions(self, name: str, action: Any, leading: tuple[int, ...]) -> np.ndarray:
        """Validate and reshape one action per observation: float32 `[batch, act_dim]`, or int64 `[batch]`."""
        spec = self.spec
        given = np.asarray(action)
        shapes = [(*leading, *spec.act_shape), (*leading, spec.act_dim), *([leading] if spec.act_dim == 1 else [])]
        if given.shape not in shapes or given.dtype.kind not in "biuf":
            raise reject(name, f"numbers of shape {(*leading, *spec.act_shape)}, one action per observation", action)
        if spec.actions is None:
            return given.astype(np.float32).reshape(-1, spec.act_dim)
        if not ((given >= spec.low) & (given <= spec.high) & (given == np.floor(given))).all():
            raise reject(name, f"in {spec.action_space}", action)
        return given.astype(np.int64).reshape(-1)
