"""One interface for single environments and for vector environments in any autoreset mode.

In every mode, `reset_ended` resets the sub-environments whose episode ended, each with the seed of its next episode, so
that every episode is seeded.
"""

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tfdpg.acting import FeatureRows, Preprocessing
from tfdpg.arguments import shown, warn
from tfdpg.compat.gymnasium import awaits_replies
from tfdpg.environments import is_real, made_from, place_of
from tfdpg.findings import malformed_reset, step_limit, wrappers_of
from tfdpg.spec import Packed, Spec
from tfdpg.training.environment.env_timeout import check_processes, terminate_processes
from tfdpg.training.environment.env_watch import CLOCK, EnvWatch
from tfdpg.training.environment.held_values import ATTEMPTS, HeldValues
from tfdpg.training.environment.info_numbers import InfoNumbers, is_number
from tfdpg.training.environment.step_parsing import (
    API,
    batched,
    failed_env_index,
    is_parse_error,
    parse_step,
    parse_vector_step,
)

ResetSeed = Callable[[int], int]
"""Maps `env_index` to the seed of its next episode."""


LONG_EPISODE = 10_000
"""An episode that has lasted so many steps is reported, unless a step limit will end it."""
_endless: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
"""The environments that were reported, by their `id`."""
NEUTRAL = {"HumanRendering", "RecordEpisodeStatistics", "RecordVideo", "RenderCollection", "TimeLimit"}
"""The names of Gymnasium's wrappers that change no episode, and of the one whose limit is an argument of its `make`."""
SUCCESS = "is_success", "success"
"""The entries of `info` that say whether a task is solved: of gymnasium-robotics and Stable-Baselines3, and others."""
TRAINING, EVALUATION = 0, 1
"""The streams of reset seeds. They differ, so that evaluation does not repeat the training episodes."""


def reset_seed(seed: int, stream: int, env_index: int, episode: int) -> int:
    """Return the seed of the reset that begins an episode."""
    return int(np.random.SeedSequence([seed, stream, env_index, episode]).generate_state(1)[0])


EXECUTED = "executed_action"
"""The entry of `info` with the action that was really executed."""
INTERVENTION = "intervention"
"""The entry of `info` that is True in a step that an operator made."""


