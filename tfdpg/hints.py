"""Suggestions in error messages: similar names, and the counterparts of other libraries' names."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

OTHER_LIBRARIES = {
    "learning_rate": "lr pi_lr q_lr",
    "lr": "pi_lr q_lr",
    **dict.fromkeys(("total_timesteps", "timesteps", "total_steps"), "epochs steps_per_epoch"),
    "policy": "hidden_units networks pi",
    "policy_kwargs": "hidden_units activation",
    "net_arch": "hidden_units",
    "buffer_size": "replay_size",
    "learning_starts": "start_steps update_after replay_start",
    "train_freq": "update_every",
    "tau": "polyak",
    "norm_obs": "normalize_observations",
    "features_extractor_class": "encoder",
    **dict.fromkeys(("lstm", "LSTM", "gru", "rnn", "use_lstm", "recurrent_policy"), "recurrent"),
    **dict.fromkeys(("lstm_hidden_size", "lstm_cell_size", "n_lstm_layers", "num_layers"), "recurrent_units"),
    "hidden_size": "hidden_units recurrent_units",
    **dict.fromkeys(("SequenceLength", "max_seq_len"), "sequence_length"),
    **dict.fromkeys(("validation_split", "eval_env"), "validation_env"),
    "action_noise": "noise act_noise",
    "target_policy_noise": "target_noise",
    "target_noise_clip": "noise_clip",
    "n_eval_episodes": "validation_episodes episodes",
    "n_envs": "num_envs",
    "seed": "seeds",
    "deterministic": "stochastic",
    **dict.fromkeys(("verbose", "progress_bar"), "verbose"),
    "eval_freq": "steps_per_epoch",
    "goal_selection_strategy": "her",
    "n_sampled_goal": "her_ratio",
}
"""Arguments of other libraries, and the corresponding arguments of tfdpg, separated by spaces."""
NOTES = {"tau": ", which is 1 - tau", "n_sampled_goal": ", which is n / (n + 1)"}
"""Remarks on some of these."""
_FIT = ("total_timesteps", "timesteps", "total_steps", "eval_env", "validation_split", "verbose", "progress_bar")
OTHER_PLACES = {
    **{name: f"{' and '.join(f'`{each}`' for each in OTHER_LIBRARIES[name].split())} of `fit`" for name in _FIT},
    "n_eval_episodes": "`validation_episodes` of `fit`",
    "deterministic": "`stochastic` of `evaluate`; `predict` does not explore",
}
"""Arguments in Python code, and the corresponding arguments of other methods than the one that was called."""

_HER = 'Hindsight experience replay (HER) is the option `her` of DDPG, TD3, D4PG and TD7, such as her="future".'
_LOSSES = (
    "The losses belong to the algorithm and are not options. docs/changing-a-loss.md shows how to change one in a "
    "subclass."
)
_REPLAY_BUFFER = (
    "The class of the replay buffer is fixed. `replay_size` says how large it is; `replay` and `n_step` of DDPG, TD3, "
    f"D4PG and TD7 say how it is sampled. {_HER}"
)
_TENSORBOARD = (
    "`tfdpg train` writes TensorBoard's files into the directory of the run. In Python: "
    "agent.fit(env, callbacks=[tfdpg.callbacks.ScalarWriter(log_dir)])"
)
_SAVED = "A saved agent is a directory with its replay buffer: agent.save(path) and tfdpg.load_agent(path)"
_ALGORITHMS = "tfdpg has DDPG, TD3, D4PG, TD7 and ACER."

ARGUMENTS = {
    **dict.fromkeys(
        ("loss", "loss_fn", "loss_function", "q_loss", "pi_loss", "critic_loss", "actor_loss", "policy_loss"), _LOSSES
    ),
    "recurrent": "DDPG, TD3 and D4PG can be recurrent.",
    **dict.fromkeys(
        ("pi", "q1", "q2"),
        "DDPG, TD3, D4PG and ACER take custom networks `pi` and `q1`, TD3 and D4PG also `q2`; the flag is --networks. "
        "Those of TD7 are built in; its `encoder` takes your own features.",
    ),
    **dict.fromkeys(("replay_buffer_class", "replay_buffer_kwargs", "replay_buffer"), _REPLAY_BUFFER),
    **dict.fromkeys(("her", "her_ratio"), _HER),
    **dict.fromkeys(("tensorboard_log", "tb_log_name"), f"{_TENSORBOARD}."),
}
"""Advice for arguments of other libraries that have no counterpart in tfdpg, and of agents that others do not have."""
ATTRIBUTES = {
    "load": f"{_SAVED}.",
    "save_replay_buffer": f"{_SAVED}. agent.replay.save(path) saves the replay buffer alone.",
    "load_replay_buffer": f"{_SAVED}. agent.replay.load(path) loads what agent.replay.save(path) wrote.",
    "replay_buffer": "The replay buffer is agent.replay.",
    **dict.fromkeys(("get_parameters", "set_parameters"), "See agent.get_weights() and agent.set_weights(weights)."),
    **dict.fromkeys(
        ("get_env", "set_env", "env"),
        "An agent keeps no environment; fit and evaluate take it as their first argument: agent.fit(env).",
    ),
    "num_timesteps": "The number of environment steps is agent.env_steps.",
    **dict.fromkeys(("tensorboard_log", "logger", "set_logger"), f"{_TENSORBOARD}."),
    **dict.fromkeys(("observation_space", "action_space"), "The spaces are attributes of agent.spec."),
    **dict.fromkeys(("critic", "critic_target"), "The networks are agent.networks, their targets agent.targets."),
    "train": "agent.fit(env) trains on an environment; agent.learn(updates=n) makes a number of updates.",
}
"""Advice for methods of other libraries' agents."""
NAMES = {
    **dict.fromkeys(("SAC", "CrossQ", "TQC", "REDQ"), f"{_ALGORITHMS} TD3 and D4PG are for the same environments."),
    **dict.fromkeys(
        ("PPO", "A2C", "A3C", "TRPO", "ARS"), f"{_ALGORITHMS} TD3 and D4PG are for Box actions, ACER also for Discrete."
    ),
    **dict.fromkeys(("DQN", "QRDQN"), f"{_ALGORITHMS} ACER is for Discrete actions."),
    **dict.fromkeys(("HerReplayBuffer", "HER"), _HER),
    "ReplayBuffer": "The replay buffer of an agent is agent.replay; the class is tfdpg.replay.ReplayBuffer.",
    "make_vec_env": "See gymnasium.make_vec(env_id, num_envs=...).",
    "evaluate_policy": "See tfdpg.evaluate(policy, env).",
    "load_model": "See tfdpg.load_agent(path) for a saved agent, and tfdpg.load(path) for an exported model.",
}
"""Advice for names of other libraries."""


