"""The exported functions of agents with a memory: a step of the policy, whose caller keeps the state, and episodes."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.export.signature import Outputs, Signature, finite_rows, refuse_keys, tensors, where_finite, with_zeros
from tfdpg.export.verify import Run, compare
from tfdpg.exported import named_recurrent_inputs
from tfdpg.networks import Recurrent, bounded
from tfdpg.spec import Spec

STEPS = 5
"""How many steps the session goes to be compared with the networks."""


def step_signatures(spec: Spec, pi: Recurrent, recurrent_spec: RecurrentSpec) -> dict[str, Signature]:
    """A policy with a memory as pure functions: `pi`, a step, and `initial_state`; the model itself keeps no state.

    `initial_state(batch) → a_before, h, c` is what episodes begin with, `[batch, n]` each for a number `batch`, and
    `pi(x, a_before, h, c) → pi, h, c` is a step; `h, c` are the parts of the state by their names, and `r_before`
    `[batch]` comes with rewards that are remembered.

    Args:
        spec: the spaces.
        pi: the policy.
        recurrent_spec: what it recalls.

    Raises:
        ValueError: a part of the observation has the name of another input.
    """
    start = recurrent_spec.initial_state(1)
    inputs = {
        name: tf.TensorSpec([None, *x.shape[1:]], tf.float32, name=name)
        for name, x in named_recurrent_inputs(recurrent_spec, start).items()
    }
    refuse_keys(spec, dict.fromkeys(inputs, "pi") | ({"r": "q1"} if recurrent_spec.uses_reward else {}))

    def initial_state(_: None, batch: Any) -> Outputs:
        return named_recurrent_inputs(recurrent_spec, tf.tile(tf.constant(start), tf.stack([batch, 1])))

    def step(observation: Any, **given: Any) -> Outputs:
        if recurrent_spec.uses_action:
            given["a_before"] = bounded(spec, given["a_before"])
        recurrent_inputs = [given[name][:, None] if name == "r_before" else given[name] for name in inputs]
        output = pi((observation, tf.concat(recurrent_inputs, axis=-1)))
        action, *state = tf.split(output, [spec.act_dim, *(width for _, width in recurrent_spec.parts)], axis=-1)
        return {"pi": bounded(spec, action)} | dict(zip(dict(recurrent_spec.parts), state, strict=True))

    def example_state(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is recalled after two steps."""
        given = initial_state(None, _count(observations))
        reward = _rewards(observations, 1)
        for _ in range(2):
            given = next_step_inputs(recurrent_spec, step(tensors(spec, observations), **given), reward)
        return {name: np.asarray(values) for name, values in given.items()}

    batch = {"batch": tf.TensorSpec([], tf.int32, name="batch")}
    initial_state_signature = Signature(initial_state, batch, lambda rows: {"batch": _count(rows)}, axes=0)
    return {"pi": Signature(step, inputs, example_state), "initial_state": initial_state_signature}


def next_step_inputs(recurrent_spec: RecurrentSpec, outputs: Mapping[str, Any], reward: Any) -> dict[str, Any]:
    """What `pi` takes after a step: what it gave, and the reward."""
    names = {"a_before": outputs["pi"]} if recurrent_spec.uses_action else {}
    names |= {"r_before": reward} if recurrent_spec.uses_reward else {}
    return names | {name: outputs[name] for name, _ in recurrent_spec.parts}


