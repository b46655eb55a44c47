"""Custom networks, for `tfdpg train --networks` or `tfdpg.TD3(env, **build(spec))`.

tfdpg train td3 --env Pendulum-v1 --networks examples.own_networks:build
"""

import keras

import tfdpg


def build(spec: tfdpg.Spec) -> dict[str, keras.Model]:
    """A policy and two critics with layer normalisation, for a Box observation."""
    return {"pi": policy(spec), "q1": critic(spec, "q1"), "q2": critic(spec, "q2")}


def policy(spec: tfdpg.Spec) -> keras.Model:
    """Observations → actions in the environment's units."""
    x = keras.Input(spec.observation_space.shape)
    h = keras.layers.Dense(64, activation="elu")(keras.layers.LayerNormalization()(keras.layers.Dense(64)(x)))
    unit = keras.layers.Dense(spec.act_dim, activation="tanh")(h)
    action = keras.layers.Rescaling(spec.action_scale.tolist(), spec.center.tolist())(unit)
    return keras.Model(x, action, name="pi")


def critic(spec: tfdpg.Spec, name: str) -> keras.Model:
    """[observation, action] → values [batch, 1]."""
    inputs = [keras.Input(spec.observation_space.shape), keras.Input((spec.act_dim,))]
    h = keras.layers.LayerNormalization()(keras.layers.Dense(64)(keras.layers.Concatenate()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, activation="elu")(h)), name=name)
