"""An agent with the structure of TD7 (Fujimoto et al. 2023), as a fixture.

It declares what DDPG, TD3, D4PG and ACER do not: two encoders with one optimizer, which have fixed and target copies; a
policy for evaluation and export that is a copy, assessed over several episodes, during which updates are deferred;
priorities by LAP; and a layer, AvgL1Norm, that it registers for NumPy and C itself.
"""

import functools
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

import tfdpg
from tfdpg import export
from tfdpg.acting import numpy_layer
from tfdpg.agents.declarations import check_box, minibatches, normalizer, update_schedule
from tfdpg.agents.options import TD3Options
from tfdpg.components import Component, Context, Copy, Declaration, PolicySpec, adam, every, on_request, run_if
from tfdpg.exploration import noisy_actions
from tfdpg.export import c_layer
from tfdpg.networks import Batch, observation_inputs, stateless_normal
from tfdpg.networks.mlp import box_action, features, initializer, scaled_action
from tfdpg.options import takes_options
from tfdpg.ranges import Count, Positive

METRICS = "loss_q", "loss_pi", "loss_encoder", "q1", "td_error"
ENCODERS = "state_encoder", "action_encoder"
SMALL = {
    "start_steps": 20,
    "update_after": 20,
    "update_every": 1,
    "batch_size": 8,
    "hidden_units": (8,),
    "replay_size": 1000,
    "target_update_every": 6,
    "embedding": 5,
}


class TD7Options(TD3Options, group="algorithm"):
    """Options of the fixture."""

    embedding: Count = 16
    """width of the embeddings."""
    encoder_lr: Positive = 3e-4
    """learning rate of the encoders' Adam."""
    assessed_episodes: Count = 2
    """episodes over which a policy is assessed."""
    replay = "prioritized"
    alpha = 0.4
    beta = 0.0
    target_update_every = 250


@keras.saving.register_keras_serializable("td7")
class AvgL1Norm(keras.layers.Layer):
    """Features, divided by the mean of their absolute values."""

    def call(self, x):
        return x / keras.ops.maximum(keras.ops.mean(keras.ops.abs(x), axis=-1, keepdims=True), 1e-8)


@numpy_layer("td7>AvgL1Norm")
def avg_l1_norm():
    return lambda x: x / np.maximum(np.abs(x).mean(axis=1, keepdims=True), np.float32(1e-8))


@c_layer("td7>AvgL1Norm")
def c_avg_l1_norm(code, weights, x):
    mean, _ = code.array(1, "0.0f")
    code.each(x[1], f"{mean}[0] += fabsf({x[0]}[i]) / {x[1]}.0f;")
    code.line(f"{mean}[0] = {mean}[0] > 1e-8f ? {mean}[0] : 1e-8f;")
    return code.array(x[1], f"{x[0]}[i] / {mean}[0]")


def lap_priority(errors: np.ndarray, alpha: float) -> np.ndarray:
    """max(|TD error|^α, 1)."""
    return np.maximum(np.abs(errors) ** alpha, 1)


def dense(units: int, seed: int, number: int) -> Any:
    """A linear layer with weights that are a function of the seed."""
    return keras.layers.Dense(units, kernel_initializer=initializer(seed, number))


def hidden(options: TD7Options, x: Any, seed: int) -> Any:
    """The hidden layers of all networks."""
    for depth, units in enumerate(options.hidden_units):
        x = keras.layers.Dense(units, "elu", kernel_initializer=initializer(seed, depth))(x)
    return x


def state_encoder(options: TD7Options, context: Context) -> keras.Model:
    observation = observation_inputs(context.spec)
    x = features(context.spec, context.encoder, context.normalizer)(observation)
    return keras.Model(
        observation, AvgL1Norm()(dense(options.embedding, context.seed, 9)(hidden(options, x, context.seed)))
    )