def did_you_mean(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """Suggest the known words that an unknown word may stand for.

    Args:
        word: the unknown word, with underscores.
        known: the known words.
        form: the format of a word in the suggestion.

    Returns:
        " Did you mean ...?", or an empty string if no known word is similar.
    """
    known = list(known)
    names = difflib.get_close_matches(word, known, 1)
    if word in OTHER_LIBRARIES:
        names = [name for name in OTHER_LIBRARIES[word].split() if name in known]
    return f" Did you mean {' and '.join(map(form.format, names))}{NOTES.get(word, '')}?" if names else ""


def missing_attribute(owner: str, name: str, advice: Mapping[str, str]) -> str:
    """Return the message of an `AttributeError`, with advice for names of other libraries.

    Args:
        owner: the object, as Python names it: "module 'tfdpg'".
        name: the missing attribute.
        advice: sentences by attribute.
    """
    return f"{owner} has no attribute {name!r}" + (f". {advice[name]}" if name in advice else "")


def reject_schedule(name: str, value: Any) -> None:
    """Raise `ValueError` if an option is a learning rate and its value a schedule, and name the alternative."""
    if callable(value) and (name == "lr" or name.endswith("_lr")):
        optimizer = f"{name.removesuffix('lr')}optimizer"
        raise ValueError(
            f"`{name}` must be a number. A learning rate that changes is part of an optimizer: pass a keras "
            f"LearningRateSchedule in {optimizer}=keras.optimizers.Adam(schedule), or give `fit` the callback "
            f"keras.callbacks.LearningRateScheduler. Received: {name}={value!r}"
        )


def reject_unknown_arguments(function: Callable[..., Any], unknown: Collection[str]) -> None:
    """Raise `TypeError` if there are unknown keyword arguments."""
    if unknown:
        error = f"got an unexpected keyword argument {next(iter(unknown))!r}"
        raise TypeError(call_error(function, inspect.signature(function), (), unknown, error))


def call_error(function: Any, signature: inspect.Signature, args: Any, given: Collection[str], error: Any) -> str:
    """Return the message for a call that does not match a signature, with advice on the argument.

    Args:
        function: the function.
        signature: its signature.
        args: the positional arguments of the call, including `self`.
        given: the names of the keyword arguments.
        error: Python's description of the problem.
    """
    message = f"{function.__qualname__}() {error}"
    unknown = next((each for each in given if each not in signature.parameters), "")
    owner, _, method = function.__qualname__.rpartition(".")
    is_policy = unknown == "policy" or any(isinstance(each, str) and each.endswith("Policy") for each in args)
    if method == "__init__" and is_policy:
        networks = " and ".join(f"`{each}`" for each in ("hidden_units", "pi") if each in signature.parameters)
        return f"{message}. The environment comes first, and networks are options ({networks}): {owner}(env)"
    if unknown in ARGUMENTS:
        return f"{message}. {ARGUMENTS[unknown]}"
    if method == "fit" and len(args) > 2:  # self, x and y
        return (
            f"{message}. Expected one: fit(env, epochs=..., steps_per_epoch=...), where `env` is an environment, a "
            "vector environment or the id of one; all options are keyword arguments. Received: "
            f"{', '.join(type(each).__name__ for each in args[1:])}. For stored transitions, call "
            "agent.fit_offline(data)"
        )
    meant = did_you_mean(unknown, signature.parameters)
    if not meant and unknown in OTHER_PLACES:
        meant = f" Did you mean {OTHER_PLACES[unknown]}?"
    return message + meant.replace(" ", ". ", 1)


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