class Step(NamedTuple):
    """One step of all sub-environments. The fields are in the order of the arguments of `Agent.observe`.

    Attributes:
        reward: `[num_envs]`.
        next_observation: a batch of observations.
        terminated: `[num_envs]`.
        truncated: `[num_envs]`, also True where `max_ep_len` truncated the episode.
        final_observation: a batch of observations, or the objects of SAME_STEP mode (see `Spec.pack_final`).
        action: the actions that were really executed, `[num_envs, *act_shape]`; None if they are those that were sent.
        by_operator: whether an operator made the step, bool `[num_envs]`; None if nobody did.
    """

    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: Any
    action: np.ndarray | None = None
    by_operator: np.ndarray | None = None


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        env_index: the sub-environment.
        episode_return: the sum of the rewards, neither discounted nor shaped.
        length: the number of environment steps.
        terminated: whether it ended in a terminal state.
        truncated: whether it was truncated; both may be True.
        success: whether the task was solved in its last step, as the environment reports in `info["is_success"]` or
            `info["success"]`; None if it does not report it.
        info: the numbers in `info`, each a mean over the steps that had it.
    """

    env_index: int
    episode_return: float
    length: int
    terminated: bool
    truncated: bool
    success: bool | None = None
    info: dict[str, float] = {}


class OpenReturns:
    """The returns and lengths of the episodes that have not ended.

    Attributes:
        returns: the sums of their rewards, `[num_envs]`.
        lengths: the numbers of their steps, `[num_envs]`.
    """

    def __init__(self, num_envs: int):
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)

    def add(self, reward: np.ndarray, is_live: Any = slice(None)) -> None:
        """Add the rewards `[num_envs]` of a step in some sub-environments."""
        self.returns[is_live] += reward[is_live]
        self.lengths[is_live] += 1

    def forget(self, env_indices: np.ndarray) -> None:
        """Set the counts of some sub-environments to 0, if they are counted."""
        env_indices = env_indices[env_indices < len(self.returns)]
        self.returns[env_indices] = 0
        self.lengths[env_indices] = 0

    def episodes(self, ended: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> list[Episode]:
        """Return the episodes that ended."""
        return [
            Episode(
                env_index,
                float(self.returns[env_index]),
                int(self.lengths[env_index]),
                bool(terminated[env_index]),
                bool(truncated[env_index]),
            )
            for env_index in np.flatnonzero(ended).tolist()
        ]


class OpenEpisode(NamedTuple):
    """An episode that has not ended.

    Attributes:
        seed: the seed of its reset.
        observations: its observations, packed, `[steps + 1, ...]`; an empty tuple if there was no action yet.
        actions: `[steps, act_dim]`.
    """

    seed: int
    observations: Packed
    actions: np.ndarray


class Interrupted(Exception):
    """Someone else has reset or stepped the environment. The step was not made, or its result is not that of a step.

    Args:
        mask: the sub-environments whose episodes must begin again, `[num_envs]`.
    """

    def __init__(self, mask: np.ndarray):
        super().__init__("The environment was reset or stepped by someone else.")
        self.mask = mask


class EnvRunner:
    """Steps and resets all sub-environments, and counts the rewards and steps of their episodes.

    Args:
        env: an environment, or a `SyncVectorEnv` or `AsyncVectorEnv` (wrapped or not).
        spec: its spaces.
        reset_seed: returns the seed of each reset.
        max_ep_len: truncate episodes after this many steps; None sets no limit beyond the environment's own.
        watch: finds out whether others have called the environment; None does not.
        hold_steps: the number of steps in succession in which missing values of observations and rewards keep their
            last values; after more steps, the episode is truncated. None leaves missing values as they are.
        preprocessing: computes the features that `reset` and `step` return in place of observations; None returns
            these.

    Attributes:
        env: the environment.
        is_real: whether the environment is a real machine.
        interventions: the number of steps that an operator made.
        is_endless: whether an episode has lasted `LONG_EPISODE` steps, and no limit ends it.

    Raises:
        ValueError: the vector environment cannot reset only some of its sub-environments, or two of them are one.
    """

    def __init__(
        self,
        env: Any,
        spec: Spec,
        reset_seed: ResetSeed,
        max_ep_len: int | None = None,
        watch: EnvWatch | None = None,
        hold_steps: int | None = None,
        preprocessing: Preprocessing | None = None,
    ):
        self.env = env
        self._spec = spec
        self._returned_spec = spec if preprocessing is None else preprocessing.spec
        self._rows = None if preprocessing is None else FeatureRows(preprocessing)
        self._reset_seed = reset_seed
        self._is_vector = isinstance(env, gym.vector.VectorEnv)
        if self._is_vector:
            check_partial_reset(env)
        self.is_real = is_real(env)
        self.num_envs: int = env.num_envs if self._is_vector else 1
        self._max_ep_len = max_ep_len
        self._longest = LONG_EPISODE if max_ep_len is None else max_ep_len
        self._open = OpenReturns(self.num_envs)
        self._numbers = InfoNumbers(self.num_envs, self._is_vector)
        self._watch = watch
        self._called_at = CLOCK.now  # after the last own call
        self._held = None if hold_steps is None else HeldValues(spec, self.num_envs, hold_steps)
        self._hold_steps = hold_steps
        self._has_reported = False
        self.interventions = 0
        self.is_endless = False

    @property
    def held_steps(self) -> int:
        """The number of steps in which missing values kept their last values."""
        return 0 if self._held is None else self._held.held

    def send(self, action: np.ndarray) -> None:
        """Take a step with `action`, `[num_envs, *act_shape]`, whose result does not count."""
        self.env.step(action if self._is_vector else self._spec.first(action))

    @property
    def longest_open_episode(self) -> int:
        """The number of steps of the longest episode that has not ended."""
        return int(self._open.lengths.max())

    def reset(self, seed: ResetSeed | None = None) -> Any:
        """Reset all sub-environments with `seed`, or with the seeds of their next episodes; return the observations.

        Raises:
            ValueError: the environment's `reset` does not follow Gymnasium's API.
        """
        self._open = OpenReturns(self.num_envs)
        self._numbers.forget(slice(None))
        seeds = [(seed or self._reset_seed)(env_index) for env_index in range(self.num_envs)]
        return self._reset(seed=seeds if self._is_vector else seeds[0])

    def _reset(self, **arguments: Any) -> Any:
        """Call `reset` of the environment, and return the batch of observations.

        If missing values are held, an observation that is not finite cannot begin an episode: `reset` is called again.
        """
        options = arguments.get("options", {})
        is_reset = options.get("reset_mask", np.ones(self.num_envs, bool)).copy()
        if self._held is None:
            return self._first_features(self._reset_once(arguments), is_reset)
        observation: Any = None
        for _ in range(ATTEMPTS):
            copied = {"options": dict(options)} if options else {}  # Gymnasium removes the mask from it
            observation = self._reset_once(arguments | copied)
            observation, is_finite = self._held.begin(observation, is_reset)
            if is_finite:
                return self._first_features(observation, is_reset)
        raise ValueError(f"The observation of `reset` is not finite after {ATTEMPTS} calls. Received: {observation}")

    def _first_features(self, observation: Any, is_reset: np.ndarray) -> Any:
        """Return the features of observations after a reset of some sub-environments, if features are returned."""
        return observation if self._rows is None else self._rows.begin(observation, is_reset)

    def _features(self, observation: Any, ended: np.ndarray, final: Any) -> tuple[Any, Any]:
        """Return the next and the final observations of a step, or their features, if features are returned."""
        if self._rows is None:
            return observation, final
        features = self._rows.advance(observation, ended, final)
        return features, features

    def _reset_once(self, arguments: dict[str, Any]) -> Any:
        try:
            result = self.env.reset(**arguments)
        except Exception as error:
            self._explain(error)
            raise
        if found := malformed_reset(result):
            raise ValueError(f"{found} {API}")
        self._called_at = CLOCK.now
        return result[0] if self._is_vector else batched(self._spec, result[0])

    def step(self, action: np.ndarray) -> tuple[Step, list[Episode]]:
        """Step all sub-environments with `action`, `[num_envs, *act_shape]`; also return the episodes that ended.

        Raises:
            ValueError: the environment's `step` does not follow Gymnasium's API.
            Interrupted: someone else reset or stepped the environment since the last call.
        """
        if CLOCK.now != self._called_at:
            self._check_interruption(has_stepped=False)
        try:
            result = self.env.step(action if self._is_vector else self._spec.first(action))
        except Exception as error:
            self._explain(error)
            raise
        if CLOCK.restarted_at > self._called_at:
            self._check_interruption(has_stepped=True)
        self._called_at = CLOCK.now
        if self._is_vector:
            observation, reward, terminated, truncated, info = result
            final = info.get("final_obs", observation)
            if "_final_obs" in info:
                self._check_final(final, info["_final_obs"])
            reward, terminated, truncated = parse_vector_step(reward, terminated, truncated, self.num_envs)
        else:
            observation, reward, terminated, truncated = parse_step(result)
            info = result[4]
            observation = final = batched(self._spec, observation)
            reward = np.array([reward], np.float64)
            terminated = np.array([terminated])
            truncated = np.array([truncated])
        if self._held is not None:
            observation, reward, lost = self._held.fill(observation, reward, final, terminated | truncated)
            final = observation
            self._report_missing(lost)
            truncated = truncated | (lost & ~terminated)
        self._open.add(reward)
        if (over := self._open.lengths >= self._longest).any():
            if self._max_ep_len is not None:
                truncated = truncated | over
            elif (over & ~terminated & ~truncated).any():
                self._report_endless()
        observation, final = self._features(observation, terminated | truncated, final)
        by_operator = self._by_operator(info)
        step = Step(reward, observation, terminated, truncated, final, self._executed(action, info), by_operator)
        self.interventions += 0 if by_operator is None else np.count_nonzero(by_operator)
        self._numbers.add(info, ended := terminated | truncated)
        return step, self._finished_episodes(terminated, truncated, info) if ended.any() else []

    def _report_missing(self, lost: np.ndarray) -> None:
        """Warn, once, that missing values end episodes because they may not be held."""
        if lost.any() and self._hold_steps == 0 and not self._has_reported:
            self._has_reported = True
            warn(
                "An observation or a reward was not finite, so the episode was truncated. With `hold_steps`, missing "
                "values keep their last values for that many steps."
            )

    def _by_operator(self, info: dict[str, Any]) -> np.ndarray | None:
        """Return where an operator made the step according to `info`, bool `[num_envs]`; None if it does not say."""
        marks = [_marks(infos[INTERVENTION]) for infos in _infos_with(INTERVENTION, info)]
        return np.broadcast_to(np.any(marks, axis=0), self.num_envs) if marks else None

    def _executed(self, sent: np.ndarray, info: dict[str, Any]) -> np.ndarray | None:
        """Return the actions that were executed according to `info`, `[num_envs, *act_shape]`; None if it has none."""
        given = _infos_with(EXECUTED, info)
        if not given:
            return None
        if not self._is_vector:
            action = np.asarray(info[EXECUTED])
            if action.shape != self._spec.act_shape:
                expected = f"of shape {self._spec.act_shape}, as an action of the environment"
                raise ValueError(f'`info["{EXECUTED}"]` must be {expected}. Received: {shown(action)}')
            return action[None]
        executed = np.array(sent)
        for infos in given:
            there = infos.get(f"_{EXECUTED}", np.ones(self.num_envs, bool))
            executed[there] = np.asarray(infos[EXECUTED])[there]
        return executed

    def _report_endless(self) -> None:
        """Warn, once for each environment, that an episode may never end."""
        self._longest = np.inf
        if step_limit(self.env) is not None:
            return
        self.is_endless = True
        if self.env is not _endless.get(id(self.env)):
            _endless[id(self.env)] = self.env
            warn(
                f"An episode has lasted {LONG_EPISODE:,} steps, and the environment has no known step limit. If its "
                "episodes never end, pass `max_ep_len`, or wrap the environment in gymnasium.wrappers.TimeLimit."
            )

    def _check_final(self, observations: Any, there: np.ndarray) -> None:
        """Raise `ValueError` if a final observation, which Gymnasium does not check, is not of the space."""
        for env_index in np.flatnonzero(there).tolist():
            try:
                self._spec.pack(batched(self._spec, observations[env_index]))
            except ValueError as error:
                raise ValueError(f"Sub-environment {env_index}: {error}") from None

    def _explain(self, error: Exception) -> None:
        """Raise an error that says what to change, if the environment breaks the API; else note the sub-environment."""
        base = self.env.unwrapped
        if getattr(base, "closed", False):
            return  # it was closed because it exceeded the time limit
        if isinstance(error, EOFError | ConnectionError):
            check_processes(self.env, error)
        env_index = failed_env_index(error, self.env, self._spec) if self._is_vector else None
        if isinstance(base, AsyncVectorEnv) and awaits_replies(base):
            terminate_processes(base)
        where = "" if env_index is None else f"Sub-environment {env_index}: "
        if is_parse_error(error):
            raise ValueError(f"{where}the environment does not follow Gymnasium's API: {error}. {API}") from error
        if where:
            error.add_note(f"It was raised in sub-environment {env_index}.")
        elif place := place_of(error):
            error.add_note(f"The environment raised {type(error).__name__} ({place}).")

    def _finished_episodes(self, terminated: np.ndarray, truncated: np.ndarray, info: dict[str, Any]) -> list[Episode]:
        """Return the episodes that ended, and reset their counts."""
        ended = terminated | truncated
        episodes = [
            episode._replace(
                success=self._success(info, episode.env_index), info=self._numbers.means(episode.env_index)
            )
            for episode in self._open.episodes(ended, terminated, truncated)
        ]
        self._forget(np.flatnonzero(ended))
        return episodes

    def _forget(self, env_indices: np.ndarray) -> None:
        """Begin to count new episodes in some sub-environments."""
        self._open.forget(env_indices)
        self._numbers.forget(env_indices)

    def _success(self, info: dict[str, Any], env_index: int) -> bool | None:
        """Return whether a sub-environment reports success in the step that ended its episode; None if it does not."""
        if not self._is_vector:
            return next((bool(info[name]) for name in SUCCESS if is_number(info.get(name))), None)
        for infos in (info.get("final_info", {}), info):  # in SAME_STEP mode, `info` is that of the reset
            for name in SUCCESS:
                if name in infos and infos.get(f"_{name}", np.ones(self.num_envs, bool))[env_index]:
                    value = infos[name][env_index]
                    if is_number(value):
                        return bool(value)
        return None

    def _check_interruption(self, has_stepped: bool) -> None:
        """Raise `Interrupted` if someone else called the environment before a step, or evaluated on it during one."""
        if self._watch is None:
            return
        interrupted = self._watch.restarted_since(self._called_at)
        if has_stepped:
            interrupted[:] = interrupted.any()
        else:
            interrupted |= self._watch.stepped_since(self._called_at)
        if interrupted.any():
            raise Interrupted(interrupted)

    def restart(self, chosen: np.ndarray, seed: ResetSeed | None = None) -> Any:
        """Begin new episodes in the sub-environments of a mask, at least one; return the next observations of all."""
        self._forget(np.flatnonzero(chosen))
        seed = seed or self._reset_seed
        seeds = [seed(env_index) if chosen[env_index] else None for env_index in range(self.num_envs)]
        if self._is_vector:
            return self._reset(seed=seeds, options={"reset_mask": chosen})
        return self._reset(seed=seeds[0])

    def reset_ended(self, step: Step) -> Any:
        """Reset the sub-environments whose episode ended in `step`; return the next observations of all."""
        ended = step.terminated | step.truncated
        return self.restart(ended) if ended.any() else step.next_observation

    def replay_episodes(self, episodes: Sequence[OpenEpisode | None]) -> tuple[Any, dict[int, str]]:
        """Reset each sub-environment with the seed of its open episode, and repeat the episode's actions.

        All episodes reach their last step at the same time. Sub-environments with shorter episodes are reset later, and
        until then take the action in the middle of the action space.

        Args:
            episodes: the open episode of each sub-environment; None begins a new one.

        Returns:
            The current observations of all sub-environments; and, by `env_index`, how an environment deviated from its
            episode. A sub-environment that deviated begins a new episode, too.
        """
        missing = OpenEpisode(0, (), np.empty(0))
        given = [missing if episode is None else episode for episode in episodes]
        lengths = np.array([len(episode.actions) for episode in given])
        steps = int(lengths.max())
        first_steps = steps - lengths
        mismatches: dict[int, str] = {}

        def seed(env_index: int) -> int:
            return given[env_index].seed

        observation = self.reset(seed)
        for now in range(steps + 1):
            packed = self._returned_spec.pack(observation)
            action = np.repeat(self._spec.center[None], self.num_envs, axis=0)
            started = [(env_index, now - first) for env_index, first in enumerate(first_steps.tolist()) if first <= now]
            for env_index, t in started:
                episode = given[env_index]
                parts = zip(packed, episode.observations, strict=False)
                if not all(np.array_equal(part[env_index], expected[t]) for part, expected in parts):
                    mismatches.setdefault(env_index, f"another observation after {t} steps")
                if t < len(episode.actions):
                    action[env_index] = episode.actions[t]
            if now == steps or len(mismatches) == self.num_envs:
                break
            step, _ = self.step(self._spec.to_env(action))
            ended = step.terminated | step.truncated
            for env_index, _ in started:
                if ended[env_index]:
                    mismatches.setdefault(env_index, "an end")
            reset = ended | (first_steps == now + 1)
            observation = self.restart(reset, seed) if reset.any() else step.next_observation
        starts_over = np.array(
            [episode is None or env_index in mismatches for env_index, episode in enumerate(episodes)]
        )
        return self.restart(starts_over) if starts_over.any() else observation, mismatches


def _marks(given: Any) -> np.ndarray:
    """Return whether an operator made the step, from one entry of `info`, or from those of all sub-environments.

    Gymnasium returns NumPy's bools of sub-environments as objects, and None for those that have no entry.
    """
    marks = [False if mark is None else mark for mark in np.ravel(np.asarray(given, object))]
    if not all(is_number(mark) and mark in (0, 1) for mark in marks):
        raise ValueError(f'`info["{INTERVENTION}"]` must be a bool. Received: {shown(given)}')
    return np.array(marks, bool)


def _infos_with(name: str, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the infos of a step that have an entry; in SAME_STEP mode, `info` is that of the reset where one ended."""
    return [infos for infos in (info, info.get("final_info", {})) if name in infos]