def action_encoder(options: TD7Options, context: Context) -> keras.Model:
    zs = keras.Input((options.embedding,))
    action = keras.Input((context.spec.act_dim,))
    x = keras.layers.Concatenate()([zs, scaled_action(context.spec, action)])
    return keras.Model([zs, action], dense(options.embedding, context.seed, 9)(hidden(options, x, context.seed)))


def policy(options: TD7Options, context: Context) -> keras.Model:
    observation = observation_inputs(context.spec)
    zs = keras.Input((options.embedding,))
    x = dense(8, context.seed, 8)(features(context.spec, context.encoder, context.normalizer)(observation))
    output = box_action(context.spec)
    x = hidden(options, keras.layers.Concatenate()([AvgL1Norm()(x), zs]), context.seed)
    return keras.Model([observation, zs], output.apply(dense(output.units, context.seed, 9)(x)))


def critic(options: TD7Options, context: Context) -> keras.Model:
    observation = observation_inputs(context.spec)
    action = keras.Input((context.spec.act_dim,))
    zsa, zs = keras.Input((options.embedding,)), keras.Input((options.embedding,))
    x = features(context.spec, context.encoder, context.normalizer)(observation)
    x = keras.layers.Concatenate()([x, scaled_action(context.spec, action)])
    x = keras.layers.Concatenate()([AvgL1Norm()(dense(8, context.seed, 8)(x)), zsa, zs])
    return keras.Model([observation, action, zsa, zs], dense(1, context.seed, 9)(hidden(options, x, context.seed)))


def act(observation: Any, encoder: keras.Model, pi: keras.Model) -> Any:
    """A policy's action."""
    return pi([observation, encoder(observation)])


def declare(spec: tfdpg.Spec, options: TD7Options) -> Declaration:
    check_box(spec)
    rule = every(options.target_update_every)
    builders = {
        "pi": policy,
        "q1": critic,
        "q2": critic,
        "state_encoder": state_encoder,
        "action_encoder": action_encoder,
    }
    return Declaration(
        spec=spec,
        components=[Component(name, functools.partial(build, options)) for name, build in builders.items()],
        optimizers={name: adam(options, name) for name in ("pi", "q1", "q2")}
        | {"encoder": adam(options, "encoder", of=ENCODERS)},
        copies=[
            *(Copy(f"{name}_target", name, rule) for name in ("pi", "q1", "q2")),
            *(Copy(f"{name}_fixed_target", f"{name}_fixed", rule) for name in ENCODERS),
            *(Copy(f"{name}_fixed", name, rule) for name in ENCODERS),
            Copy("pi_best", "pi", on_request),
            Copy("state_encoder_best", "state_encoder_fixed", on_request),
        ],
        normalizer=normalizer(options),
        behaviour=PolicySpec("state_encoder_fixed", "pi", call=act),
        evaluation=PolicySpec("state_encoder_best", "pi_best", call=act),
        exploration=noisy_actions(spec, options.noise, options.act_noise, options.ou_theta, None),
        signatures=functools.partial(signatures, spec),
        minibatches=minibatches(spec, options, None, {"priority": lap_priority, "normalize_weights": False}),
        schedule=update_schedule(options),
        metrics=METRICS,
        device_state={"value_min": np.float32(np.inf), "value_max": np.float32(-np.inf)},
        host_state={"worst_return": None, "best_return": None, "assessed": 0, "assessments": 0},
        after_episode=[assess_policy],
        after_phase=[defer_updates],
        defers_updates=True,
    )


def signatures(spec, networks, evaluation):
    """Those of all agents; the critics are called with the embeddings that they were trained with."""

    def value(name):
        observation, action = observation_inputs(spec), keras.Input((spec.act_dim,))
        zs = networks["state_encoder_fixed"](observation)
        zsa = networks["action_encoder_fixed"]([zs, action])
        return keras.Model([observation, action], networks[name]([observation, action, zsa, zs]))

    return export.signatures(spec, {name: value(name) for name in ("q1", "q2")}, evaluation)


