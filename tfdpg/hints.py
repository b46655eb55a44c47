"""What may have been meant: near names, and the words of other libraries."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

ELSEWHERE = {
    "learning_rate": ("lr", "pi_lr", "q_lr"),
    "lr": ("pi_lr", "q_lr"),
    "total_timesteps": ("epochs", "steps_per_epoch"),
    "timesteps": ("epochs", "steps_per_epoch"),
    "total_steps": ("epochs", "steps_per_epoch"),
    "policy": ("hidden_units", "networks", "pi"),
    "policy_kwargs": ("hidden_units", "activation"),
    "net_arch": ("hidden_units",),
    "buffer_size": ("replay_size",),
    "learning_starts": ("start_steps", "update_after", "replay_start"),
    "train_freq": ("update_every",),
    "tau": ("polyak",),
    "norm_obs": ("normalize_observations",),
    "features_extractor_class": ("encoder",),
    **dict.fromkeys(("lstm", "LSTM", "gru", "rnn", "use_lstm", "recurrent_policy"), ("recurrent",)),
    **dict.fromkeys(("lstm_hidden_size", "lstm_cell_size", "n_lstm_layers", "num_layers"), ("recurrent_units",)),
    "hidden_size": ("hidden_units", "recurrent_units"),
    **dict.fromkeys(("SequenceLength", "max_seq_len"), ("sequence_length",)),
    "validation_split": ("validation_env",),
    "action_noise": ("noise", "act_noise"),
    "target_policy_noise": ("target_noise",),
    "target_noise_clip": ("noise_clip",),
    "eval_env": ("validation_env",),
    "n_eval_episodes": ("validation_episodes", "episodes"),
    "n_envs": ("num_envs",),
    "seed": ("seeds",),
    "deterministic": ("stochastic",),
}
"""What arguments are called in other libraries, and here."""
NOTES = {"tau": ", which is 1 - tau"}
"""What else is to be known of some."""
PLACES: dict[str, str] = {"deterministic": " of `evaluate`; `predict` does not explore"}
PLACES |= dict.fromkeys(("total_timesteps", "timesteps", "total_steps", "eval_env", "n_eval_episodes"), " of `fit`")
"""Where some are that are asked for at other places."""


def question(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """Which of the known words may have been meant; nothing where none is like it.

    Args:
        word: what is not known; the words of other libraries have underscores.
        known: what is known.
        form: how words are shown.
    """
    known, there, note = list(known), ELSEWHERE.get(word, ()), NOTES.get(word, "")
    names = [name for name in there if name in known] or difflib.get_close_matches(word, known, 1)
    if not names and word in PLACES:
        names, note = there, PLACES[word]
    return f" Did you mean {' and '.join(form.format(name) for name in names)}{note}?" if names else ""


def refuse(function: Callable[..., Any], unknown: Collection[str]) -> None:
    """Raises `TypeError` for keyword arguments that a function does not have, if there are any."""
    if unknown:
        error = f"got an unexpected keyword argument {next(iter(unknown))!r}"
        raise TypeError(misused(function, inspect.signature(function), (), unknown, error))


def misused(function: Any, signature: inspect.Signature, args: Any, given: Collection[str], error: Any) -> str:
    """What is wrong with a call, and which argument may have been meant."""
    message = f"{function.__qualname__}() {error}"
    unknown = next((each for each in given if each not in signature.parameters), "")
    if unknown == "policy" or any(isinstance(each, str) and each.endswith("Policy") for each in args):
        return f"{message}. The environment comes first, and networks are options (`hidden_units`, `pi`): TD3(env)"
    return message + question(unknown, signature.parameters).replace(" ", ". ", 1)


def refuse_positional_updates(given: Sequence[Any]) -> None:
    """Raise `TypeError` for positional arguments of `Agent.learn`, if there are any.

    Stable-Baselines3's `learn` takes a number of environment steps there; `Agent.learn` makes updates.
    """
    if given:
        received = ", ".join(f"{value!r:.80}" for value in given)
        raise TypeError(
            "Agent.learn() takes no positional arguments. To train on an environment, call "
            "agent.fit(env, epochs=..., steps_per_epoch=...); to make a number of updates on the transitions in the "
            f"replay buffer, call agent.learn(updates=...). Received: learn({received})"
        )