def check_partial_reset(env: gym.vector.VectorEnv) -> None:
    """Raise `ValueError` for a vector environment that cannot reset only some of its sub-environments."""
    base = env.unwrapped
    if not isinstance(base, (SyncVectorEnv, AsyncVectorEnv)):
        raise ValueError(
            "`env` must be able to reset single sub-environments, as SyncVectorEnv and AsyncVectorEnv do. "
            f"Received: {base}. Make it with gym.make_vec(..., vectorization_mode='sync' or 'async'), "
            "or write a custom loop with agent.act, agent.observe and agent.learn."
        )
    next_step = base.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
    if isinstance(base, AsyncVectorEnv) and not base.shared_memory and next_step:
        raise ValueError(
            "`env` is an AsyncVectorEnv without shared memory in NEXT_STEP mode, which resets a sub-environment again "
            "after a partial reset. Make it with shared_memory=True or autoreset_mode=AutoresetMode.DISABLED."
        )
    bases = [each.unwrapped for each in base.envs] if isinstance(base, SyncVectorEnv) else []
    if len({id(each) for each in bases}) < len(bases):
        raise ValueError(
            "Two sub-environments of `env` are, or wrap, one and the same environment, so that stepping or resetting "
            "one changes the other. Let each function make a new one, as in "
            f"SyncVectorEnv([lambda: gym.make(...)] * {len(bases)})."
        )


