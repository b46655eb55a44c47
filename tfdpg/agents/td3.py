"""Twin delayed deep deterministic policy gradient (TD3).

Source: Fujimoto, van Hoof, Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods";
options and defaults are Spinning Up's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import ACTIVATIONS, MLPActor
from tfdpg.agents.agent import Agent
from tfdpg.arguments import natural, positive, positive_int, real, reject
from tfdpg.exploration import Gaussian
from tfdpg.losses import smooth_action, td_loss, td_target
from tfdpg.networks import (
    Transitions,
    check_actor,
    check_critics,
    check_device,
    check_loadable,
    check_separate,
    flat_values,
    mlp_actor,
    mlp_critic,
    unpack_transitions,
)
from tfdpg.replay import draw_transitions, uniform_rows
from tfdpg.spec import Packed, Spec
from tfdpg.training.schedule import Schedule
from tfdpg.training.updates import minimize, polyak_average, stateless_normal, where_due


@final
class TD3(Agent):
    """TD3: two critics, smoothed target actions, a delayed policy.

    Args:
        env: the environment or vector environment to be trained on, or a `Spec`.
        pi: your own policy, a Keras model from observations to actions `[batch, act_dim]` in the
            environment's units. It is used as it is, with its weights.
        q1: your own first critic, a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`.
        q2: your own second critic; goes with `q1`, and starts from other weights.
        encoder: a Keras model from raw observations to features `[batch, features]`, for the stock networks;
            each gets a copy.
        hidden_units: units of each hidden layer of the stock networks.
        activation: Keras activation of their hidden layers.
        gamma: discount factor, in [0, 1].
        polyak: fraction of the old target that is kept at each target update, in [0, 1].
        pi_lr: learning rate of the policy's Adam.
        q_lr: learning rate of the critics' Adams.
        batch_size: transitions in a minibatch.
        start_steps: environment steps with uniformly random actions at the start.
        update_after: environment steps before the first one that earns updates.
        update_every: environment steps between learning rounds, or "episode".
        gradient_steps: updates in a round; None is one for each environment step since the last round.
        act_noise: standard deviation of the exploration noise, as a fraction of the action's half-range.
        target_noise: standard deviation of the smoothing noise, as a fraction of the action's half-range.
        noise_clip: largest absolute smoothing noise, as a fraction of the action's half-range.
        policy_delay: critic updates for each update of the policy and of the targets.
        n_step: steps whose rewards are summed before bootstrapping.
        replay_size: observations that the replay holds.
        replay_dir: a directory for the replay, as memory-mapped files that live as long as the agent; None keeps
            it in memory.
        seed: fixes everything random.
        jit_compile: compile updates with XLA; "auto" does, except with convolutions.
        device: where networks live and everything compiled runs, "cpu" or "gpu:0" for example; None is
            TensorFlow's choice, a GPU where there is one.

    Raises:
        ValueError: an argument out of its range, spaces that are not supported, or networks of wrong shapes.

    Example:
        ```python
        env = gymnasium.make("HalfCheetah-v5")
        agent = tfdpg.TD3(env, seed=0)
        agent.fit(env, epochs=75, validation_env=gymnasium.make("HalfCheetah-v5"))
        agent.export("exported_models/td3-halfcheetah")
        ```
    """

    metrics = ("loss_q", "loss_pi", "q1", "q2")

    def __init__(
        self,
        env: Any,
        *,
        pi: keras.Model | None = None,
        q1: keras.Model | None = None,
        q2: keras.Model | None = None,
        encoder: keras.Model | None = None,
        hidden_units: Sequence[int] = (256, 256),
        activation: str = "relu",
        gamma: float = 0.99,
        polyak: float = 0.995,
        pi_lr: float = 1e-3,
        q_lr: float = 1e-3,
        batch_size: int = 100,
        start_steps: int = 10_000,
        update_after: int = 1000,
        update_every: int | Literal["episode"] = 50,
        gradient_steps: int | None = None,
        act_noise: float = 0.1,
        target_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_delay: int = 2,
        n_step: int = 1,
        replay_size: int = 1_000_000,
        replay_dir: str | Path | None = None,
        seed: int = 0,
        jit_compile: bool | Literal["auto"] = "auto",
        device: str | None = None,
    ):
        spec = Spec.of(env)
        if not isinstance(hidden_units, Sequence) or isinstance(hidden_units, str):
            raise reject("hidden_units", "a sequence of positive integers", hidden_units)
        self.hidden_units = tuple(positive_int("hidden_units", units) for units in hidden_units)
        if not isinstance(activation, str):
            raise reject("activation", "the name of a Keras activation", activation)
        self.activation = activation
        self.gamma = real("gamma", gamma, 0, 1)
        self.polyak = real("polyak", polyak, 0, 1)
        self.pi_lr = positive("pi_lr", pi_lr)
        self.q_lr = positive("q_lr", q_lr)
        self.act_noise = real("act_noise", act_noise, low=0)
        self.target_noise = real("target_noise", target_noise, low=0)
        self.noise_clip = real("noise_clip", noise_clip, low=0)
        self.policy_delay = positive_int("policy_delay", policy_delay)
        self.n_step = positive_int("n_step", n_step)

        seed = natural("seed", seed)
        if (q1 is None) != (q2 is None):
            raise ValueError(f"`q1` and `q2` go together. Received: q1={q1!r}, q2={q2!r}")
        if pi is not None and q1 is not None:
            _check_unused(hidden_units=self.hidden_units, activation=activation, encoder=encoder)
        stock = {"hidden_units": self.hidden_units, "activation": activation, "encoder": encoder}
        pi_seed, q1_seed, q2_seed = (int(s) for s in np.random.SeedSequence([seed, 1]).generate_state(3))
        given = {name: network for name, network in {"pi": pi, "q1": q1, "q2": q2}.items() if network is not None}
        if encoder is not None:
            check_loadable("encoder", encoder)
        with tf.device(check_device(device, given)):
            is_float32 = keras.config.dtype_policy().name == "float32"
            has_stock_actor = pi is None and encoder is None and activation in ACTIVATIONS and is_float32
            if pi is None:
                pi = mlp_actor(spec, **stock, seed=pi_seed)
            if q1 is None or q2 is None:
                q1 = mlp_critic(spec, **stock, seed=q1_seed, name="q1")
                q2 = mlp_critic(spec, **stock, seed=q2_seed, name="q2")
            check_actor(spec, pi)
            check_critics(spec, {"q1": q1, "q2": q2})
            check_separate({"pi": pi, "q1": q1, "q2": q2})
            for name, network in given.items():  # built by now: the checks before have called them
                check_loadable(name, network)

            super().__init__(
                env,
                networks={"pi": pi, "q1": q1, "q2": q2},
                learning_rates={"pi": self.pi_lr, "q1": self.q_lr, "q2": self.q_lr},
                own_networks=given if encoder is None else ("pi", "q1", "q2"),
                numpy_actor=MLPActor(spec, self.hidden_units, activation) if has_stock_actor else None,
                schedule=Schedule(
                    start_steps=start_steps,
                    update_after=update_after,
                    update_every=update_every,
                    gradient_steps=gradient_steps,
                ),
                replay_size=replay_size,
                replay_dir=replay_dir,
                batch_size=batch_size,
                seed=seed,
                jit_compile=jit_compile,
                device=device,
            )
        self.pi, self.q1, self.q2 = (self.networks[name] for name in ("pi", "q1", "q2"))
        self.pi_target, self.q1_target, self.q2_target = (self.targets[name] for name in ("pi", "q1", "q2"))
        self._noise = Gaussian(spec, self.act_noise)

    def explore(self, greedy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The greedy actions with noise, clipped to the action box."""
        noisy = greedy + self._noise.sample(len(greedy), rng)
        return np.minimum(np.maximum(noisy, self.spec.low), self.spec.high)

    def draw(self, updates: int) -> Packed:
        """Uniformly drawn transitions, packed `[updates, batch, ...]`."""
        rows = uniform_rows(self.replay, self.seed, self.updates, updates, self.batch_size)
        return draw_transitions(self.replay, rows, self.n_step, self.gamma)

    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """Clipped double Q-learning on smoothed targets; every `policy_delay` updates, the policy and the targets."""
        batch = unpack_transitions(self.spec, packed)
        target = self.target(batch, self.smoothing_noise(counter))
        loss_q1, q1 = self.update_critic("q1", batch, target)
        loss_q2, q2 = self.update_critic("q2", batch, target)
        is_due = counter % self.policy_delay == 0
        loss_pi = where_due(is_due, lambda: self.update_policy_and_targets(batch), self.batch_size)
        return {"loss_q": loss_q1 + loss_q2, "loss_pi": loss_pi, "q1": q1, "q2": q2}

    def target(self, batch: Transitions, noise: tf.Tensor) -> tf.Tensor:
        """The targets `[batch]`.

        y = r + γ (1 − d) min_i Q_i,targ(s', a'), with a' = clip(π_targ(s') + clip(ε, −c, c), a_low, a_high).
        """
        noise_clip = self.noise_clip * self.spec.half_range
        action_t = smooth_action(
            self.pi_target(batch.next_observation), noise, noise_clip, self.spec.low, self.spec.high
        )
        q1_t = flat_values(self.q1_target([batch.next_observation, action_t]))
        q2_t = flat_values(self.q2_target([batch.next_observation, action_t]))
        return td_target(batch.reward, batch.discount, tf.minimum(q1_t, q2_t))

    def update_critic(
        self, name: Literal["q1", "q2"], batch: Transitions, target: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One step down mean (y − Q(s, a))²; returns each element's loss and value."""
        critic = self.networks[name]

        def loss() -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
            q = flat_values(critic([batch.observation, batch.action], training=True))
            losses = td_loss(q, target)
            return tf.reduce_mean(losses), (losses, q)

        return minimize(loss, critic, self.optimizers[name])

    def update_policy_and_targets(self, batch: Transitions) -> tf.Tensor:
        """One step up mean Q1(s, π(s)), then polyak averaging; returns each element's −Q1(s, π(s))."""

        def loss() -> tuple[tf.Tensor, tf.Tensor]:
            losses = -flat_values(self.q1([batch.observation, self.pi(batch.observation, training=True)]))
            return tf.reduce_mean(losses), losses

        losses = minimize(loss, self.pi, self.optimizers["pi"])
        for name, target in self.targets.items():
            polyak_average(target, self.networks[name], self.polyak)
        return losses

    def smoothing_noise(self, counter: tf.Tensor) -> tf.Tensor:
        """ε ~ N(0, σ) `[batch, act_dim]`, a sample for each action and dimension; a function of (seed, counter)."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = stateless_normal((self.batch_size, self.spec.act_dim), key)
        return noise * (self.target_noise * self.spec.half_range)


def _check_unused(**arguments: Any) -> None:
    """Raises `ValueError` for arguments of the stock networks that differ from their defaults."""
    for name, value in arguments.items():
        if value != (TD3.__init__.__kwdefaults__ or {})[name]:
            raise ValueError(
                f"`{name}` is for the stock networks, and `pi`, `q1` and `q2` leave none. Pass one or other."
            )
