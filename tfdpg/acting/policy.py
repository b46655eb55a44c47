"""A policy in the hands of one who acts: observations in, the environment's actions out. NumPy only."""

from typing import Any

import numpy as np

from tfdpg.acting.recurrent import ForwardPass, NoState, PolicyState, RecurrentSpec, RecurrentState
from tfdpg.arguments import reject
from tfdpg.spec import Spec


class GreedyPolicy:
    """The greedy policy of an export.

    One with a memory (`recurrent`) carries it from call to call, for each row of a batch, and begins anew where their
    number changes. It is told when episodes end (`reset`), and of rewards, if it remembers them (`received`).

    Args:
        spec: the spaces that it serves.
        recurrent_spec: what it recalls of an episode; None where it has no memory.
        forward: from packed observations to actions, as exports give them.

    Attributes:
        spec: the spaces that it serves.
        recurrent_spec: what it recalls of an episode; None where it has no memory.
    """

    def __init__(self, spec: Spec, recurrent_spec: RecurrentSpec | None, forward: ForwardPass):
        self.spec = spec
        self.recurrent_spec = recurrent_spec
        self._forward = forward
        self._policy_state: PolicyState = (
            NoState(spec.no_action) if recurrent_spec is None else RecurrentState(recurrent_spec)
        )
        self._acted = np.zeros(0, bool)

    def __call__(self, observation: Any, action_before: Any = None) -> np.ndarray:
        """The actions for one observation or a batch, in the environment's units and shape, float32.

        Those of a Discrete space are int64, one number or `[batch]`. An observation with a non-finite number is
        answered with `spec.no_action`: NaN in each component, or the first action of a Discrete space minus 1. What is
        remembered stays as it was before that observation, and other rows of the batch are computed as ever.

        Args:
            observation: one, or a batch.
            action_before: what was done after the last call, where that was not what it gave, for a policy that
                remembers actions; where an episode begins it is left aside.
        """
        packed = self.spec.pack(observation)
        single = self.spec.is_single(observation)
        if len(self._acted) != len(packed[0]):
            self._acted = np.zeros(len(packed[0]), bool)
        if action_before is not None:
            self._correct(self._actions("action_before", action_before, () if single else self._acted.shape))
        actions = self.spec.shaped(self._policy_state.record_step(self._policy_state.forward(self._forward, packed)))
        self._acted[:] = True
        return actions[0] if single else actions

    def received(self, reward: Any) -> None:
        """Tells a policy that remembers rewards what the last actions were rewarded with, a number or `[batch]`."""
        if np.shape(reward) not in ((), self._acted.shape):
            raise reject("reward", f"of shape {self._acted.shape}, as the last observations", reward)
        self._policy_state.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Begins anew in the lanes (rows of a batch) whose episode ended, bool `[batch]`."""
        self.reset(np.asarray(ended, bool))

    def reset(self, env_indices: Any = None) -> None:
        """Begins anew in all lanes (rows of a batch), or in some, by their numbers or a mask."""
        ended = np.zeros(len(self._acted), bool)
        try:
            ended[slice(None) if env_indices is None else env_indices] = True
        except IndexError as error:
            raise reject("env_indices", f"numbers below {len(ended)}, or a mask of so many", env_indices) from error
        self._acted[ended] = False
        self._policy_state.end(ended)

    def _correct(self, executed: np.ndarray) -> None:
        """Remembers other actions than it gave, in the lanes where it gave some."""
        if self.recurrent_spec is None or not self.recurrent_spec.uses_action:
            raise ValueError(f"`action_before` is for policies that remember actions. Received one: {self!r}")
        if self._acted.any():
            own = self._policy_state.state[:, : self.spec.act_dim]
            self._policy_state.record_step(np.where(self._acted[:, None] & np.isfinite(executed), executed, own))

    def _actions(self, name: str, action: Any, leading: tuple[int, ...]) -> np.ndarray:
        """An action for each observation, as signatures take them: a row, or an entry if Discrete."""
        spec = self.spec
        given = np.asarray(action)
        shapes = [(*leading, *spec.act_shape), (*leading, spec.act_dim), *([leading] if spec.act_dim == 1 else [])]
        if given.shape not in shapes or given.dtype.kind not in "biuf":
            raise reject(name, f"numbers of shape {(*leading, *spec.act_shape)}, as the observations want", action)
        if spec.actions is None:
            return given.astype(np.float32).reshape(-1, spec.act_dim)
        if not ((given >= spec.low) & (given <= spec.high) & (given == np.floor(given))).all():
            raise reject(name, f"in {spec.action_space}", action)
        return given.astype(np.int64).reshape(-1)