def environment_of(env: Any) -> dict[str, Any] | None:
    """Return the `id` and `kwargs` of an environment, and `wrappers`, the names of wrappers, if there are any.

    None for a `Spec`, or if the arguments are not JSON values.
    """
    if isinstance(env, str):
        return {"id": env, "kwargs": {}}
    spec = None if isinstance(env, Spec) else env.spec
    if spec is None:
        return None
    if (made := made_from(env)) is not None:
        return made
    registered = gym.registry.get(spec.id)
    kwargs = {k: v for k, v in spec.kwargs.items() if k not in ("num_envs", "vectorization_mode", "render_mode")}
    if (limit := step_limit(env)) not in (None, registered and registered.max_episode_steps):
        kwargs["max_episode_steps"] = limit
    try:
        json.dumps(kwargs)
    except TypeError:
        return None
    own = {wrapper.name for wrapper in registered.additional_wrappers} if registered else set()
    wrappers = [name for name in _added_wrappers(env) if name not in own]
    return {"id": spec.id, "kwargs": kwargs} | ({"wrappers": wrappers} if wrappers else {})


def _added_wrappers(env: Any) -> list[str]:
    """Return the names of the wrappers around what `gymnasium.make` returned, the outermost first."""
    names = []
    for each in wrappers_of(env):
        if isinstance(each, gym.wrappers.OrderEnforcing | gym.wrappers.PassiveEnvChecker):
            break  # what is inside, `gymnasium.make` makes again
        if isinstance(each, gym.Wrapper | gym.vector.VectorWrapper):
            names.append(type(each).__name__)
    return [name for name in names if name not in NEUTRAL]
