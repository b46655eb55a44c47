"""Collection: `act` and `observe`, and the state of each sub-environment between the two calls. NumPy only."""

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from tfdpg.acting import BehaviourPolicy, FeatureRows, Preprocessing
from tfdpg.arguments import reject, warn
from tfdpg.replay import Recorder, ReplayBuffer, TimeSteps
from tfdpg.replay.demonstrations import Demonstrations
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.environment.env_runner import TRAINING, Episode, OpenEpisode, OpenReturns, reset_seed
from tfdpg.training.environment.env_watch import CLOCK, EnvWatch
from tfdpg.training.environment.finite import NO_REWARD, check_finite, float32_rewards
from tfdpg.training.environment.schedule import Schedule

BOUND_TOLERANCE = 1e-4
"""How far an executed action may be outside the action space, as a fraction of the action scale: measured values are
not exact."""
RewardShaper = Callable[[np.ndarray, int, int | None], Any]
"""Maps rewards `[num_envs]`, the environment step and the total number of steps (None if unknown) to the rewards to
store."""


class Collector:
    """Pairs each action with its outcome and stores both.

    Args:
        spec: the spaces.
        replay: the replay buffer.
        schedule: counts environment steps, and says when actions are uniformly random.
        behaviour: selects actions.
        seed: the seed of the exploration and of the resets.
        reward_shaper: computes the rewards to store; None stores them as they are.
        recorders: receive every row that `replay` receives.
        preprocessing: computes the features of the environment's observations, of which `spec` has the spaces; None if
            they are stored as they are.

    Attributes:
        rng: the generator of all random numbers for acting.
        env_indices: the sub-environments that acted last, `[num_envs]`.
        episodes: the number of episodes begun in each sub-environment with a seed from `next_reset_seed`.
        restored_at: the environment step at which the agent was loaded; None if it was not loaded.
        joined: the demonstrations to which the steps of an operator are added; None for no such steps.
    """

    def __init__(
        self,
        spec: Spec,
        replay: ReplayBuffer,
        schedule: Schedule,
        behaviour: BehaviourPolicy,
        seed: int,
        reward_shaper: RewardShaper | None,
        recorders: Sequence[ReplayBuffer | Recorder] = (),
        preprocessing: Preprocessing | None = None,
    ):
        self._spec = spec
        self._preprocessing = preprocessing
        self._rows = None if preprocessing is None else FeatureRows(preprocessing)
        self._replay = replay
        self._schedule = schedule
        self._recorders = recorders
        self._stores = (replay, *recorders)
        self.joined: Demonstrations | None = None
        self._behaviour = behaviour
        self._seed = seed
        if reward_shaper is not None and not callable(reward_shaper):
            raise reject("reward_shaper", "a callable of (reward, step, steps)", reward_shaper)
        self._shaper = reward_shaper
        self.rng = np.random.Generator(np.random.PCG64(stream(Purpose.ACTING, seed)))
        self.episodes = np.zeros(0, np.int64)
        self.env_indices = np.zeros(0, np.int64)
        self._resetting: np.ndarray | None = None  # mask of sub-environments whose next step is a reset
        self._pending: np.ndarray | None = None
        self.restored_at: int | None = None
        self._restored_rows: int | None = None
        self._episode_ended: Callable[[Episode, int], None] | None = None
        self._count_updates: Callable[[], int] = lambda: 0
        self._acting_updates = -1  # the number of updates of the policy that acted last; −1 for a random action
        self._open = OpenReturns(0)  # not counted unless episodes are reported
        self._updates = np.zeros(0, np.int64)  # at the first steps of the open episodes
        self._env: weakref.ref[Any] | None = None  # the environment that is watched from the next `act` on
        self._watch: EnvWatch | None = None
        self._is_in_fit = False  # `fit` watches its environment itself
        self._observed_at = CLOCK.now
        self._acted_at = CLOCK.now
        self._is_checked = False  # whether `observe` is to find out if the environment was interrupted
        self._acts = 0  # calls of `act` since the last `observe`
        self._has_warned = False  # of several such calls
        self._stale: np.ndarray | None = None  # mask of observations that are not of the environment's present state

    def report_episodes(self, episode_ended: Callable[[Episode, int], None], count_updates: Callable[[], int]) -> None:
        """Call a function with each episode that ends from now on, after its last step was stored.

        Args:
            episode_ended: receives the episode, and the number of updates at its first step; −1 if its first action was
                a random one.
            count_updates: returns the number of updates.
        """
        self._episode_ended = episode_ended
        self._count_updates = count_updates

    @contextlib.contextmanager
    def reporting_to(self, episode_ended: Callable[[Episode, int], None], count: Callable[[], int]) -> Iterator[None]:
        """Inside the context, call other functions than those of `report_episodes`, if there are any."""
        before = self._episode_ended, self._count_updates
        if self._episode_ended is not None:
            self.report_episodes(episode_ended, count)
        try:
            yield
        finally:
            self._episode_ended, self._count_updates = before

    def act_in_loop(self, observation: Any, explore: bool) -> np.ndarray:
        """See `Agent.act`."""
        self._acts = 1 if self._pending is None else self._acts + 1
        if self._rows is None or self._preprocessing is None:
            return self.act(observation, explore)
        action = self.act(self._rows.of(observation), explore)
        return self._spec.first(action) if self._preprocessing.raw.is_single(observation) else action

    def observe_in_loop(
        self, reward: Any, next_observation: Any, terminated: Any, truncated: Any, final: Any, action: Any = None
    ) -> None:
        """See `Agent.observe`."""
        if self._acts > 1 and not self._has_warned:
            self._has_warned = True
            warn(
                f"`act` was called {self._acts} times before `observe`, which stores the outcome of the last action "
                "only. For actions whose outcome is not stored, such as those of an evaluation, use `predict` or "
                "`policy`."
            )
        if np.asarray(reward).dtype.kind in "SU":
            raise reject("reward", "a number, or one for each sub-environment", reward)
        terminated, truncated = _ends("terminated", terminated), _ends("truncated", truncated)
        self._check_final(final, bool(terminated.any() or truncated.any()))
        if self._rows is None or self._preprocessing is None:
            self.observe(reward, next_observation, terminated, truncated, final, action)
            return
        ended = (terminated | truncated).reshape(self.env_indices.shape)
        resetting = self._resetting
        features = self._rows.advance(next_observation, ended, final)
        if resetting is not None:
            features = self._rows.begin(next_observation, resetting)
        given = features[0] if self._preprocessing.raw.is_single(next_observation) else features
        self.observe(reward, given, terminated, truncated, None if final is None else given, action)
        if final is not None and ended.any():
            self._rows.begin(next_observation, ended)

    def act(self, observation: Any, explore: bool, packed: Packed | None = None) -> np.ndarray:
        """Act on what is stored. `packed` is what `observe` has returned for this observation."""
        if packed is None:
            packed = self._spec.pack(observation)
        self._begin_episodes(packed)
        if self._episode_ended is not None:
            self._acting_updates = -1 if self._schedule.acts_at_random else self._count_updates()
        if explore and self._schedule.acts_at_random:
            self._pending = self._behaviour.act_uniformly(packed, self.rng)
        elif explore:
            factor = self._behaviour.exploration.factor(self._schedule.env_steps)
            self._pending = self._behaviour.explore(packed, factor, self.rng)
        else:
            self._pending = self._behaviour.greedy(packed)
        action = self._spec.to_env(self._pending[:, : self._spec.act_dim])
        return self._spec.first(action) if self._spec.is_single(observation) else action

    def _begin_episodes(self, packed: Packed) -> None:
        """Begin an episode where an observation does not follow the newest row of its sub-environment."""
        if len(packed[0]) != len(self.env_indices):
            self.close_episodes()
            self.env_indices = np.arange(len(packed[0]))
            self._schedule.num_envs = len(self.env_indices)
        continues = self._replay.continues(self.env_indices, packed)
        if self._resetting is not None:
            continues |= self._resetting
        if self._watch is not None or self._begin_watching():
            self._find_stale(continues)
        if not continues.all():
            starts = ~continues
            check_finite(self._spec, packed, NO_REWARD, self._this_step)
            self._behaviour.end(starts)
            self._open.forget(np.flatnonzero(starts))
            for store in self._stores:
                store.begin(self.env_indices[starts], tuple(part[starts] for part in packed))

    def observe(
        self,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        final_observation: Any,
        action: Any = None,
        by_operator: np.ndarray | None = None,
    ) -> Packed | None:
        """Store the outcome of `act`. Return the packed next observations; None if an episode ended or was interrupted.

        `by_operator` says in which sub-environments an operator made the step, bool `[num_envs]`; None for none.
        """
        if self._pending is None:
            raise RuntimeError("observe() must follow act(), once each.")
        interrupted = self._find_interrupted() if self._is_checked else None
        reward = float32_rewards(reward).reshape(self.env_indices.shape)
        terminated, truncated = (
            np.asarray(end, bool).reshape(self.env_indices.shape) for end in (terminated, truncated)
        )
        all_terminated = terminated
        ended = terminated | truncated
        any_ended = bool(ended.any())
        packed = self._spec.pack(next_observation)
        if final_observation is not None and final_observation is not next_observation and any_ended:
            packed = self._spec.pack_final(packed, final_observation, ended)
        check_finite(self._spec, packed, reward, self._this_step, self._pending)
        if action is not None:
            self._pending = self._behaviour.executed(self._pending, self._executed(action))
        self._behaviour.received(reward)
        continues = not any_ended and self._resetting is None and interrupted is None
        unshaped = reward
        if self._shaper is not None:
            reward = self._shaped(self._shaper, reward)
        is_live = np.ones(len(reward), bool) if self._resetting is None else ~self._resetting
        if self._episode_ended is not None:
            self._count_rewards(unshaped, is_live)

        steps_to_store = self._pending
        env_indices = self.env_indices
        will_reset = ended
        if self._resetting is not None or interrupted is not None:
            will_reset = ended & is_live
            is_live = is_live if interrupted is None else is_live & ~interrupted
            ended = ended & is_live
            any_ended = bool(ended.any())
            env_indices, steps_to_store, reward, terminated = (
                values[is_live] for values in (env_indices, steps_to_store, reward, terminated)
            )
            packed = tuple(part[is_live] for part in packed)
        self._join_demonstrations(by_operator, env_indices, steps_to_store, reward, terminated, packed)
        self._store(env_indices, steps_to_store, reward, terminated, packed)
        self._schedule.count(len(env_indices), any_ended)
        self._pending = None
        self._resetting = None
        if any_ended:
            self._end_and_report(ended, all_terminated, truncated)
        may_reset = final_observation is None and (any_ended or interrupted is not None)
        may_reset = may_reset and not self._spec.is_single(next_observation)
        if may_reset and will_reset.any() and self._autoreset_mode != AutoresetMode.DISABLED:
            self._resetting = will_reset
        if interrupted is not None and self._watch is not None:
            self.close_interrupted(interrupted, self._watch)
        return packed if continues else None

    @property
    def _autoreset_mode(self) -> AutoresetMode | None:
        """The mode of the environment that a custom loop has just stepped; None if it is not known."""
        watch = self._watch
        if watch is None or not self._is_checked or not watch.stepped_since(self._acted_at).any():
            return None
        return watch.autoreset_mode

    def _check_final(self, final: Any, any_ended: bool) -> None:
        """Raise `ValueError` if episodes ended whose last observations are missing."""
        if any_ended and final is None and self._autoreset_mode == AutoresetMode.SAME_STEP:
            raise ValueError(
                "`final_observation` must be info['final_obs'] if an episode ended, because this environment resets "
                "itself in the same step (AutoresetMode.SAME_STEP); or what `step` returned, if you ended the episode. "
                "Received: None"
            )

    def _executed(self, action: Any) -> np.ndarray:
        """Return the actions that the environment executed, float32 `[num_envs, act_dim]`."""
        spec = self._spec
        shape = len(self.env_indices), spec.act_dim
        values = np.asarray(spec.flat_actions(action), np.float64)
        if spec.actions is not None or values.size != math.prod(shape):
            raise ValueError(
                f"`action` must have the shape of the actions that `act` returned, of a Box. Received: {values.shape}"
            )
        values = values.reshape(shape)
        if not (np.abs(values - spec.center) <= (1 + BOUND_TOLERANCE) * spec.action_scale).all():
            raise ValueError(
                f"The action that the environment executed must be inside the action space, from {spec.low} to "
                f"{spec.high}. Received: {action!r} at {self._this_step}"
            )
        return np.clip(values.astype(np.float32), spec.low, spec.high)

    def _store(self, env_indices: np.ndarray, steps: np.ndarray, *outcome: Any) -> None:
        """Add rows to the replay buffer and to the recorders, which receive only the action of each step."""
        self._replay.add(env_indices, steps, *outcome)
        for recorder in self._recorders:
            action = np.clip(steps[:, : self._spec.act_dim], self._spec.low, self._spec.high)
            recorder.add(env_indices, self._spec.rounded(action), *outcome)

    def _join_demonstrations(self, by_operator: np.ndarray | None, env_indices: np.ndarray, *step: Any) -> None:
        """Add the steps that an operator made to the demonstrations, before the replay buffer gets them."""
        if self.joined is None:
            return
        replay = self._replay
        rows = replay.current[env_indices]
        operated = self.env_indices[:0] if by_operator is None else self.env_indices[by_operator]
        is_joining = np.isin(env_indices, operated) & (rows >= replay.oldest)
        self.joined.join(is_joining, env_indices, replay.observation(rows % replay.replay_size), *step)

    def expect(self, env: Any) -> None:
        """Watch an environment from the first `act` on, unless another one is watched.

        A custom training loop may step it. While its episode is open, nobody else may.
        """
        is_known = self._watch is not None or (self._env is not None and self._env() is not None)
        if is_known or self._is_in_fit or not isinstance(env, gym.Env | gym.vector.VectorEnv):
            return
        self._env = weakref.ref(env)
        if len(self.env_indices):  # a training loop on an environment that was not known until now
            self._begin_watching()

    def _begin_watching(self) -> bool:
        """Watch the environment that is expected, if there is one; return whether one is watched."""
        env = None if self._env is None else self._env()
        self._env = None
        if env is not None:
            self._watch = EnvWatch(env)
            self._observed_at = self._acted_at = CLOCK.now
            self._is_checked = self._watch.num_envs == len(self.env_indices)
        return env is not None

    @contextlib.contextmanager
    def not_watching(self) -> Iterator[None]:
        """Leave it to the caller, inside the context, to find out whether others call the environment."""
        watched = self._env, self._watch
        self._env = self._watch = None
        self._is_in_fit = True
        try:
            yield
        finally:
            self._env, self._watch = watched
            self._is_in_fit = False
            self._observed_at = self._acted_at = CLOCK.now
            self._is_checked = False

    def _find_stale(self, continues: np.ndarray) -> None:
        """Find the observations of an `act` after which someone else has reset or stepped the environment."""
        watch = self._watch
        before, self._acted_at = self._acted_at, CLOCK.now
        self._stale = None
        self._is_checked = watch is not None and watch.num_envs == len(continues)
        if watch is None or not self._is_checked or (CLOCK.now == self._observed_at and CLOCK.restarted_at <= before):
            return
        # A restart after a step and before its `observe` makes the observation of this step stale.
        stale = watch.stepped_since(self._observed_at) | watch.restarted_since(before)
        self._stale = np.where(continues, stale, watch.is_evaluated())

    def _find_interrupted(self) -> np.ndarray | None:
        """Return the mask of the sub-environments whose step does not follow the observation of the last `act`."""
        watch = self._watch
        self._observed_at = CLOCK.now
        if watch is None or (self._stale is None and CLOCK.restarted_at <= self._acted_at):
            return None
        interrupted = watch.restarted_since(self._acted_at) & watch.restarted_before_step()
        if self._stale is not None:
            interrupted |= self._stale
        interrupted &= watch.stepped_since(self._acted_at)  # otherwise the training loop steps another environment
        return interrupted if interrupted.any() else None

    def close_interrupted(self, interrupted: np.ndarray, watch: EnvWatch) -> None:
        """Close the episodes that someone else has interrupted in the sub-environments of a mask, and warn once."""
        self._end(np.flatnonzero(interrupted))
        self._pending = None
        watch.warn(self._schedule.env_steps)

    def _count_rewards(self, reward: np.ndarray, is_live: np.ndarray) -> None:
        """Add the rewards of a step, `[num_envs]`, to the returns of the open episodes where `is_live`."""
        if len(self._open.returns) != len(reward):
            self._open = OpenReturns(len(reward))
            self._updates = np.zeros(len(reward), np.int64)
        begins = is_live & (self._open.lengths == 0)
        if begins.any():
            self._updates[begins] = self._acting_updates
        self._open.add(reward, is_live)

    def _end_and_report(self, ended: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """End the episodes where `ended`, and report them."""
        report = self._episode_ended
        episodes = [] if report is None else self._open.episodes(ended, terminated, truncated)
        self._end(np.flatnonzero(ended))
        if report is not None:
            for episode in episodes:
                report(episode, int(self._updates[episode.env_index]))

    def receive(self, env_index: int, rows: TimeSteps, continues: bool) -> None:
        """Store rows that another process collected in a sub-environment, all of them or none.

        Steps are not counted here. The reward shaper receives the rewards of all rows in one array.

        Args:
            env_index: the sub-environment.
            rows: its next rows.
            continues: whether they follow the rows received before; otherwise the open episode is closed first.

        Raises:
            ValueError: an observation or a reward is not finite. Nothing is stored.
        """
        first = self._schedule.env_steps + 1
        steps = ~rows.is_first
        last = first + max(0, int(steps.sum()) - 1)
        of = f"of sub-environment {env_index} (worker {env_index})"
        where = f"environment steps {first} to {last}, {of}; none of these was stored"
        check_finite(self._spec, rows.observation, rows.reward, where, rows.masked_action, "row")
        if self._shaper is not None and steps.any():
            reward = rows.reward.copy()
            reward[steps] = self._shaped(self._shaper, reward[steps])
            rows = rows._replace(reward=reward)
        if not continues:
            self._end(np.array([env_index]))
        for store in self._stores:
            store.extend(env_index, rows)

    def _shaped(self, shaper: RewardShaper, reward: np.ndarray) -> np.ndarray:
        shaped = np.asarray(shaper(reward.copy(), self._schedule.env_steps, self._schedule.total_steps), np.float32)
        if shaped.shape != reward.shape or not np.isfinite(shaped).all():
            raise ValueError(
                f"`reward_shaper` must return finite rewards of shape {reward.shape}. "
                f"Received: {shaped} at {self._this_step}"
            )
        return shaped

    def close_episodes(self, env_indices: np.ndarray | None = None) -> None:
        """Close open episodes as truncated, in all or in some sub-environments; the next `act` begins new ones."""
        self._end(np.arange(len(self._replay.current)) if env_indices is None else env_indices)
        self._pending = None
        self._resetting = None
        self._restored_rows = None

    @property
    def is_restored(self) -> bool:
        """Whether the agent was loaded, and no row was stored since."""
        return self._restored_rows == self._replay.added

    def open_episodes(self) -> list[OpenEpisode | None]:
        """Return the open episodes of a loaded agent, to be replayed; [] if the agent was not loaded.

        The entry of a sub-environment is None if the replay buffer does not hold its complete episode.
        """
        if not self.is_restored:
            return []
        return [self._open_episode(env_index) for env_index in self.env_indices.tolist()]

    def _open_episode(self, env_index: int) -> OpenEpisode | None:
        slots = self._replay.open_episode(env_index)
        if slots is None or not self.episodes[env_index : env_index + 1].any():
            return None
        observations = self._replay.observation(slots) if len(slots) else ()
        seed = reset_seed(self._seed, TRAINING, env_index, int(self.episodes[env_index]) - 1)
        return OpenEpisode(seed, observations, self._replay.action(slots[:-1]))

    def _end(self, env_indices: np.ndarray) -> None:
        for store in self._stores if self.joined is None else (*self._stores, self.joined):
            store.end(env_indices)
        self._open.forget(env_indices)

    def flush(self, lock: contextlib.AbstractContextManager[Any] | None = None, is_early: bool = False) -> None:
        """Write the rows that recorders still hold in memory.

        Args:
            lock: held while rows are taken, if another thread stores rows.
            is_early: whether to write only the rows of recorders that are half full, before these write them.
        """
        for recorder in self._recorders:
            if isinstance(recorder, Recorder) and (recorder.is_half_full or not is_early):
                recorder.flush(lock)

    def next_reset_seed(self, env_index: int) -> int:
        """See `Agent.next_reset_seed`."""
        self.ensure_env_index(env_index)
        self.episodes[env_index] += 1
        return reset_seed(self._seed, TRAINING, env_index, int(self.episodes[env_index]) - 1)

    def set_episodes_begun(self, env_index: int, episodes: int) -> None:
        """Set the number of episodes begun in a sub-environment that another process steps."""
        self.ensure_env_index(env_index)
        self.episodes[env_index] = episodes

    def ensure_env_index(self, env_index: int) -> None:
        """Extend `episodes` to include a sub-environment."""
        if env_index >= len(self.episodes):
            self.episodes = np.append(self.episodes, np.zeros(env_index + 1 - len(self.episodes), np.int64))

    def state(self) -> dict[str, Any]:
        """Return the random state and the number of episodes begun, as plain JSON values."""
        return {
            "random_state": self.rng.bit_generator.state,
            "episodes": self.episodes.tolist(),
            **self._behaviour.state(),
            "num_envs": len(self.env_indices),
            "resetting": None if self._resetting is None else self._resetting.tolist(),
            "open_returns": self._open.returns.tolist(),
            "open_lengths": self._open.lengths.tolist(),
            "open_updates": self._updates.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.rng.bit_generator.state = state["random_state"]
        self.episodes = np.array(state["episodes"], np.int64)
        self._behaviour.restore(state)
        self.env_indices = np.arange(state["num_envs"])
        self._schedule.num_envs = max(1, len(self.env_indices))
        self._resetting = None if state["resetting"] is None else np.array(state["resetting"])
        self._open.returns = np.array(state["open_returns"], np.float64)
        self._open.lengths = np.array(state["open_lengths"], np.int64)
        self._updates = np.array(state.get("open_updates", [0] * len(state["open_lengths"])), np.int64)
        self.restored_at = self._schedule.env_steps
        self._restored_rows = self._replay.added
        env_indices = np.flatnonzero(self._replay.current >= 0)
        for recorder in self._recorders:  # they were not there when the open episodes began
            recorder.begin(
                env_indices, self._replay.observation(self._replay.current[env_indices] % self._replay.replay_size)
            )

    @property
    def _this_step(self) -> str:
        return f"environment step {self._schedule.env_steps + 1}; nothing of this step was stored"


def _ends(name: str, given: Any) -> np.ndarray:
    """Return ends of episodes as bools.

    Raises:
        ValueError: they are not bools, or 0 or 1.
    """
    ends = np.asarray(given)
    if ends.dtype.kind not in "biuf" or not ((ends == 0) | (ends == 1)).all():
        raise reject(name, "a bool, or one for each sub-environment", given)
    return ends.astype(bool)
