"""What may have been meant: near names, and the words of other libraries."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

OTHER_LIBRARIES = {
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
    "verbose": ("verbose",),
    "progress_bar": ("verbose",),
}
"""What arguments are called in other libraries, and here."""
NOTES = {"tau": ", which is 1 - tau"}
"""What else is to be known of some."""
OTHER_PLACES: dict[str, str] = {"deterministic": " of `evaluate`; `predict` does not explore"}
OTHER_PLACES |= dict.fromkeys(
    ("total_timesteps", "timesteps", "total_steps", "eval_env", "n_eval_episodes"), " of `fit`"
)
OTHER_PLACES |= dict.fromkeys(("verbose", "progress_bar"), " of `fit`")
"""Where some are that are asked for at other places."""

_HER = "Hindsight experience replay (HER) is not available."
_LOSSES = (
    "The losses belong to the algorithm and are not options. docs/changing-a-loss.md shows how to change one in a copy "
    "of the algorithm's file."
)
_REPLAY_BUFFER = (
    f"The class of the replay buffer is fixed; `replay` and `n_step` say how it is sampled, `replay_size` how large it "
    f"is. {_HER}"
)
_SAVED = "A saved agent is a directory with its replay buffer: agent.save(path) and tfdpg.load_agent(path)"
_ALGORITHMS = "tfdpg has DDPG, TD3, D4PG and ACER."

ARGUMENTS = {
    **dict.fromkeys(
        ("loss", "loss_fn", "loss_function", "q_loss", "pi_loss", "critic_loss", "actor_loss", "policy_loss"), _LOSSES
    ),
    **dict.fromkeys(("replay_buffer_class", "replay_buffer_kwargs", "replay_buffer"), _REPLAY_BUFFER),
}
"""What to do in place of arguments of other libraries that no argument of tfdpg corresponds to."""
ATTRIBUTES = {
    "load": f"{_SAVED}.",
    "save_replay_buffer": f"{_SAVED}. agent.replay.save(path) saves the replay buffer alone.",
    "load_replay_buffer": f"{_SAVED}. agent.replay.load(path) loads what agent.replay.save(path) wrote.",
    "replay_buffer": "The replay buffer is agent.replay.",
    **dict.fromkeys(("get_parameters", "set_parameters"), "See agent.get_weights() and agent.set_weights(weights)."),
    "get_env": "An agent keeps no environment; fit and evaluate take it as their first argument.",
}
"""What to use in place of methods of other libraries' agents."""
NAMES = {
    **dict.fromkeys(("SAC", "CrossQ", "TQC", "REDQ"), f"{_ALGORITHMS} TD3 and D4PG are for the same environments."),
    **dict.fromkeys(
        ("PPO", "A2C", "A3C", "TRPO", "ARS"), f"{_ALGORITHMS} TD3 and D4PG are for Box actions, ACER also for Discrete."
    ),
    **dict.fromkeys(("DQN", "QRDQN"), f"{_ALGORITHMS} ACER is for Discrete actions."),
    **dict.fromkeys(("HerReplayBuffer", "HER"), _HER),
    "ReplayBuffer": "The replay buffer of an agent is agent.replay.",
    "make_vec_env": "See gymnasium.make_vec(env_id, num_envs=...).",
    "evaluate_policy": "See tfdpg.evaluate(policy, env).",
    "load_model": "See tfdpg.load_agent(path) for a saved agent, and tfdpg.load(path) for an exported model.",
}
"""What to use in place of names of other libraries."""


def did_you_mean(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """Which of the known words may have been meant; nothing where none is like it.

    Args:
        word: what is not known; the words of other libraries have underscores.
        known: what is known.
        form: how words are shown.
    """
    known = list(known)
    candidates = OTHER_LIBRARIES.get(word, ())
    note = NOTES.get(word, "")
    names = [name for name in candidates if name in known] or difflib.get_close_matches(word, known, 1)
    if not names and word in OTHER_PLACES:
        names = candidates
        note = OTHER_PLACES[word]
    return f" Did you mean {' and '.join(form.format(name) for name in names)}{note}?" if names else ""


def missing_attribute(owner: str, name: str, advice: Mapping[str, str]) -> str:
    """The message of an `AttributeError`, with what to use in place of a name that other libraries have.

    Args:
        owner: what has no such attribute, as Python names it: "module 'tfdpg'".
        name: the attribute.
        advice: the sentences about some names.
    """
    return f"{owner} has no attribute {name!r}" + (f". {advice[name]}" if name in advice else "")


def schedule_as_rate(name: str, value: Any) -> str:
    """What to do where a learning rate was given as a schedule; nothing for other options and values."""
    if not callable(value) or not (name == "lr" or name.endswith("_lr")):
        return ""
    optimizer = f"{name.removesuffix('lr')}optimizer"
    return (
        f". A learning rate that changes is part of an optimizer: pass a keras LearningRateSchedule in "
        f"{optimizer}=keras.optimizers.Adam(schedule), or give `fit` the callback keras.callbacks.LearningRateScheduler"
    )


def reject_unknown_arguments(function: Callable[..., Any], unknown: Collection[str]) -> None:
    """Raises `TypeError` for keyword arguments that a function does not have, if there are any."""
    if unknown:
        error = f"got an unexpected keyword argument {next(iter(unknown))!r}"
        raise TypeError(call_error(function, inspect.signature(function), (), unknown, error))


def call_error(function: Any, signature: inspect.Signature, args: Any, given: Collection[str], error: Any) -> str:
    """What is wrong with a call, and which argument may have been meant."""
    message = f"{function.__qualname__}() {error}"
    unknown = next((each for each in given if each not in signature.parameters), "")
    if unknown == "policy" or any(isinstance(each, str) and each.endswith("Policy") for each in args):
        return f"{message}. The environment comes first, and networks are options (`hidden_units`, `pi`): TD3(env)"
    if unknown in ARGUMENTS:
        return f"{message}. {ARGUMENTS[unknown]}"
    if function.__name__ == "fit" and len(args) > 2:  # the agent, `x` and `y`
        return (
            f"{message}. Expected one: fit(env, epochs=..., steps_per_epoch=...), where `env` is an environment, a "
            "vector environment or the id of one; all options are keyword arguments. Received: "
            f"{', '.join(type(each).__name__ for each in args[1:])}. For stored transitions, call "
            "agent.fit_offline(data)"
        )
    return message + did_you_mean(unknown, signature.parameters).replace(" ", ". ", 1)


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