def sequence_signature(recurrent_spec: RecurrentSpec, critic: Recurrent, signature: Signature) -> Signature:
    """A signature on sequences from an episode's start: inputs and outputs are `[batch, time, ...]`.

    What came before a step are the actions of the sequence, and its rewards, the input `r`, if they are remembered.
    A step with a non-finite number in its observation, its action or the reward before it has outputs of NaN. The
    recurrent state does not change at a step whose observation or reward before is not finite, and after an action that
    is not finite the one before it is still the last action.

    Args:
        recurrent_spec: what the critic recalls.
        critic: remembers the sequence.
        signature: of what is remembered, in place of an observation, and of an action.
    """

    def compute(observation: Any, a: Any, r: Any = None, **others: Any) -> Outputs:
        batch = tf.shape(a)[0]
        time = tf.shape(a)[1]
        acted = finite_rows([a], 2)
        a = with_zeros(a)
        previous = _previous_inputs(
            recurrent_spec, _last_finite(a, acted, recurrent_spec.spec.center) if recurrent_spec.uses_action else a, r
        )
        valid = finite_rows([previous, *(x for x in keras.tree.flatten(observation) if x.dtype.is_floating)], 2)
        seen = keras.tree.map_structure(with_zeros, observation)
        previous = with_zeros(previous)
        remembered, _ = critic.unroll(seen, previous, valid, critic.initial_state(previous))
        others = {name: _for_each_step(values, batch, time) for name, values in others.items()}
        outputs = signature.compute(_flat(remembered), a=_flat(a), **others)
        outputs = {name: _unflat(values, batch, time) for name, values in outputs.items()}
        return {name: where_finite(valid & acted, values, np.nan) for name, values in outputs.items()}

    def examples(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return signature.examples(observations) | {"r": _rewards(observations, 2)}

    action = signature.inputs["a"]
    inputs = {"a": tf.TensorSpec([None, *action.shape], action.dtype, name="a")}
    if recurrent_spec.uses_reward:
        inputs["r"] = tf.TensorSpec([None, None], tf.float32, name="r")
    return Signature(compute, dict(signature.inputs) | inputs, examples, axes=2)


def check_steps(
    pi: Recurrent, recurrent_spec: RecurrentSpec, examples: Mapping[str, np.ndarray], tolerance: float, run: Run
) -> None:
    """Steps through episodes by the signatures, and compares with the policy unrolled in one call.

    Args:
        pi: the policy.
        recurrent_spec: what it recalls.
        examples: raw observations by input name.
        tolerance: relative, and absolute for what is small.
        run: computes signatures.

    Raises:
        ExportError: they differ.
    """
    rows = [{name: np.roll(values, -t, axis=0) for name, values in examples.items()} for t in range(STEPS)]
    steps = []
    given = run("initial_state", {"batch": _count(examples)})
    rewards = np.stack([np.roll(_rewards(examples, 1), -t) for t in range(STEPS)], axis=1)
    for t, observations in enumerate(rows):
        steps.append(run("pi", {**observations, **given}))
        given = next_step_inputs(recurrent_spec, steps[-1], rewards[:, t])
    action = np.stack([step["pi"] for step in steps], axis=1)
    observation = tensors(
        recurrent_spec.spec, {name: np.stack([row[name] for row in rows], axis=1) for name in examples}
    )
    previous = _previous_inputs(recurrent_spec, action, rewards)
    remembered, state = pi.unroll(observation, previous, tf.ones(action.shape[:2], tf.bool), pi.initial_state(previous))
    expected = bounded(recurrent_spec.spec, pi.apply_torso(_flat(remembered))).numpy()
    found = np.concatenate([steps[-1][name] for name, _ in recurrent_spec.parts], axis=1)
    compare("pi, stepped from initial_state", action, expected.reshape(action.shape), tolerance, tolerance)
    compare("pi, stepped from initial_state", found, state.numpy(), tolerance, tolerance)


def _last_finite(a: Any, finite: Any, start: np.ndarray) -> tf.Tensor:
    """For each step of `[batch, time, n]` the last finite value up to it; `start` `[n]` where there is none."""
    time = tf.shape(a)[1]
    steps = tf.range(time)
    finite_first = tf.argsort(tf.where(finite, steps, steps + time), axis=1)
    count = tf.cumsum(tf.cast(finite, tf.int32), axis=1)
    last = tf.gather(finite_first, tf.maximum(count - 1, 0), axis=1, batch_dims=1)
    return where_finite(count > 0, tf.gather(a, last, axis=1, batch_dims=1), start)


def _previous_inputs(recurrent_spec: RecurrentSpec, action: Any, reward: Any) -> tf.Tensor:
    """The actions and the rewards before each step of episodes, of those after it, `[batch, time, previous_width]`."""
    steps = [bounded(recurrent_spec.spec, action)] if recurrent_spec.uses_action else [tf.zeros_like(action[..., :0])]
    steps += [reward[..., None]] if recurrent_spec.uses_reward else []
    first = tf.constant(recurrent_spec.initial_state(1)[:, None, : recurrent_spec.previous_width])
    after = tf.concat(steps, axis=-1)[:, :-1]
    return tf.concat([tf.tile(first, tf.stack([tf.shape(action)[0], 1, 1])), after], axis=1)


def _for_each_step(values: Any, batch: Any, time: Any) -> tf.Tensor:
    """`[n]` or `[batch, n]` as `[batch · time, n]`."""
    width = tf.shape(values)[-1]
    return tf.repeat(tf.broadcast_to(tf.reshape(values, [-1, width]), [batch, width]), time, axis=0)


def _flat(x: Any) -> Any:
    """`[batch, time, n]` as `[batch · time, n]`."""
    return tf.reshape(x, [-1, x.shape[-1]])


def _unflat(x: Any, batch: Any, time: Any) -> tf.Tensor:
    sizes = [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(x.shape)]
    return tf.reshape(x, [batch, time, *sizes[1:]])


def _count(observations: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.array(len(next(iter(observations.values()))), np.int32)


def _rewards(observations: Mapping[str, np.ndarray], axes: int) -> np.ndarray:
    """An example for each observation, of which so many axes are free."""
    shape = next(iter(observations.values())).shape[:axes]
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
