"""The base class of all agents: act, observe, learn, fit, evaluate, save and export."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, cast

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import GreedyPolicy, greedy_forward, preprocessing_of
from tfdpg.agents import description, from_export
from tfdpg.agents.classes import checked_class
from tfdpg.agents.declarations import recorders
from tfdpg.agents.exporting import export_agent, signatures
from tfdpg.agents.options import AgentOptions, ExportOptions
from tfdpg.arguments import natural
from tfdpg.companions import companion
from tfdpg.components import Declaration, Networks, Optimizers
from tfdpg.hints import ATTRIBUTES, missing_attribute, refuse_positional_updates, reject_unknown_arguments
from tfdpg.networks import preprocessing_forward
from tfdpg.options import BuiltIn, takes_options
from tfdpg.spec import Spec
from tfdpg.training import evaluation, loop
from tfdpg.training.agent_data import AgentData
from tfdpg.training.checkpoints import checkpoint, network_weights
from tfdpg.training.environment.env_runner import environment_of
from tfdpg.training.learning.learner import Learner
from tfdpg.training.options import FitOptions, OfflineOptions

if TYPE_CHECKING:
    from tfdpg.diagnosis.report import Diagnosis


class _AgentType(abc.ABCMeta):
    """The metaclass of agents, which adds hints to errors such as that of `TD3.load`, which other libraries have."""

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(cls, name: str) -> Any:
            raise AttributeError(
                missing_attribute(f"type object {cls.__name__!r}", name, ATTRIBUTES), name=name, obj=cls
            )


class Agent(metaclass=_AgentType):
    """An off-policy actor-critic agent: the base class of `DDPG`, `TD3`, `D4PG`, `TD7` and `ACER`.

    Its subclasses declare their networks and implement `update`. Calling an agent is the same as `predict`.

    Args:
        env: an environment or vector environment, its id, or a `Spec`.
        options: the options, an instance of a subclass of `tfdpg.options.Options`. An option that was changed must be
            read as an attribute: an option of built-in networks by the constructor, any other one by the constructor or
            by `update`. Otherwise, the constructor or the first update raises `ValueError`.
        declare: returns what the agent is made of, given the spaces and the options.

    Attributes:
        spec: the spaces of the environment.
        seed: the seed of the agent.
        environment: the id and arguments of the last environment of `fit` for which they are known, or else of the
            constructor's, and the names of its wrappers; None if they are unknown.
        networks: the networks by name: `pi`, `q1`, ...
        targets: the target networks, by the names of the networks that they follow.
        copies: all copies of networks by name: `pi_target`, ...
        optimizers: the Keras optimizers by name.
        replay: the replay buffer.
        history: the `History` of the last `fit` or `fit_offline`; None before.
        stop_training: a callback sets it to True to stop `fit`.
        batch_elements: the number of elements of a minibatch: transitions, steps of sequences, or windows.
        metrics: the metrics that `update` returns.
        device_state: variables that updates read and write, by name.
        host_state: numbers, strings and lists that are saved with the agent, by name.
        minimize: takes a step of optimizers; see `tfdpg.components.Networks.minimize`.
        update_copies: updates the copies that are due; see `tfdpg.components.Networks.update_copies`.
        parts: what the agent is made of: networks, copies and optimizers.
        data: its data: the policies that act, the collector, the replay buffer and the minibatches.
        learner: makes the updates.
    """

    def __init__(self, env: Any, options: AgentOptions, declare: Callable[[Spec, Any], Declaration]):
        """See the class."""
        missing = options.missing if options.is_changed("missing") else None
        self.spec = Spec.of(env).replaced(options.observation_names, missing)
        self.environment = environment_of(env)
        self.seed = options.drawn_seed
        model = options.preprocess
        compute = None if model is None else preprocessing_forward(self.spec, model, options.device)
        refused = description.not_preprocessed(options)
        preprocessing = preprocessing_of(self.spec, options.frame_stack, compute, refused)
        declaration = declare(self.spec if preprocessing is None else preprocessing.spec, options)
        options.refuse(declaration.unused)
        self.parts = Networks(declaration, self.seed, options.device)
        self.parts.given |= {} if model is None else {"preprocess": model}
        stores = recorders(options.recorders, self.spec)
        self.data = AgentData(declaration, self.parts, options, stores, preprocessing)
        self.learner = Learner(
            type(self).__name__,
            declaration,
            self.parts,
            self.data,
            lambda batch, counter: self.update(batch, counter),
            before=[functools.partial(function, self) for function in declaration.before_phase],
            after=[functools.partial(function, self) for function in declaration.after_phase],
            after_episode=[functools.partial(function, self) for function in declaration.after_episode],
        )
        self.networks = self.parts.components
        self.copies = self.parts.copies
        self.targets = self.parts.targets
        self.optimizers = self.parts.optimizers
        self.device_state = self.parts.state
        self.host_state = self.learner.host_state
        self.minimize = self.parts.minimize
        self.update_copies = self.parts.update_copies
        self.optimizer = Optimizers(list(self.optimizers.values()), self.learner.counter)
        self.replay = self.data.replay
        self.batch_elements = self.data.batch_elements
        self.metrics = self.learner.metrics
        self.signatures, self.exported_critics = signatures(declaration, self.parts, self.data)
        if warm_up := getattr(options, "warm_up_updates", 0):
            self.learner.begin_with_critics(warm_up, self.exported_critics)
        self.history: keras.callbacks.History | None = None
        self.stop_training = False
        self._initial_epoch: int | None = None
        self._after_from_export = declaration.after_from_export
        if declaration.after_episode:
            self.data.collector.report_episodes(self.learner.end_episode, lambda: self.updates)
        if not isinstance(env, str | Spec):
            self.relabel_with(env)
        self.data.collector.expect(env)
        given = f": {', '.join(self.parts.given)} are your own" if self.parts.given else ""
        where = f"in {type(self).__name__}, which builds no network with it{given}"
        options.refuse_unread(where, options.names(BuiltIn))

    @classmethod
    def from_export(cls, directory: str | Path, env: Any, **options: Any) -> Self:
        """Make a new agent that continues from an exported model, for fine-tuning.

        Its networks, critics and observation statistics are those of the export. Target networks and other copies are
        equal to them. The replay buffer is empty, optimizers are new, and all counters are 0.

        Args:
            directory: a model directory, whose newest version is taken, or the directory of a version, which `export`
                wrote. No code in it is executed.
            env: the environment, vector environment, its id, or a `Spec`, with the spaces of the export.
            **options: options of the constructor in place of those that the exported agent had. Options that determine
                the networks must be equal to those of the export, and custom networks, optimizers and callables must
                be given again. `seed`, `replay_dir` and the options of the machine have the defaults of the
                constructor. Other defaults than the exported agent's are `start_steps=0`, `update_after=1000`,
                `bc_weight=2.5` if it was 0, a `pi_lr` of at most 1e-4, and an `encoder_lr` of at most 3e-5. They keep
                the policy from getting worse while the critics have little new data. With `warm_up_updates`, the
                critics learn first.

        Returns:
            The agent.

        Raises:
            FileNotFoundError: there is no exported model.
            tfdpg.export.ExportError: a file of the model is damaged, missing or changed; it has other networks; or an
                older version of tfdpg wrote it.
            ValueError: the model is one of another class, `env` has other spaces, an option that determines the
                networks differs, or a custom network is missing.

        Example:
            ```python
            agent = tfdpg.TD3.from_export("exported_models/td3", env, warm_up_updates=5000)
            agent.fit(env, epochs=10)
            ```
        """
        agent = from_export.make(checked_class(cls, cls.__name__), directory, env, options)
        for function in agent._after_from_export:
            function(agent)
        return cast(Self, agent)

    @abc.abstractmethod
    def update(self, batch: Any, counter: Any) -> dict[str, tf.Tensor]:
        """Make one update, inside the compiled call. Subclasses implement this method.

        Args:
            batch: a minibatch: a `TransitionBatch`, a `SequenceBatch`, or what `Minibatches.unpack` makes.
            counter: the number of this update, an int64 tensor `[]`, counting from 1.

        Returns:
            A value for each element of the minibatch and each of `metrics`, by name, `[batch_elements]`; NaN where this
            update did not measure it.
        """

    @property
    def options(self) -> Any:
        """The constructor's options, as attributes: `agent.options.gamma`."""
        return self.data.options

    @property
    def epoch(self) -> int:
        """The number of epochs completed; the highest that was reached if `fit` started again from an earlier one.

        It never decreases: after `fit(env, epochs=5)` and `fit(env, epochs=2)` it is 5.
        """
        return self.learner.epoch

    @property
    def defers_updates(self) -> bool:
        """Whether updates that become due are counted, and made when this is False again.

        A function in `Declaration.after_episode` or `after_phase` sets it, for example to assess a policy over several
        episodes before it is trained on. It is saved with the agent, and so is the number of deferred updates.
        """
        return self.data.schedule.defers_updates

    @defers_updates.setter
    def defers_updates(self, defers: bool) -> None:
        self.data.schedule.defers_updates = defers

    @property
    def env_steps(self) -> int:
        """The number of environment steps taken, over all sub-environments."""
        return self.data.schedule.env_steps

    @property
    def updates(self) -> int:
        """The number of updates made."""
        return self.learner.updates

    def act(self, observation: Any, explore: bool = True) -> np.ndarray:
        """Select actions, and keep the state of this step until `observe` stores the outcome.

        For actions whose outcome is not stored, such as those of an evaluation, use `predict` or `policy`.

        Args:
            observation: one observation, or a batch with one for each sub-environment.
            explore: whether to explore; False for the greedy action.

        Returns:
            One action in the environment's units and shape, or a batch with one for each sub-environment.

        Raises:
            ValueError: the observation has another shape, or is not finite.
        """
        return self.data.collector.act_in_loop(observation, explore)

    def observe(
        self,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        final_observation: Any = None,
        *,
        action: Any = None,
    ) -> None:
        """Store the outcome of the last `act`.

        Args:
            reward: a number, or `[num_envs]`.
            next_observation: the observation that the environment returned, or a batch.
            terminated: whether the episode ended in a terminal state, a bool or `[num_envs]`.
            truncated: whether it was truncated, a bool or `[num_envs]`.
            final_observation: the last observations of episodes whose sub-environments have been reset already: a
                batch, or `info.get("final_obs")` of Gymnasium's SAME_STEP mode. Without it, `next_observation` is the
                last observation, and the next step of that sub-environment of a *vector* environment is taken to be
                the reset step of Gymnasium's NEXT_STEP mode, which is neither stored nor counted, unless the agent was
                made for an environment of another mode.
            action: the action that the environment really executed, if it was not that of `act`: in the shape that
                `act` returned. It is stored in its place.

        Raises:
            RuntimeError: `act` was not called before.
            ValueError: a value is not finite, or has another shape; an end is neither a bool nor 0 or 1; an action is
                outside the action space; or the agent was made for an environment of the SAME_STEP mode, an episode
                ended, and there is no `final_observation`. Nothing is stored.
            FloatingPointError: a value is not finite because the action was not.
        """
        self.data.collector.observe_in_loop(reward, next_observation, terminated, truncated, final_observation, action)

    def relabel_with(self, env: Any) -> None:
        """Use the functions of an environment that compute rewards from goals, for the option `her`.

        The constructor and `fit` call this method with their environment, so it is needed only for a loaded agent with
        a loop of your own. Without the option `her`, it does nothing.

        Args:
            env: an environment or a vector environment with `compute_reward(achieved_goal, desired_goal, info)`, and
                optionally `compute_terminated` and `compute_truncated`. `info` is an empty dict, and goals are single
                ones or arrays `[n, ...]`, whichever the functions accept.

        Raises:
            ValueError: the environment has no `compute_reward`.

        Example:
            ```python
            agent = tfdpg.load_agent("runs/reach")
            agent.relabel_with(env)
            agent.learn(updates=1000)
            ```
        """
        self.data.relabel_with(env)

    def next_reset_seed(self, env_index: int) -> int:
        """Return the seed with which `fit` resets a sub-environment for its next training episode.

        Args:
            env_index: the index of the sub-environment, from 0; 0 for an environment that is not a vector environment.
        """
        return self.data.collector.next_reset_seed(env_index)

    def learn(  # noqa: D417 (no value is accepted for the other parameters)
        self, *positional: Never, updates: int | None = None, **unknown: Never
    ) -> dict[str, float]:
        """Make the updates that are due according to the schedule, or a given number of updates.

        `fit` trains on an environment; `learn` takes no environment steps.

        Args:
            updates: the number of updates, at least 0; None makes those that are due.

        Returns:
            The mean of each metric over these updates, and `loss`; an empty dict if no update was due.

        Raises:
            TypeError: there is a positional argument, such as the number of environment steps that
                Stable-Baselines3's `learn` takes.
            ValueError: the replay buffer holds no transition yet.
            FloatingPointError: weights became NaN or infinite; the message names the networks.
        """
        refuse_positional_updates(positional)
        reject_unknown_arguments(self.learn, unknown)
        due = natural("updates", updates) if updates is not None else self.learner.due_updates()
        logs = self.learner.run_update_phase(due)
        self.learner.synchronize()
        return logs

    def train_on_batch(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Make one update on a given minibatch, with the same compiled code as other updates.

        Args:
            batch: a dict of arrays.

                - An agent that learns from transitions takes `batch_size` rows: `observations`, `actions`, `rewards`,
                  `terminations` and `next_observations`, and optionally `weights` in the critic's loss (default 1),
                  `discounts` (default gamma; gamma^m if a reward is the sum over m steps) and `truncations`, which
                  have no effect.
                - A recurrent agent takes sequences: `observations` `[batch_size, burn_in + sequence_length + n_step,
                  ...]`; `actions`, `rewards` and `terminations` with one step less; and optionally `discounts`,
                  `truncations` and `masks` (0 after the end of an episode) of the same shape, and for each sequence
                  `weights` and `states`, the recurrent state before its first step (default 0).
                - ACER takes windows of T = `n_steps` steps: `observations` `[batch_size, T + 1, ...]`; `actions`,
                  `rewards` and `terminations` `[batch_size, T]`; `behaviours` `[batch_size, T, n]`, the probabilities,
                  or the means and the scales, of the actions; and optionally `discounts` and `truncations`.

        Returns:
            The metrics of the update, and `loss`.

        Raises:
            ValueError: an array is missing, unknown, of another shape, or not finite; ends of episodes are not 0 or 1;
                weights are negative, or discounts not from 0 to 1.
            FloatingPointError: weights became NaN or infinite.
        """
        return self.learner.update_on_batch(self.data.pack(batch))

    @takes_options(FitOptions)
    def fit(self, env: Any, options: FitOptions) -> keras.callbacks.History:
        """Train the agent on an environment.

        Args:
            env: an environment or a vector environment with the agent's spaces, or an id, such as `module:Class`.
            options: keyword arguments.

        Returns:
            A `History` with `return`, `loss`, ... for each epoch, and `val_return`, ... with a `validation_env`.

        Raises:
            ValueError: an option is out of its range, an environment has other spaces, `validation_env` is `env`, or an
                environment returned NaN or infinity.
            FloatingPointError: losses, weights or actions became NaN or infinite.
            TimeoutError: a step or a reset took longer than `step_timeout`.
            KeyboardInterrupt: after Ctrl-C. The `on_train_end` of callbacks is called first.
            SystemExit: with exit code 143, after SIGTERM. The `on_train_end` of callbacks is called first.
        """
        return loop.fit(self, env, options)

    @takes_options(OfflineOptions)
    def fit_offline(self, data: Any, options: OfflineOptions) -> keras.callbacks.History:
        """Train the agent on stored transitions, which are added to its replay buffer; `fit` can continue afterwards.

        Args:
            data: None trains on the content of the replay buffer. Otherwise one of these:

                - A dict of arrays, or an `.npz` file, with a row for each transition in chronological order:
                  `observations` `[n, ...]`, `actions` `[n, ...]` in the environment's units, `rewards` `[n]`,
                  `terminations` `[n]`, and optionally `truncations` `[n]` and `next_observations` `[n, ...]`. One of
                  the last three must show where episodes end. `[n, 1]` is read as `[n]`. The names of D4RL, such as
                  `terminals` and `timeouts`, and names in the singular are read, too. For a Dict or Tuple space,
                  `observations` is a dict or tuple, or there is an array `observations/<name>` for each part (see
                  `Spec`). With `client_ids`, n strings, only the rows of each client are in chronological order. The
                  entry `prediction_logs`, the request logs of TensorFlow Serving, replaces observations, actions and
                  client ids; see `tfdpg.export.read_prediction_logs`.
                - A directory of `.npz` files, as the option `recorders` writes them.
                - A pandas DataFrame, or a CSV or Parquet file, with the columns `obs_0`, `obs_1`, ..., `action_0`, ...,
                  `reward`, `terminated`, and `truncated`, `episode` or both.
                - The directory of a saved agent or of a saved replay buffer.
                - A `ReplayBuffer`, or another agent, whose replay buffer is taken.
                - A `minari.MinariDataset`.

                The replay buffer grows if the data does not fit, unless `replay_size` was set to another number than
                its default.
            options: keyword arguments.

        Returns:
            A `History` with `loss`, ..., `updates_per_second` and, with a `validation_env`, `val_return`, ...

        Raises:
            ValueError: an array is missing, has another shape or is not finite; the ends of episodes are not known;
                actions are outside the action space; there is no transition, or there are more than `replay_size`.
                The replay buffer is then as it was.
            FileNotFoundError: a file does not exist.
            FloatingPointError: losses or weights became NaN or infinite.
            KeyboardInterrupt: after Ctrl-C, as for `fit`.
            SystemExit: with exit code 143, after SIGTERM, as for `fit`.
        """
        return loop.fit_offline(self, data, options)

    def evaluate(
        self,
        env: Any,
        episodes: int = 10,
        *,
        stochastic: bool = False,
        seed: int | None = None,
        max_ep_len: int | None = None,
        per_episode: bool = False,
    ) -> dict[str, Any]:
        """Evaluate the policy; see `tfdpg.evaluate`. The scores of the exported policy are equal up to rounding.

        Args:
            env: an environment or a vector environment with the agent's spaces, or the id of one.
            episodes: the number of episodes, at least 1.
            stochastic: whether to use the behaviour policy, which explores, in place of the evaluation policy.
            seed: the seed of the episodes; None is the agent's.
            max_ep_len: the number of steps after which episodes are truncated; None sets no limit beyond the
                environment's own.
            per_episode: whether to return the return and the length of each episode, too.

        Returns:
            `return` (the mean), `return_std`, `return_min`, `return_max` and `episode_length` (the mean); with
            `per_episode` also the lists `returns` and `lengths`.

        Raises:
            ValueError: an argument is out of its range, the environment has other spaces, or it returned NaN or
                infinity.
            FloatingPointError: an action of the policy is NaN or infinite, and so is the result of the step.
        """
        seed = self.seed if seed is None else seed
        self.data.collector.expect(env)
        policy = self.policy(seed if stochastic else None)
        more = {"max_ep_len": max_ep_len, "per_episode": per_episode}
        return evaluation.evaluate(policy, env, episodes, seed=seed, **more)

    def diagnose(
        self,
        env: Any,
        *,
        episodes: int = 10,
        seed: int | None = None,
        max_ep_len: int | None = None,
        history: Mapping[str, Sequence[float]] | None = None,
    ) -> "Diagnosis":
        """Find out what is wrong with the training run. The agent does not change.

        The checks use the replay buffer, the networks, the optimizers, and evaluation episodes of the greedy policy, of
        the behaviour policy, which explores, and of random actions. A check that does not apply finds nothing.

        Args:
            env: an environment or a vector environment with the agent's spaces, or the id of one.
            episodes: the number of episodes of each policy, at least 1.
            seed: the seed of the episodes; None is the agent's.
            max_ep_len: the number of steps after which episodes are truncated; None sets no limit beyond the
                environment's own.
            history: the metrics of each epoch by name, such as `val_return`; None takes those of the last `fit`.

        Returns:
            The verdicts, the worst first, each with its evidence and what to try next. Print it, or call its methods
            `to_json` and `plot`.

        Raises:
            ValueError: an argument is out of its range, the environment has other spaces, or it returned NaN or
                infinity.

        Example:
            ```python
            diagnosis = agent.diagnose("Pendulum-v1")
            print(diagnosis)
            diagnosis.plot("diagnosis.png")
            ```
        """
        return companion("diagnose")(self, env, episodes, seed, max_ep_len, history)

    def predict(self, observations: Any, **unknown: Never) -> np.ndarray:  # noqa: D417 (no value is accepted)
        """Return the greedy actions of the evaluation policy, without noise.

        Args:
            observations: one observation, or a batch. A recurrent policy, and one that holds missing numbers or stacks
                frames, takes sequences that begin with an episode's first observation, `[time, ...]` or
                `[batch, time, ...]`; `policy` acts step by step.

        Returns:
            An action for each observation, in the environment's units and shape; integers for a Discrete space and for
            a Box of integers. The action for an observation that is not finite is `Spec.no_action`: NaN in each
            component, or for integers the lowest action minus 1. The recurrent state does not change then.

        Raises:
            ValueError: the observations have another shape, or the policy receives previous rewards.
        """
        self.learner.synchronize()
        reject_unknown_arguments(self.predict, unknown)
        forward = greedy_forward(self.spec, self.data.policy_state, self.data.whole_policy().predict)
        return evaluation.predict(self.spec, self.data.policy_state, forward, observations)

    __call__ = predict

    def policy(self, seed: int | None = None) -> evaluation.PolicyLike:
        """Return the evaluation policy with its present weights, for `tfdpg.evaluate` or your own loop.

        The policy does not change when the agent learns. Its recurrent state is separate from that of the agent. It can
        be pickled and copied with `copy.deepcopy`: the copy returns exactly the same actions, and continues the episode
        where the original was.

        A policy with networks of your own, or with an activation that NumPy does not have, acts by a compiled call.
        Such a policy follows the agent when it learns, and its copies do not. Other policies need no TensorFlow.

        Args:
            seed: None returns the greedy policy. A number returns the behaviour policy, which explores with this seed.

        Returns:
            A callable from one observation or a batch to actions in the environment's units and shape. It has the
            methods `reset`, `received` and `end` of `Policy`.
        """
        self.learner.synchronize()
        if seed is None:
            forward = greedy_forward(self.spec, self.data.policy_state, self.data.whole_policy().snapshot())
            return GreedyPolicy(self.spec, self.data.policy_state, forward)
        factor = self.data.behaviour.exploration.factor(self.env_steps)
        return evaluation.EvaluationPolicy(self.data.whole_behaviour(), factor, seed)

    def get_weights(self) -> list[np.ndarray]:
        """Return the weights of all networks and their copies, as a list of arrays."""
        self.learner.synchronize()
        return [weight for network in self.parts.all.values() for weight in network.get_weights()]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the weights of all networks and their copies.

        The mean and variance of observations that are among them replace those of this agent. Observations that it
        collects later change them. Initial statistics (mean 0, variance 1) are not taken over.

        Args:
            weights: arrays of the same number and shapes as those that `get_weights` returns.

        Raises:
            ValueError: the number or the shape of the arrays differs, or they have NaN or infinity. Nothing is set.
        """
        self.learner.synchronize()
        network_weights.set_weights(self.parts.all, weights)
        self.data.read_statistics()
        self.data.actor.refresh()

    def save_weights(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the weights of all networks and their copies, without the optimizers and the replay buffer.

        Args:
            filepath: the file, whose name ends in `.weights.h5`.
            overwrite: whether to replace an existing file; False raises an error if there is one.

        Raises:
            ValueError: the name of the file does not end in `.weights.h5`.
            FileExistsError: the file exists and `overwrite` is False.
        """
        self.learner.synchronize()
        network_weights.save_weights(self.parts.all, filepath, overwrite)

    def load_weights(self, filepath: str | Path) -> None:
        """Load weights that `save_weights` saved, as `set_weights` does.

        Args:
            filepath: the file.

        Raises:
            ValueError: the networks in the file have other shapes, or weights that are NaN or infinite, or it is not a
                regular file. Nothing is loaded.
        """
        self.set_weights(network_weights.load_weights(self.parts.all, filepath))

    def save(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the state of the training run: weights, optimizers, replay buffer, counters and random states.

        `tfdpg.load_agent` loads it. The directory is replaced completely or not at all.

        Args:
            filepath: the directory.
            overwrite: whether to replace a saved agent; False raises an error if the directory exists.

        Raises:
            FileExistsError: the directory exists and `overwrite` is False, or it is not a saved agent.
            FloatingPointError: weights, or the last losses, are NaN or infinite. Nothing is written.
            tfdpg.files.DiskFullError: the disk is full. A saved agent that was in the directory is still there.
        """
        self.learner.synchronize()
        checkpoint.save(self, filepath, overwrite)

    @takes_options(ExportOptions)
    def export(self, directory: str | Path, options: ExportOptions) -> Path:
        """Export the evaluation policy and the critics, and verify that the files compute what the agent does.

        Args:
            directory: a model directory. A SavedModel becomes its next free integer version; files of other formats
                are written into `directory` itself.
            options: keyword arguments.

        Returns:
            The directory of the new version, or `directory`.

        Raises:
            NotADirectoryError: `directory` is a file.
            FileExistsError: `directory` is not empty, for a format that is written into `directory` itself.
            ImportError: the libraries of the format are not installed.
            tfdpg.export.ExportError: the exported model differs from the agent, or the format does not support the
                policy. Nothing is written.
        """
        self.learner.synchronize()
        return export_agent(self, directory, options)

    summary = description.summary
    get_config = description.configuration
    __reduce_ex__ = description.refuse_pickling
    __repr__ = description.one_line_summary  # pyright: ignore[reportAssignmentType]

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if name in ATTRIBUTES:
                owner = f"{type(self).__name__!r} object"
                raise AttributeError(missing_attribute(owner, name, ATTRIBUTES), name=name, obj=self)
            return object.__getattribute__(self, name)  # raises again what the usual look-up raised

    def __dir__(self) -> Sequence[str]:
        return description.PUBLIC

    def __deepcopy__(self, memo: dict[int, Any]) -> "Agent":
        """Return a copy that is equal to the agent, as saving and loading would."""
        copied = checkpoint.copy_agent(self, type(self))
        if self.data.minibatch_builder.hindsight is not None:
            copied.data.minibatch_builder.hindsight.functions = self.data.minibatch_builder.hindsight.functions
        return copied

    def copy_weights(self, *names: str) -> None:
        """Copy all weights of their sources into copies, such as those with the rule `on_request`.

        Args:
            names: the names of copies in `copies`.

        Raises:
            ValueError: a name is not that of a copy.
        """
        self.learner.synchronize()
        self.parts.copy_weights(*names)
        self.data.actor.refresh()

    # The interface for the training loop, checkpoints and callbacks.
    built = True

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of all components, each once, for TensorBoard's histograms."""
        return list(dict.fromkeys(layer for network in self.networks.values() for layer in network.layers))

    @property
    def train_function(self) -> Any:
        """The compiled updates, for TensorBoard's graph; None before the first update."""
        return self.learner.function
