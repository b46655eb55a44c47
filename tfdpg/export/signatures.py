"""The functions that an exported model contains: actions, action values, distributions and recurrent steps."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.exported import LEVELS, named_recurrent_inputs
from tfdpg.networks import Head, Preprocessed, Recurrent, bounded, chosen_actions, flat_values, head_of, network_inputs
from tfdpg.spec import Spec

Outputs = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """An exported function.

    The exported graph is `outputs`, which applies the rule on non-finite numbers to `compute`.

    Attributes:
        compute: computes the outputs by name from the preprocessed observation and the other inputs by name.
        inputs: the inputs besides the observation; `a` is the action.
        examples: returns values `[n, ...]` of the inputs other than `a` for raw observations `[n, ...]` by name.
        axes: the number of free axes before those of an observation: 1 for a batch, 2 for a batch of sequences, 0 for a
            signature that takes no observation.
        network: the model that computes the output from the observation and the action; None if it is not a model
            alone.
    """

    compute: Callable[..., Outputs]
    inputs: Mapping[str, tf.TensorSpec]
    examples: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] = lambda observations: {}
    axes: int = 1
    network: keras.Model | None = None

    def outputs(self, spec: Spec, observation: Any, **inputs: tf.Tensor) -> Outputs:
        """Compute the outputs, in a graph or eagerly.

        A row with NaN or an infinity in one of its inputs gets NaN in all outputs, except that the recurrent state is
        returned unchanged and integer outputs are `spec.no_action`; observations may have such numbers if missing ones
        are held. The networks receive 0 in place of such numbers, so other rows cannot be affected. Signatures of
        sequences apply the rule to each step themselves, and `levels` has no rows.

        Args:
            spec: the spaces.
            observation: the preprocessed observation; None if the signature takes no observation.
            inputs: the other inputs, by name.
        """
        rows = {name: values for name, values in inputs.items() if self.inputs[name].shape.rank}
        holds = spec.missing == "hold"
        checked = [rows] if holds else [observation, rows]
        floats = [x for x in keras.tree.flatten(checked) if x is not None and x.dtype.is_floating]
        if self.axes != 1 or not floats:
            return self.compute(observation, **inputs)
        finite = finite_rows(floats, 1)
        rows = {name: with_zeros(values) for name, values in rows.items()}
        seen = observation if holds else keras.tree.map_structure(with_zeros, observation)
        outputs = self.compute(seen, **inputs | rows)
        return {
            name: where_rows(finite, values, inputs.get(name, spec.no_action if values.dtype.is_integer else np.nan))
            for name, values in outputs.items()
        }

    def concrete(self, spec: Spec) -> Any:
        """Trace the function for raw inputs."""
        leaves = {
            leaf.name: tf.TensorSpec([*[None] * self.axes, *leaf.shape], leaf.dtype, name=leaf.name)
            for leaf in (spec.leaves if self.axes else ())
        }

        def call(*tensors: tf.Tensor) -> Outputs:
            inputs = dict(zip([*leaves, *self.inputs], tensors, strict=True))
            observation = network_inputs(spec, {name: inputs[name] for name in leaves}) if leaves else None
            return self.outputs(spec, observation, **{name: inputs[name] for name in self.inputs})

        # positional arguments, because the name of a `TensorSpec` may contain a slash and that of an argument may not
        return tf.function(call, autograph=False).get_concrete_function(*leaves.values(), *self.inputs.values())

    def reference(self, spec: Spec) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """Return a function that computes the expected outputs eagerly with the agent's networks."""

        def compute(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            observation = tensors(spec, inputs) if self.axes else None
            outputs = self.outputs(spec, observation, **{name: tf.constant(inputs[name]) for name in self.inputs})
            return {name: output.numpy() for name, output in outputs.items()}

        return compute


def signatures(
    spec: Spec,
    networks: Mapping[str, Any],
    policy: Any,
    *,
    critics: Sequence[str],
    recurrent_spec: RecurrentSpec | None = None,
) -> dict[str, Signature]:
    """Return the signatures of a deterministic actor-critic.

    `pi(x) → pi` computes actions within their bounds, `[batch, act_dim]`. Each critic has a signature of its name, such
    as `q1(x, a) → q1`, which computes action values, `[batch]`; a single critic `q1` is also exported as `q2`.
    `pi_and_q(x) → pi, q1, q2, ...` computes all of them in one call. Recurrent agents have `step_signatures`, action
    values of sequences (see `sequence_signature`), and no `pi_and_q`, because a single step has no action value.

    Args:
        spec: the spaces of the environment.
        networks: the networks by name.
        policy: the evaluation policy, a Keras model.
        critics: the names of the networks that are critics, from an observation and an action to a value.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.

    Returns:
        The signatures by name. A declaration has
        `signatures=functools.partial(tfdpg.export.signatures, spec, critics=("q1", "q2"))`.
    """
    exported = {name: networks[name] for name in critics}
    if recurrent_spec is None:
        made = single_step_signatures(spec, policy, {name: _action_values(each) for name, each in exported.items()})
        return made | {name: made[name]._replace(network=network) for name, network in exported.items()}
    return step_signatures(spec, policy, recurrent_spec, next(iter(exported), "pi")) | {
        name: sequence_signature(recurrent_spec, critic, _value_signature(spec, name, _action_values(critic.torso)))
        for name, critic in _with_second(exported).items()
    }


def single_step_signatures(
    spec: Spec, policy: keras.Model, values: Mapping[str, Callable[[Any, tf.Tensor], tf.Tensor]]
) -> dict[str, Signature]:
    """Return `pi`, a signature for each critic, and `pi_and_q`.

    Args:
        spec: the spaces.
        policy: the evaluation policy.
        values: functions from observations and actions to action values `[batch]`, by the names of the critics.
    """
    values = _with_second(values)

    def act(observation: Any) -> Outputs:
        return {"pi": chosen_actions(spec, policy(observation))}

    def act_and_evaluate(observation: Any) -> Outputs:
        outputs = act(observation)
        return outputs | {name: value(observation, outputs["pi"]) for name, value in values.items()}

    return {
        "pi": Signature(act, {}),
        **{name: _value_signature(spec, name, value) for name, value in values.items()},
        "pi_and_q": Signature(act_and_evaluate, {}),
    }


def _with_second(critics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the critics, and a single `q1` as `q2` too, so that clients may rely on both names."""
    return {**critics, "q2": critics["q1"]} if list(critics) == ["q1"] else dict(critics)


def _value_signature(spec: Spec, name: str, value: Callable[[Any, tf.Tensor], tf.Tensor]) -> Signature:
    """Return the signature of a critic, whose output has the signature's name."""
    return Signature(lambda observation, a: {name: value(observation, a)}, _action_input(spec))


def _action_values(critic: Any) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Return the function from observations and actions to a critic's expected returns, `[batch]`."""
    head = head_of(critic)
    value = flat_values if head is None else head.mean
    return lambda observation, a: value(critic([observation, a]))


def return_signature(spec: Spec, critic: Any, head: Head, recurrent_spec: RecurrentSpec | None = None) -> Signature:
    """Return `z(x, a, levels)`, the distribution of the return with its quantiles and conditional values at risk.

    `levels` is `[batch, L]`, or `[1, L]` for all rows; both outputs are `[batch, L]`. For recurrent agents they
    are `[batch, time, L]` of sequences (see `sequence_signature`).

    Raises:
        ValueError: a key of the observation space is `levels`.
    """
    _refuse_keys(spec, {"levels": "z"})
    if recurrent_spec is not None:
        return sequence_signature(recurrent_spec, critic, return_signature(spec, critic.torso, head))

    def compute(observation: Any, a: tf.Tensor, levels: tf.Tensor) -> Outputs:
        output = critic([observation, a])
        levels = tf.broadcast_to(levels, [tf.shape(output)[0], tf.shape(levels)[-1]])
        risk = {"quantiles": head.quantiles(output, levels), "cvar": head.cvar(output, levels)}
        return head.describe(output) | risk

    inputs = _action_input(spec) | {"levels": tf.TensorSpec([None, None], tf.float32, name="levels")}
    return Signature(compute, inputs, lambda rows: {"levels": np.array([LEVELS] * int(count(rows)), np.float32)})


def preprocessed_signatures(
    policy: Preprocessed, recurrent_spec: RecurrentSpec | None, made: Mapping[str, Signature]
) -> dict[str, Signature]:
    """Return the signatures of a policy that preprocesses the environment's observations.

    If the preprocessing has a state, `pi` and `initial_state` are those of `step_signatures`, as for a recurrent
    policy. All others take sequences (see `sequence_signature`), and there is no `pi_and_q`.

    Args:
        policy: the policy.
        recurrent_spec: describes the state of the preprocessing; None if it has none.
        made: the signatures of the policy and the critics that receive features.
    """
    if recurrent_spec is None:

        def compute(signature: Signature, observation: Any, **inputs: Any) -> Outputs:
            return signature.compute(policy.features(observation, None)[0], **inputs)

        return {
            name: each._replace(compute=functools.partial(compute, each), network=None) for name, each in made.items()
        }
    return step_signatures(recurrent_spec.spec, policy, recurrent_spec, "pi") | {
        name: sequence_signature(recurrent_spec, policy, each)
        for name, each in made.items()
        if name not in ("pi", "pi_and_q")
    }


def step_signatures(
    spec: Spec, pi: Recurrent | Preprocessed, recurrent_spec: RecurrentSpec, critic: str
) -> dict[str, Signature]:
    """Return a recurrent policy as pure functions: `pi`, a step, and `initial_state`. The client keeps the state.

    `initial_state(batch) → a_before, h, c` returns the inputs for the first step of `batch` episodes, `[batch, n]`
    each. `pi(x, a_before, h, c) → pi, h, c` is a step; `h` and `c` are the parts of the recurrent state, whose names
    depend on the cells. Policies that receive previous rewards also take `r_before`, `[batch]`.

    Args:
        spec: the spaces.
        pi: the policy.
        recurrent_spec: describes its recurrent state.
        critic: the name of a critic, whose signature takes previous rewards as `r`.

    Raises:
        ValueError: a key of the observation space is the name of another input.
    """
    start = recurrent_spec.initial_state(1)
    inputs = {
        name: tf.TensorSpec([None, *x.shape[1:]], tf.float32, name=name)
        for name, x in named_recurrent_inputs(recurrent_spec, start).items()
    }
    _refuse_keys(spec, dict.fromkeys(inputs, "pi") | ({"r": critic} if recurrent_spec.uses_reward else {}))

    def initial_state(_: None, batch: Any) -> Outputs:
        return named_recurrent_inputs(recurrent_spec, tf.tile(tf.constant(start), tf.stack([batch, 1])))

    def step(observation: Any, **given: Any) -> Outputs:
        if recurrent_spec.uses_action:
            given["a_before"] = bounded(spec, given["a_before"])
        recurrent_inputs = [given[name][:, None] if name == "r_before" else given[name] for name in inputs]
        output = pi((observation, tf.concat(recurrent_inputs, axis=-1)))
        act_width = spec.act_dim if spec.actions is None else spec.actions
        action, *state = tf.split(output, [act_width, *(width for _, width in recurrent_spec.parts)], axis=-1)
        return {"pi": chosen_actions(spec, action)} | dict(zip(dict(recurrent_spec.parts), state, strict=True))

    def example_state(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the recurrent inputs after two steps."""
        given = initial_state(None, count(observations))
        reward = example_rewards(observations, 1)
        for _ in range(2):
            given = next_step_inputs(recurrent_spec, step(tensors(spec, observations), **given), reward)
        return {name: np.asarray(values) for name, values in given.items()}

    batch = {"batch": tf.TensorSpec([], tf.int32, name="batch")}
    return {
        "pi": Signature(step, inputs, example_state),
        "initial_state": Signature(initial_state, batch, lambda rows: {"batch": count(rows)}, axes=0),
    }


def next_step_inputs(recurrent_spec: RecurrentSpec, outputs: Mapping[str, Any], reward: Any) -> dict[str, Any]:
    """Return the recurrent inputs of `pi` from its outputs at the step before and the reward of that step."""
    names = {"a_before": outputs["pi"]} if recurrent_spec.uses_action else {}
    names |= {"r_before": reward} if recurrent_spec.uses_reward else {}
    return names | {name: outputs[name] for name, _ in recurrent_spec.parts}


def sequence_signature(
    recurrent_spec: RecurrentSpec, critic: Recurrent | Preprocessed, signature: Signature
) -> Signature:
    """Return a signature on sequences from an episode's start: inputs and outputs are `[batch, time, ...]`.

    The previous actions are those of the sequence, and so are the previous rewards, the input `r`, if the agent
    receives them. A step with a non-finite number in its observation, its action or its previous reward has outputs of
    NaN; observations may have such numbers if missing ones are held. The recurrent state does not change at a step
    whose observation or previous reward is not finite, and an action that is not finite does not replace the previous
    action.

    Args:
        recurrent_spec: describes the critic's recurrent state.
        critic: a recurrent critic, or a policy that preprocesses, whose features a critic receives.
        signature: computes the outputs of a step from the recurrent layers' output, or the features, and the action.
    """
    spec = recurrent_spec.spec
    takes_action = "a" in signature.inputs

    def compute(observation: Any, a: Any = None, r: Any = None, **others: Any) -> Outputs:
        parts = keras.tree.flatten(observation)
        batch = tf.shape(parts[0])[0]
        time = tf.shape(parts[0])[1]
        if a is None:
            a = tf.zeros([batch, time, spec.act_dim])
        acted = finite_rows([a], 2)
        a = with_zeros(a)
        executed = _last_finite(a, acted, spec.center) if recurrent_spec.uses_action else a
        previous = previous_inputs(recurrent_spec, executed, r)
        holds = spec.missing == "hold"
        valid = finite_rows([previous, *(x for x in parts if x.dtype.is_floating and not holds)], 2)
        seen = observation if holds else keras.tree.map_structure(with_zeros, observation)
        previous = with_zeros(previous)
        features, _ = critic.unroll(seen, previous, valid, critic.initial_state(previous))
        others = {name: _for_each_step(values, batch, time) for name, values in others.items()}
        if takes_action:
            others["a"] = flat(a) if spec.actions is None else tf.reshape(a, [-1])
        outputs = signature.compute(flat(features), **others)
        outputs = {name: _unflat(values, batch, time) for name, values in outputs.items()}
        no_output = {name: spec.no_action if each.dtype.is_integer else np.nan for name, each in outputs.items()}
        return {name: where_rows(valid & acted, values, no_output[name]) for name, values in outputs.items()}

    def examples(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return signature.examples(observations) | {"r": example_rewards(observations, 2)}

    inputs = {}
    if takes_action:
        action = signature.inputs["a"]
        inputs["a"] = tf.TensorSpec([None, *action.shape], action.dtype, name="a")
    if recurrent_spec.uses_reward:
        inputs["r"] = tf.TensorSpec([None, None], tf.float32, name="r")
    return Signature(compute, dict(signature.inputs) | inputs, examples, axes=2)


def previous_inputs(recurrent_spec: RecurrentSpec, action: Any, reward: Any) -> tf.Tensor:
    """Return the previous action and reward at each step of episodes, `[batch, time, previous_width]`.

    Args:
        recurrent_spec: says which of the two the agent receives.
        action: the actions of the episodes, `[batch, time, act_dim]`.
        reward: the rewards of the episodes, `[batch, time]`; None if the agent does not receive them.
    """
    batch, time = (tf.shape(action)[axis] for axis in (0, 1))
    steps = [bounded(recurrent_spec.spec, action)] if recurrent_spec.uses_action else [tf.zeros([batch, time, 0])]
    steps += [reward[..., None]] if recurrent_spec.uses_reward else []
    first = tf.constant(recurrent_spec.initial_state(1)[:, None, : recurrent_spec.previous_width])
    after = tf.concat(steps, axis=-1)[:, :-1]
    return tf.concat([tf.tile(first, tf.stack([batch, 1, 1])), after], axis=1)


def _last_finite(a: Any, finite: Any, start: np.ndarray) -> tf.Tensor:
    """Return for each step of `[batch, time, n]` the last finite value up to it, or `start` `[n]` if there is none."""
    time = tf.shape(a)[1]
    steps = tf.range(time)
    finite_first = tf.argsort(tf.where(finite, steps, steps + time), axis=1)
    so_far = tf.cumsum(tf.cast(finite, tf.int32), axis=1)
    last = tf.gather(finite_first, tf.maximum(so_far - 1, 0), axis=1, batch_dims=1)
    return where_rows(so_far > 0, tf.gather(a, last, axis=1, batch_dims=1), start)


def is_finite(x: tf.Tensor) -> tf.Tensor:
    """Return which numbers are finite, by a comparison, because LiteRT has no operation IsFinite."""
    return tf.abs(x) <= x.dtype.max


def finite_rows(arrays: Sequence[Any], axes: int) -> tf.Tensor:
    """Find the rows in which all numbers are finite.

    Args:
        arrays: floats `[..., n]`, whose first `axes` axes are the rows.
        axes: the number of axes of the result.

    Returns:
        A mask, bool `[batch]` or `[batch, time]`.
    """
    masks = [is_finite(x) for x in arrays]
    masks = [tf.reduce_all(x, list(range(axes, x.shape.rank))) if x.shape.rank > axes else x for x in masks]
    return functools.reduce(operator.and_, masks)


def with_zeros(x: tf.Tensor) -> tf.Tensor:
    """Replace NaN and infinities by 0."""
    return tf.where(is_finite(x), x, tf.zeros_like(x)) if x.dtype.is_floating else x


def where_rows(mask: tf.Tensor, values: tf.Tensor, other: Any) -> tf.Tensor:
    """Select the rows of `values` where the mask is true, and those of `other` elsewhere.

    Args:
        mask: bool `[...]`.
        values: `[..., n]`.
        other: a number, or an array that broadcasts to the shape of `values`.
    """
    for _ in range(values.shape.rank - mask.shape.rank):
        mask = tf.expand_dims(mask, -1)
    return tf.where(mask, values, tf.cast(other, values.dtype))


def tensors(spec: Spec, arrays: Mapping[str, np.ndarray]) -> Any:
    """Preprocess raw observations, given by name, for the networks."""
    return network_inputs(spec, {leaf.name: tf.constant(arrays[leaf.name], leaf.dtype) for leaf in spec.leaves})


def _action_input(spec: Spec) -> dict[str, tf.TensorSpec]:
    """Return the input `a`: float32 `[batch, act_dim]`, or int64 `[batch]` if the action space is Discrete."""
    if spec.actions is not None:
        return {"a": tf.TensorSpec([None], tf.int64, name="a")}
    return {"a": tf.TensorSpec([None, spec.act_dim], tf.float32, name="a")}


def _refuse_keys(spec: Spec, names: Mapping[str, str]) -> None:
    """Raise `ValueError` if a key of the observation space is one of the input names, given with their signatures."""
    for leaf in spec.leaves:
        if spec.is_dict and leaf.name in names:
            signature = names[leaf.name]
            raise ValueError(
                f"The key {leaf.name!r} of the observation space is an input of the exported signature `{signature}`."
            )


def _for_each_step(values: Any, batch: Any, time: Any) -> tf.Tensor:
    """Repeat `[n]` or `[batch, n]` for each step, as `[batch · time, n]`."""
    width = tf.shape(values)[-1]
    return tf.repeat(tf.broadcast_to(tf.reshape(values, [-1, width]), [batch, width]), time, axis=0)


def flat(x: Any) -> Any:
    """Reshape `[batch, time, n]` to `[batch · time, n]`."""
    return tf.reshape(x, [-1, x.shape[-1]])


def _unflat(x: Any, batch: Any, time: Any) -> tf.Tensor:
    sizes = [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(x.shape)]
    return tf.reshape(x, [batch, time, *sizes[1:]])


def count(observations: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the number of observations, int32."""
    return np.array(len(next(iter(observations.values()))), np.int32)


def example_rewards(observations: Mapping[str, np.ndarray], axes: int) -> np.ndarray:
    """Return a reward for each observation; observations have `axes` free axes."""
    shape = next(iter(observations.values())).shape[:axes]
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
