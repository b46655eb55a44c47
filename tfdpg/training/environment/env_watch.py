"""Detection of calls of `reset` and `step` that a training loop did not make: by a callback, a hook or an evaluation.

While an environment is watched, its class has `step` and `reset` methods that also record the calls on this object.
Attributes of the object would not do: a copy of the environment would have them, too, and step the original.
"""

import contextlib
import dataclasses
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tfdpg.arguments import warn
from tfdpg.findings import wrappers_of


class _Clock:
    """Counts the calls on all environments that are watched, so that each call has a time of its own.

    Attributes:
        now: the time of the last call.
        restarted_at: the time of the last restart of any environment.
    """

    now = 0
    restarted_at = 0


CLOCK = _Clock()


@dataclasses.dataclass
class _Calls:
    """The calls on an environment that is no vector environment, or on one sub-environment.

    A reset outside of a step is a restart, and so is an evaluation, whose steps and resets do not count otherwise.
    Calls inside a step belong to this step, such as those of a wrapper that resets what it wraps.

    Attributes:
        stepped_at: the time of the last step.
        restarted_at: the time of the last restart.
        is_evaluated: whether the last restart was an evaluation.
        layers: the ids of the object, of its wrappers, and of the vector environment and its wrappers.
    """

    stepped_at: int = 0
    restarted_at: int = 0
    is_evaluated: bool = False
    layers: set[int] = dataclasses.field(default_factory=set)

    def restart(self, is_evaluation: bool = False) -> None:
        CLOCK.now += 1
        CLOCK.restarted_at = self.restarted_at = CLOCK.now
        self.is_evaluated = is_evaluation

    def reset(self) -> None:
        """Record a restart; a step if the call is a part of a step of the environment."""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "step" and code.co_argcount:
                if id(frame.f_locals.get(code.co_varnames[0])) in self.layers:
                    CLOCK.now += 1
                    self.stepped_at = CLOCK.now
                    return
            frame = frame.f_back
        self.restart()


class EnvWatch:
    """Finds out which sub-environments were stepped or restarted since a time.

    It does not keep the environment alive. An environment whose class cannot be changed seems to have no calls.

    Args:
        env: an environment or a vector environment.

    Attributes:
        num_envs: the number of sub-environments.
        autoreset_mode: how sub-environments are reset; None if a vector environment does not say it. An environment
            that is no vector environment has none that resets itself, as in the mode DISABLED.
    """

    def __init__(self, env: Any):
        is_vector = isinstance(env, gym.vector.VectorEnv)
        self.autoreset_mode = env.unwrapped.metadata.get("autoreset_mode") if is_vector else AutoresetMode.DISABLED
        self._has_warned = False
        self._calls: list[_Calls] = []
        held: list[Any] = []  # calls are recorded as long as a watch holds these
        for part, n in _counted_objects(env):
            base = part.unwrapped
            with _lock:
                calls = _calls.setdefault(id(base), _CallsOf(_Calls() for _ in range(n)))
                held += [calls, _replaced.get(type(base)) or _Replacement(type(base))]
            for each in calls:
                each.layers |= {id(layer) for layer in (*wrappers_of(env), *wrappers_of(part))}
            self._calls += calls
        self.num_envs = len(self._calls)
        self._held = held
        self._env = weakref.ref(env.unwrapped, lambda _: held.clear())

    def close(self) -> None:
        """Stop recording calls."""
        self._held.clear()

    def stepped_since(self, time: int) -> np.ndarray:
        """Return the mask of the sub-environments that were stepped after a time, `[num_envs]`."""
        return np.array([calls.stepped_at > time for calls in self._calls])

    def restarted_since(self, time: int) -> np.ndarray:
        """Return the mask of the sub-environments that were restarted after a time, `[num_envs]`."""
        return np.array([calls.restarted_at > time for calls in self._calls])

    def restarted_before_step(self) -> np.ndarray:
        """Return the mask of the sub-environments whose last step came after the last restart, `[num_envs]`."""
        return np.array([calls.restarted_at < calls.stepped_at for calls in self._calls])

    def is_evaluated(self) -> np.ndarray:
        """Return the mask of the sub-environments whose last call was that of an evaluation, `[num_envs]`."""
        return np.array([calls.is_evaluated and calls.restarted_at > calls.stepped_at for calls in self._calls])

    def warn(self, env_steps: int) -> None:
        """Warn, once, that an episode was interrupted.

        Args:
            env_steps: the number of environment steps so far.
        """
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"The training environment was reset or stepped after environment step {env_steps:,}, in the middle of "
                "an episode, for example by a callback. The episode is closed, and no step is stored that would join "
                "two episodes. Evaluate on a separate environment."
            )


