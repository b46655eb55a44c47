"""What every agent does: act, observe, learn, fit, evaluate, save and export."""

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfdpg import export
from tfdpg.acting import Moments
from tfdpg.agents.parts import Parts, recorders
from tfdpg.arguments import natural
from tfdpg.networks import Actor
from tfdpg.spec import Packed, Spec
from tfdpg.training import checkpoint, evaluation, learning, loop, network_weights, offline
from tfdpg.training.collector import Collector
from tfdpg.training.lanes import environment_of
from tfdpg.training.normalization import find_normalizers
from tfdpg.training.optimizers import Optimizers
from tfdpg.training.statistics import Statistics
from tfdpg.training.support import Support
from tfdpg.training.updates import CompiledUpdates

OBJECTS = ("env", "pi", "q1", "q2", "v", "encoder", "recorders")
"""Constructor arguments that are not plain values: they are saved as files, or not at all."""
STOCK = ("torso", "hidden_units", "activation", "l2")


class Agent(abc.ABC):
    """An off-policy actor-critic agent; its final subclasses say what they draw and how they update.

    Args:
        env: the environment, a vector environment, or a `Spec`.
        parts: what the agent is made of.

    Attributes:
        spec: the spaces that the agent serves.
        given: the constructor's arguments.
        changed: the names of those that are not at their defaults.
        networks: the online networks, by the names of the exported signatures: `pi`, `q1`, ...
        targets: their target networks, of those that have one, by the same names.
        optimizers: one for each network, by the same names, or one for "all".
        own_networks: the models that plain arguments cannot rebuild, by the arguments that take them.
        replay: the ring of rows.
        sampler: draws rows of it; `sampling` are its arguments.
        source: where updates take their minibatches from while the rows are elsewhere; None is `replay`.
        schedule: the learning schedule and its counters.
        exploration: what is done instead of greedy actions while collecting.
        actor: the policy's copy for acting.
        collector: pairs actions with their outcomes.
        support: chooses the support of categorical critics, where that is left open.
        signatures: what the export has.
        usual_updates: the updates of a usual round; None is what the schedule says.
        watchers: take the number of updates and the logs of each learning round.
        optimizer: all optimizers, as Keras' callbacks want them.
        epoch: the number of epochs that `fit` has completed.
        stop_training: set to True by a callback to stop `fit`.
    """

    metrics: tuple[str, ...]
    """The names of what `update` measures; `td_error` is among them."""
    given: dict[str, Any]
    changed: set[str]

    def __init__(self, env: Any, parts: Parts):
        self.spec, self.environment = Spec.of(env), environment_of(env)
        self.networks, self.own_networks = parts.networks.networks, parts.networks.own
        self.device, self.jit_compile = self.given["device"], self.given["jit_compile"]
        self.seed, self.batch_size = int(self.given["seed"]), int(self.given["batch_size"])
        with tf.device(self.device):
            self.targets = {name: copy.deepcopy(self.networks[name]) for name in parts.targets or self.networks}
            self.counter = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="updates")
        self.optimizers, self.schedule, self.sampler, self.exploration, self.sampling = parts[1:6]
        self.normalizers = find_normalizers(self._all_networks().values())
        self.moments = Moments(self.spec) if self.given["normalize_observations"] else None
        self.replay = self.sampler.ring
        self.source: learning.Elsewhere | None = None
        self.optimizer = Optimizers(list(self.optimizers.values()), self.counter)
        self.statistics = Statistics(self.metrics)
        self.epoch, self.stop_training = 0, False
        self.history: keras.callbacks.History | None = None
        self.signatures = export.signatures(self.spec, self.networks)
        self.usual_updates: int | None = None
        self.support: Support | None = None
        self.watchers: list[Callable[[int, dict[str, float]], None]] = []
        self._initial_epoch: int | None = None
        self.actor = Actor(self.spec, self.networks["pi"], parts.networks.numpy_actor, self.device)
        self._updates: CompiledUpdates | None = None
        acting = self.replay, self.schedule, self.actor, self.exploration, self.seed, self.given["reward_shaper"]
        self.collector = Collector(self.spec, *acting, recorders(self.given["recorders"], self.spec))

    @abc.abstractmethod
    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed:
        """What the next updates take, packed `[updates, batch, ...]`.

        Args:
            rows: the rows that the sampler drew, `[updates, batch]`.
            weights: their weights in the critic's loss; None is 1.
        """

    @abc.abstractmethod
    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """One update, inside the compiled call.

        Args:
            packed: a minibatch as `draw` gives it, `[batch, ...]`.
            counter: the number of this update, an int64 tensor, counting from 1.

        Returns:
            A value for each of `metrics`, `[batch]`; NaN where this update did not measure it.
        """

    @property
    def env_steps(self) -> int:
        """Environment steps taken, over all lanes."""
        return self.schedule.env_steps

    @property
    def updates(self) -> int:
        """Updates made."""
        return int(self.counter)

    def act(self, observation: Any, explore: bool = True) -> np.ndarray:
        """Chooses actions, and remembers what belongs to this step until `observe`.

        Args:
            observation: one observation, or a batch with one for each lane (environment).
            explore: False for the greedy action.

        Returns:
            Actions in the environment's units and dtype, `[act_dim]` or `[lanes, act_dim]`.
        """
        return self.collector.act(observation, explore)

    def observe(
        self, reward: Any, next_observation: Any, terminated: Any, truncated: Any, final_observation: Any = None
    ) -> None:
        """Stores the outcome of the last `act`.

        Args:
            reward: a number, or `[lanes]`.
            next_observation: what the environment returned, one observation or a batch.
            terminated: whether the episode ended in a terminal state, a bool or `[lanes]`.
            truncated: whether it was cut, a bool or `[lanes]`.
            final_observation: for lanes that ended and were reset already, their last observation: a batch, or
                `info.get("final_obs")` of gymnasium's SAME_STEP mode. Without it, `next_observation` is the last
                one, and the next step of that lane of a *vector* environment is taken to be gymnasium's
                NEXT_STEP reset, which is neither stored nor counted.

        Raises:
            RuntimeError: there was no `act` before.
            ValueError: what came is not finite, or of another shape. Nothing is stored.
        """
        self.collector.observe(reward, next_observation, terminated, truncated, final_observation)

    def next_reset_seed(self, lane: int) -> int:
        """The seed with which `fit` resets a lane's environment for its next training episode."""
        return self.collector.next_reset_seed(lane)

    def learn(self, updates: int | None = None) -> dict[str, float]:
        """Makes the updates that the schedule says are due now, or exactly `updates`.

        Returns:
            The means of the round's metrics and `loss`; empty where nothing was due.

        Raises:
            ValueError: the replay holds no transition yet.
            FloatingPointError: weights became NaN or infinite; the message names the networks.
        """
        if updates is None:
            updates = self.sampler.updates_due(self.schedule.take_round())
        if natural("updates", updates) == 0:
            return {}
        self._updates = self._updates or learning.compile_updates(self)
        logs = learning.learn(self, updates, self._updates)
        for watch in self.watchers:
            watch(self.updates, logs)
        return logs

    def fit(
        self,
        env: Any,
        *,
        epochs: int = 100,
        steps_per_epoch: int = 4000,
        initial_epoch: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: Literal["auto", 0, 1, 2] = "auto",
        validation_env: Any = None,
        validation_episodes: int = 10,
        max_ep_len: int | None = 1000,
    ) -> keras.callbacks.History:
        """Trains the agent on an environment.

        Args:
            env: an environment or a vector environment with the agent's spaces.
            epochs: the epoch to stop at.
            steps_per_epoch: environment steps in an epoch, over all lanes.
            initial_epoch: the epoch to start at, to go on with an earlier training.
            callbacks: Keras callbacks. A batch is a learning round; its index is that of its last step.
            verbose: 0 is silent, 1 a progress bar, 2 a line for each epoch; "auto" is 1.
            validation_env: a second environment, evaluated on at the end of each epoch.
            validation_episodes: episodes of each evaluation.
            max_ep_len: episodes are cut (truncated) after this many steps; None leaves it to the environment.

        Returns:
            A `History` with `return`, `loss`, ... for each epoch, and `val_return`, ... with a `validation_env`.

        Raises:
            ValueError: an environment with other spaces; `validation_env` is `env`; NaN from the environment.
            FloatingPointError, KeyboardInterrupt, SystemExit(143): NaN weights, Ctrl-C, SIGTERM; callbacks see the end.
        """
        validation = validation_env, validation_episodes, max_ep_len
        return loop.fit(self, env, epochs, steps_per_epoch, initial_epoch, callbacks, verbose, *validation)

    def fit_offline(
        self,
        data: Any,
        *,
        epochs: int = 100,
        steps_per_epoch: int = 4000,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: Literal["auto", 0, 1, 2] = "auto",
        validation_env: Any = None,
        validation_episodes: int = 10,
        max_ep_len: int | None = 1000,
    ) -> keras.callbacks.History:
        """Trains the agent on stored transitions, which go into its replay; `fit` can go on from there.

        Args:
            data: a dict of arrays, an `.npz`, a directory that a recorder wrote, a saved agent or a Minari data set
                (see `tfdpg.training.datasets.load_into`); None trains on what the replay holds.
            epochs: how many.
            steps_per_epoch: updates in an epoch.
            callbacks: as for `fit`, and so are the others; the index of a batch is that of its last update.
            verbose: see `fit`.
            validation_env: see `fit`.
            validation_episodes: see `fit`.
            max_ep_len: see `fit`.

        Returns:
            A `History` with `loss`, ..., `updates_per_second` and, with a `validation_env`, `val_return`, ...

        Raises:
            ValueError: data of other shapes than the agent's spaces, or not finite.
        """
        validation = validation_env, validation_episodes, max_ep_len
        return offline.fit_offline(self, data, epochs, steps_per_epoch, callbacks, verbose, *validation)

    def evaluate(
        self,
        env: Any,
        episodes: int = 10,
        *,
        stochastic: bool = False,
        seed: int | None = None,
        max_ep_len: int | None = None,
    ) -> dict[str, float]:
        """See `tfdpg.evaluate`; the default seed is the agent's. Equal to the export's scores up to rounding.

        `stochastic` acts as while collecting: actions are drawn from the policy, or have exploration noise.
        """
        seed = self.seed if seed is None else seed
        policy = self.policy(seed if stochastic else None)
        return evaluation.evaluate(policy, env, episodes, seed=seed, max_ep_len=max_ep_len)

    def predict(self, observations: Any) -> np.ndarray:
        """The greedy actions for a batch of observations, float32 `[batch, act_dim]`; int64 `[batch]` if Discrete."""
        if self.spec.is_single(observations):
            raise ValueError("`observations` must be a batch, with a leading dimension. Received: one observation")
        return self(observations)

    def __call__(self, observation: Any) -> np.ndarray:
        """The greedy actions for one observation `[act_dim]` or a batch `[batch, act_dim]`."""
        action = self.spec.served(self.exploration.greedy(self.actor.predict(self.spec.pack(observation))))
        return action[0] if self.spec.is_single(observation) else action

    def policy(self, seed: int | None = None) -> evaluation.Acts:
        """The greedy policy as `tfdpg.evaluate` takes it, or with a seed the one that explores."""
        return evaluation.policy(self.spec, self.actor.snapshot(), self.exploration, self.env_steps, seed)

    def get_weights(self) -> list[np.ndarray]:
        """The weights of all networks and target networks."""
        return [weight for network in self._all_networks().values() for weight in network.get_weights()]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets what `get_weights` gave."""
        network_weights.set_weights(self._all_networks(), weights)
        if self.moments is not None and self.moments.count == 0:
            self.moments.adopt(self.normalizers[0].mean.numpy(), self.normalizers[0].variance.numpy())
        self.actor.refresh()

    def save_weights(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Saves the weights of all networks and target networks to a `.weights.h5` file."""
        network_weights.save_weights(self._all_networks(), filepath, overwrite)

    def load_weights(self, filepath: str | Path) -> None:
        """Loads what `save_weights` wrote, for networks of the same shapes."""
        self.set_weights(network_weights.load_weights(self._all_networks(), filepath))

    def save(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Saves everything needed to go on: weights, optimizers, replay, counters, random states.

        The directory `filepath` is replaced as a whole, or not at all; with `overwrite=False` never.
        """
        checkpoint.save(self, filepath, overwrite)

    def export(self, directory: str | Path, scores: Mapping[str, float] | None = None) -> Path:
        """Exports the policy and the critics as a verified SavedModel for TensorFlow Serving.

        Args:
            directory: a model directory; the export becomes its next free integer version, which is returned.
            scores: numbers to keep in `tfdpg.json`, an evaluation's for example.

        Raises:
            NotADirectoryError: `directory` is a file.
            tfdpg.export.ExportError: the model does not compute what the agent does; nothing is left behind.
        """
        facts: dict[str, Any] = {"agent": type(self).__name__, "environment": self.environment}
        facts |= {"critics": sum(name.startswith("q") for name in self.networks), "env_steps": self.env_steps}
        facts |= {"updates": self.updates, "scores": dict(scores or {})}
        examples = export.example_observations(self.spec, self.replay, self.seed)
        return export.write(directory, self.spec, self.networks, self.signatures, examples, facts)

    # What the loop, checkpoints and callbacks ask for.

    built = True

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of all online networks, each once (TensorBoard's histograms)."""
        return list(dict.fromkeys(layer for network in self.networks.values() for layer in network.layers))

    @property
    def train_function(self) -> Any:
        """The compiled updates, or None before the first (TensorBoard's graph)."""
        return None if self._updates is None else self._updates.function

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, by name, without the environment and networks, and what only stock ones have."""
        skipped = {*OBJECTS, *(STOCK if set(self.own_networks) == set(self.networks) else ())}
        return {name: value for name, value in self.given.items() if name not in skipped}

    def _all_networks(self) -> dict[str, keras.Model]:
        return self.networks | {f"{name}_target": network for name, network in self.targets.items()}