def assess_policy(agent, episode, updates):
    """Keep the policy whose worst return over some episodes is largest; train after each assessment."""
    state = agent.host_state
    worst = (
        episode.episode_return if state["worst_return"] is None else min(state["worst_return"], episode.episode_return)
    )
    state["worst_return"] = worst
    state["assessed"] += 1
    is_worse = state["best_return"] is not None and worst < state["best_return"]
    if not is_worse and state["assessed"] < agent.options.assessed_episodes:
        return
    if not is_worse:
        state["best_return"] = worst
        agent.copy_weights("pi_best", "state_encoder_best")
    state |= {"worst_return": None, "assessed": 0, "assessments": state["assessments"] + 1}
    agent.defers_updates = False


def defer_updates(agent, logs):
    """Defer updates again, until the next policy has been assessed."""
    agent.defers_updates = True


@final
class TD7(tfdpg.Agent):
    """See the module."""

    @takes_options(TD7Options)
    def __init__(self, env: Any, options: TD7Options):
        super().__init__(env, options, declare)

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        nets, copies = self.networks, self.copies
        with self.minimize("encoder") as step:
            zs_t = tf.stop_gradient(nets["state_encoder"](batch.next_observation))
            zsa = nets["action_encoder"]([nets["state_encoder"](batch.observation), batch.action])
            loss_encoder = tf.reduce_mean(tf.square(zsa - zs_t), axis=-1)
            step(batch.average(loss_encoder))
        zs_t = copies["state_encoder_fixed_target"](batch.next_observation)
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = 0.2 * stateless_normal((self.batch_elements, self.spec.act_dim), key) * self.spec.action_scale
        action_t = copies["pi_target"]([batch.next_observation, zs_t]) + noise
        action_t = tf.clip_by_value(action_t, self.spec.low, self.spec.high)
        zsa_t = copies["action_encoder_fixed_target"]([zs_t, action_t])
        inputs_t = [batch.next_observation, action_t, zsa_t, zs_t]
        value_t = tf.minimum(*(copies[f"{name}_target"](inputs_t)[:, 0] for name in ("q1", "q2")))
        value_min, value_max = self.device_state["value_min"], self.device_state["value_max"]
        value_t = tf.where(value_min <= value_max, tf.clip_by_value(value_t, value_min, value_max), value_t)
        target = tf.stop_gradient(batch.reward + batch.discount * value_t)
        value_min.assign(tf.minimum(value_min, tf.reduce_min(target)))
        value_max.assign(tf.maximum(value_max, tf.reduce_max(target)))
        zs = copies["state_encoder_fixed"](batch.observation)
        zsa = copies["action_encoder_fixed"]([zs, batch.action])
        with self.minimize("q1", "q2") as step:
            values = [nets[name]([batch.observation, batch.action, zsa, zs])[:, 0] for name in ("q1", "q2")]
            errors = [value - target for value in values]
            step(*[batch.mean(keras.losses.huber(target[:, None], value[:, None])) for value in values])
        loss_pi = run_if(
            counter % self.options.policy_delay == 0, lambda: self.update_policy(batch, zs), self.batch_elements
        )
        self.update_copies(counter)
        td_error = tf.maximum(*(tf.abs(error) for error in errors))
        return {
            "loss_q": tf.add_n([tf.square(error) for error in errors]),
            "loss_pi": loss_pi,
            "loss_encoder": loss_encoder,
            "q1": values[0],
            "td_error": td_error,
        }

    def update_policy(self, batch, zs):
        with self.minimize("pi") as step:
            action = self.networks["pi"]([batch.observation, zs])
            zsa = self.copies["action_encoder_fixed"]([zs, action])
            q = [self.networks[name]([batch.observation, action, zsa, zs])[:, 0] for name in ("q1", "q2")]
            loss = -tf.add_n(q) / 2
            step(batch.average(loss))
        return loss