@contextlib.contextmanager
def evaluation_of(env: Any) -> Iterator[None]:
    """Record the calls on an environment inside the context as one evaluation, if it is watched."""
    watched = [calls for part, _ in _counted_objects(env) for calls in _calls.get(id(part.unwrapped), ())]
    stepped_at = [calls.stepped_at for calls in watched]
    try:
        yield
    finally:
        for calls, time in zip(watched, stepped_at, strict=True):
            calls.stepped_at = time
            calls.restart(is_evaluation=True)


class _CallsOf(list[_Calls]):
    """The calls on an object: one entry for an environment, or one for each sub-environment."""


class _ById(weakref.WeakValueDictionary[int, _CallsOf]):
    """The calls on objects by their `id`, as long as these are watched."""

    def __reduce__(self) -> Any:
        return _ById, ()  # a class that is pickled by value while it is watched takes none of them along


class _Replacement:
    """Methods of a class that record calls, in place of its own as long as this object exists.

    Args:
        kind: the class. Those of its methods that cannot be replaced stay.
    """

    def __init__(self, kind: type):
        methods: dict[str, Callable[[Any], Any]] = {"step": _recorded_step, "reset": _recorded_reset}
        if issubclass(kind, AsyncVectorEnv):
            methods = {f"{name}_async": method for name, method in methods.items()}
        replaced: dict[str, tuple[Any, Any]] = {}
        for name, recorded in methods.items():
            original = getattr(kind, name)
            own = vars(kind).get(name)
            if isinstance(original, types.FunctionType):
                method = functools.wraps(original)(recorded(original))
                with contextlib.suppress(TypeError):  # a class of an extension module
                    setattr(kind, name, method)
                    replaced[name] = own, method
        _replaced[kind] = self
        weakref.finalize(self, _restore_methods, kind, replaced)


_calls = _ById()
_replaced: weakref.WeakValueDictionary[type, _Replacement] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _counted_objects(env: Any) -> list[tuple[Any, int]]:
    """Return the objects whose calls are recorded, each with the number of sub-environments that it is."""
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        return [(each, 1) for each in base.envs]
    return [(env, env.num_envs if isinstance(env, gym.vector.VectorEnv) else 1)]


def _restore_methods(kind: type, replaced: dict[str, tuple[Any, Any]]) -> None:
    for name, (own, method) in replaced.items():
        if vars(kind).get(name) is not method:
            continue  # someone else replaced it, too
        if own is None:
            delattr(kind, name)
        else:
            setattr(kind, name, own)


def _recorded_step(original: Any, recorded: _ById = _calls, clock: _Clock = CLOCK) -> Any:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        for calls in recorded.get(id(self), ()):
            clock.now += 1
            calls.stepped_at = clock.now
        return original(self, *args, **kwargs)

    return step


def _recorded_reset(original: Any, recorded: _ById = _calls) -> Any:
    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        every = recorded.get(id(self), ())
        mask = (kwargs.get("options") or {}).get("reset_mask") if len(every) > 1 else None
        for env_index, calls in enumerate(every):
            if mask is None or mask[env_index]:
                calls.reset()
        return original(self, *args, **kwargs)

    return reset
