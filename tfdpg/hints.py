"""What may have been meant: near names, and the words of other libraries."""

import difflib
import inspect
from collections.abc import Callable, Collection
from typing import Any

ELSEWHERE = {
    "learning_rate": "`pi_lr` and `q_lr` (ACER: `lr`)",
    "lr": "`pi_lr` and `q_lr`",
    "total_timesteps": "`epochs` times `steps_per_epoch` of `fit`",
    "policy": "`hidden_units`, or networks of your own as `pi`, `q1`, `q2`",
    "policy_kwargs": "`hidden_units` and `activation`",
    "buffer_size": "`replay_size`",
    "learning_starts": "`start_steps` and `update_after`",
    "train_freq": "`update_every`",
    "tau": "`polyak`, which is 1 - tau",
    "action_noise": "`noise` and `act_noise`",
    "target_policy_noise": "`target_noise`",
    "target_noise_clip": "`noise_clip`",
    "eval_env": "`validation_env` of `fit`",
    "n_eval_episodes": "`validation_episodes` of `fit`, `episodes` of `evaluate`",
    "deterministic": "`stochastic` of `evaluate`; `predict` does not explore",
}
"""What arguments are called in other libraries, and what has their place here."""


def refuse(function: Callable[..., Any], unknown: Collection[str]) -> None:
    """Raises `TypeError` for keyword arguments that a function does not have, if there are any."""
    if unknown:
        error = f"got an unexpected keyword argument {next(iter(unknown))!r}"
        raise TypeError(misused(function, inspect.signature(function), (), unknown, error))


def misused(function: Any, signature: inspect.Signature, args: Any, given: Collection[str], error: Any) -> str:
    """What is wrong with a call, and which argument may have been meant."""
    message = f"{function.__qualname__}() {error}"
    unknown = next((each for each in given if each not in signature.parameters), "")
    if any(isinstance(each, str) and each.endswith("Policy") for each in args):
        unknown = "policy"
    if unknown in ELSEWHERE:
        return f"{message}. Here it is {ELSEWHERE[unknown]}"
    near = difflib.get_close_matches(unknown, signature.parameters, 1)
    return message + (f". Did you mean `{near[0]}`?" if near else "")
