"""What the diagnosis knows of a run: its replay buffer, evaluation episodes, networks and learning curves.

Nothing here changes the agent.
"""

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdpg.acting.encoder import encode, real_features
from tfdpg.agents.agent import Agent
from tfdpg.compat.keras import run_graph, squared_gradients
from tfdpg.diagnosis import statistics
from tfdpg.networks import Categorical, head_of
from tfdpg.replay import ReplayBuffer
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream
from tfdpg.training.evaluation import run_episodes
from tfdpg.training.network_inputs import input_scale, network_calls

TRANSITIONS = 5000
"""The number of transitions, evenly spaced over the replay buffer, that are examined."""
NEWEST_ROWS = 200_000
"""Episodes are looked for in this number of the newest rows of the replay buffer."""
SERIES = 30
"""The number of episodes, the newest, whose rewards are examined."""


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """An evaluation episode.

    Attributes:
        observation: packed, `[steps, ...]`.
        action: scaled to [-1, 1], `[steps, act_dim]`; numbers of actions for a Discrete space.
        reward: `[steps]`.
        terminated: whether the last state is terminal.
        values: the action values of the critics by name, `[steps]` each.
    """

    observation: Packed
    action: np.ndarray
    reward: np.ndarray
    terminated: bool
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> float:
        """The return, not discounted."""
        return float(self.reward.sum())


@dataclasses.dataclass(frozen=True)
class Replay:
    """The content of a replay buffer.

    Attributes:
        names: the names of the features, "" for those of discrete parts.
        observation: features of observations before they are normalised, `[n, features]`.
        next_observation: those of the next observations.
        previous: those of the observations before; None where an episode begins, as a row of NaN.
        action: scaled to [-1, 1], `[n, act_dim]`; one-hot for a Discrete space.
        previous_action: the action before, NaN where an episode begins.
        reward: `[n]`.
        rewards: the rewards of the newest complete episodes, `[steps]` each.
        lengths: the number of steps of each complete episode, `[episodes]`.
        terminated: whether it ended in a terminal state, bool `[episodes]`.
        size: the number of observations held.
        capacity: the maximum.
        added: the number of observations ever added.
        has_images: whether observations contain images, which are not among the features.
    """

    names: Sequence[str]
    observation: np.ndarray
    next_observation: np.ndarray
    previous: np.ndarray
    action: np.ndarray
    previous_action: np.ndarray
    reward: np.ndarray
    rewards: Sequence[np.ndarray] = ()
    lengths: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    terminated: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    size: int = 0
    capacity: int = 1_000_000
    added: int = 0
    has_images: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """A hidden layer.

    Attributes:
        network: the name of its network.
        units: its number of units.
        dormant: the share of dormant units.
        rank: the effective rank of its activations.
        is_last: whether it is the last hidden layer of its network.
    """

    network: str
    units: int
    dormant: float
    rank: int
    is_last: bool


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a network, and what trains them.

    Attributes:
        network: the name of the network.
        growth: the root mean square of the kernels, divided by that of Glorot's initial weights.
        initial: the smallest root mean square of a kernel's initial weights.
        learning_rate: that of its optimizer; None if the size of its steps is not about the learning rate.
        gradient: the root mean square of the norm of its gradient over the latest updates; None if unknown.
    """

    network: str
    growth: float
    initial: float
    learning_rate: float | None = None
    gradient: float | None = None


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the checks receive. A check of something that is missing here finds nothing.

    Attributes:
        options: the options of the agent.
        env_steps: the number of environment steps.
        updates: the number of updates.
        start_steps: the number of steps with random actions.
        has_shaper: whether the rewards in the replay buffer are not those of the environment.
        is_recurrent: whether the policy is recurrent.
        first_action: the smallest action of a Discrete space; None for other actions.
        has_rounded_actions: whether actions are those of a Box of integers.
        replay: the replay buffer; None if it is empty or in other processes.
        greedy: evaluation episodes of the evaluation policy.
        exploring: evaluation episodes of the behaviour policy, with the same initial states.
        random: episodes of random actions, with the same initial states.
        layers: the hidden layers of the networks.
        weights: the weights of the networks.
        edges: the probability of the first and of the last atom of categorical critics by name, and the support.
        input_scale: the result of `input_scale`.
        has_custom_networks: whether networks or the encoder are the user's own models.
        critics: the number of critics.
        curves: the metrics of each epoch by name, `[epochs]` each.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env_steps: int = 10_000
    updates: int = 10_000
    start_steps: int = 0
    has_shaper: bool = False
    is_recurrent: bool = False
    first_action: int | None = None
    has_rounded_actions: bool = False
    replay: Replay | None = None
    greedy: Sequence[Trajectory] = ()
    exploring: Sequence[Trajectory] = ()
    random: Sequence[Trajectory] = ()
    layers: Sequence[Layer] = ()
    weights: Sequence[Weights] = ()
    edges: Mapping[str, tuple[float, float, float, float]] = dataclasses.field(default_factory=dict)
    input_scale: float | None = None
    has_custom_networks: bool = False
    critics: int = 1
    curves: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def gamma(self) -> float:
        """γ."""
        return self.options.get("gamma", 0.99)

    @property
    def has_discrete_actions(self) -> bool:
        """Whether the action space is Discrete."""
        return self.first_action is not None


def collect(
    agent: Agent, env: Any, episodes: int, seed: int, max_ep_len: int | None, curves: Mapping[str, Sequence[float]]
) -> Evidence:
    """Collect the evidence.

    Args:
        agent: the agent.
        env: the environment of the evaluation episodes.
        episodes: the number of episodes of each policy.
        seed: the seed of the episodes.
        max_ep_len: the number of steps after which they are truncated.
        curves: the metrics of each epoch by name.
    """
    run = {"env": env, "episodes": episodes, "seed": seed, "max_ep_len": max_ep_len}
    spec = agent.spec
    layers, edges = examine_networks(agent)
    return Evidence(
        options=agent.options.values(),
        env_steps=agent.env_steps,
        updates=agent.updates,
        start_steps=agent.data.schedule.start_steps,
        has_shaper=agent.options.reward_shaper is not None,
        is_recurrent=agent.data.recurrent_spec is not None,
        first_action=None if spec.actions is None else int(spec.low[0]),
        has_rounded_actions=spec.integer_type is not None,
        replay=replay_of(agent.replay) if len(agent.replay) else None,
        greedy=[with_values(agent, each) for each in record(spec, agent.policy(), **run)],
        exploring=record(spec, agent.policy(seed), **run),
        random=record(spec, random_policy(spec, seed), **run),
        layers=layers,
        weights=weights_of(agent),
        edges=edges,
        input_scale=input_scale(agent),
        has_custom_networks=bool(agent.parts.given),
        critics=len(agent.exported_critics),
        curves={name: np.asarray(values, np.float64) for name, values in curves.items()},
    )


def random_policy(spec: Spec, seed: int) -> Callable[[Any], np.ndarray]:
    """Return a policy that selects uniformly random actions for a batch of observations."""
    rng = np.random.default_rng(stream(Purpose.EVALUATION, seed, 1))

    def act(observation: Any) -> np.ndarray:
        rows = len(spec.pack(observation)[0])
        if spec.actions is not None:
            return int(spec.low[0]) + rng.integers(spec.actions, size=rows)
        actions = rng.uniform(*spec.random_bounds, (rows, spec.act_dim)).astype(np.float32)
        return spec.shaped(spec.rounded(actions))

    return act


class Recorder:
    """A policy that keeps what it sees and does.

    Args:
        spec: the spaces.
        policy: the policy.
    """

    def __init__(self, spec: Spec, policy: Any):
        self.spec = spec
        self._policy = policy
        self._steps: dict[int, list[Any]] = defaultdict(list)
        self.ended: dict[int, list[list[Any]]] = defaultdict(list)

    def __call__(self, observation: Any) -> np.ndarray:
        """Return the actions for a batch of observations."""
        packed = self.spec.pack(observation)
        action = np.asarray(self._policy(observation))
        flat = np.reshape(action, (len(packed[0]), -1)).astype(np.float64)
        if self.spec.actions is None:
            flat = (flat - self.spec.center) / self.spec.action_scale
        for row, taken in enumerate(flat):
            self._steps[row].append([tuple(part[row].copy() for part in packed), taken, 0.0])
        return action

    def received(self, reward: np.ndarray) -> None:
        """Keep the rewards of the last actions, and pass them on."""
        for row, value in enumerate(reward):
            self._steps[row][-1][2] = float(value)
        if hasattr(self._policy, "received"):
            self._policy.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Close the episodes that ended, and pass it on."""
        for row in np.flatnonzero(ended).tolist():
            self.ended[row].append(self._steps.pop(row))
        if hasattr(self._policy, "end"):
            self._policy.end(ended)

    def reset(self) -> None:
        """Reset the policy."""
        if hasattr(self._policy, "reset"):
            self._policy.reset()


def record(spec: Spec, policy: Any, *, env: Any, **options: Any) -> list[Trajectory]:
    """Run episodes as `tfdpg.evaluate` does, and return them step by step."""
    recorder = Recorder(spec, policy)
    found = []
    for episode in run_episodes(recorder, env, **options):
        observations, actions, rewards = zip(*recorder.ended[episode.env_index].pop(0), strict=True)
        packed = tuple(np.stack(parts) for parts in zip(*observations, strict=True))
        found.append(Trajectory(packed, np.stack(actions), np.array(rewards), episode.terminated))
    return found


def with_values(agent: Agent, episode: Trajectory) -> Trajectory:
    """Add the critics' values of the actions taken."""
    spec = agent.spec
    if spec.actions is None:
        action = (episode.action * spec.action_scale + spec.center).astype(np.float32)
    else:
        action = episode.action[:, 0].astype(np.int64)
    inputs = {"a": action, "r": episode.reward.astype(np.float32)} | spec.unpack(episode.observation)
    values = {}
    for name in agent.exported_critics:
        signature = agent.signatures[name]
        given = {key: value for key, value in inputs.items() if key in (*spec.shapes, *signature.inputs)}
        if signature.axes == 2:
            given = {key: value[None] for key, value in given.items()}
        values[name] = signature.reference(spec)(given)[name].ravel().astype(np.float64)
    return dataclasses.replace(episode, values=values)


def replay_of(buffer: ReplayBuffer) -> Replay:
    """Read a replay buffer that holds transitions."""
    spec = buffer.spec
    before = np.full(buffer.replay_size, -1, np.int64)
    chosen = buffer.transition_slots()
    before[buffer.successor[chosen]] = chosen
    if len(chosen) > TRANSITIONS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, TRANSITIONS).astype(np.int64)]
    is_first = before[chosen] < 0
    previous = np.where(is_first, chosen, before[chosen])
    has_images = "uint8" in spec.groups
    is_real = real_features(spec)
    kept = is_real if has_images else slice(None)
    parts = max(1, len(chosen) * len(is_real) // 1_000_000)

    def features(slots: np.ndarray) -> np.ndarray:
        found = [encode(spec, buffer.observation(part))[:, kept] for part in np.array_split(slots, parts)]
        return np.concatenate(found).astype(np.float64)

    def actions(slots: np.ndarray) -> np.ndarray:
        values = buffer.action(slots).astype(np.float64)
        if spec.actions is not None:
            return (values == spec.low[0] + np.arange(spec.actions)).astype(np.float64)
        return (values - spec.center) / spec.action_scale

    lengths, terminated, rewards = episodes_of(buffer, before)
    return Replay(
        names=[name for name in feature_names(spec) if name or not has_images],
        observation=features(chosen),
        next_observation=features(buffer.successor[chosen]),
        previous=np.where(is_first[:, None], np.nan, features(previous)),
        action=actions(chosen),
        previous_action=np.where(is_first[:, None], np.nan, actions(previous)),
        reward=buffer.rows[chosen, -1].astype(np.float64),
        rewards=rewards,
        lengths=lengths,
        terminated=terminated,
        size=buffer.size,
        capacity=buffer.replay_size,
        added=buffer.added,
        has_images=has_images,
    )


def feature_names(spec: Spec) -> list[str]:
    """Return the names of the features, "" for those of images and discrete parts."""
    leaves = [leaf.columns for leaf in spec.leaves if leaf.dtype == "float32"]
    columns = itertools.chain.from_iterable(range(each.start, each.stop) for each in leaves)
    return [spec.entry_name(next(columns)) if is_real else "" for is_real in real_features(spec)]


def episodes_of(buffer: ReplayBuffer, before: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the complete episodes among the newest rows: lengths, whether they terminated, rewards of the newest.

    Args:
        buffer: the replay buffer.
        before: the slot before each slot, or -1.
    """
    first = max(buffer.oldest, buffer.added - NEWEST_ROWS)
    slots = np.arange(first, buffer.added) % buffer.replay_size
    steps = dict.fromkeys(slots[before[slots] < 0].tolist(), 0)
    if buffer.oldest or first > buffer.oldest:  # the beginnings of the oldest episodes are not held
        for slot in slots[: max(len(buffer.current), 1)].tolist():
            steps.pop(slot, None)
    successor = buffer.successor
    open_slots = set((buffer.current[buffer.current >= buffer.oldest] % buffer.replay_size).tolist())
    lengths, ends = [], []
    for slot in slots.tolist():  # a successor is newer than its row
        length = steps.pop(slot, None)
        if length is None:
            continue
        if successor[slot] >= 0:
            steps[int(successor[slot])] = length + 1
        elif slot not in open_slots and length:
            lengths.append(length)
            ends.append(slot)
    terminated = [bool(buffer.terminated[before[slot]]) for slot in ends]
    rewards = []
    for slot, length in list(zip(ends, lengths, strict=True))[-SERIES:]:
        of_episode = np.empty(length)
        for t in range(length - 1, -1, -1):
            slot = before[slot]
            of_episode[t] = buffer.rows[slot, -1]
        rewards.append(of_episode)
    return np.array(lengths, np.int64), np.array(terminated, bool), rewards


def examine_networks(agent: Agent) -> tuple[list[Layer], dict[str, tuple[float, float, float, float]]]:
    """Call the policy and the critics for observations and actions in the replay buffer.

    Returns:
        The hidden layers, and for categorical critics the probabilities of the edge atoms and the support.
    """
    layers: list[Layer] = []
    edges = {}
    for name, model, inputs in network_calls(agent):
        if inputs is None:
            continue
        found: list[np.ndarray] = []
        output = run_graph(model, inputs, functools.partial(_keep, found))
        for depth, activations in enumerate(found, 1):
            dormant, rank = statistics.dormant_share(activations), statistics.effective_rank(activations)
            layers.append(Layer(name, activations.shape[1], dormant, rank, is_last=depth == len(found)))
        if name in agent.exported_critics and isinstance(head := head_of(model), Categorical):
            probabilities = np.asarray(keras.ops.softmax(output)).mean(axis=0)
            edges[name] = *probabilities[[0, -1]].tolist(), *head.atoms.numpy()[[0, -1]].tolist()
    return layers, edges


def _keep(found: list[np.ndarray], layer: Any, arguments: Any, output: Any) -> None:
    """Append the activations of a hidden layer, `[rows, units]`."""
    activation = getattr(layer, "activation", None)
    if not isinstance(layer, keras.layers.Dense | keras.layers.Activation) or len(output.shape) != 2:
        return
    excluded = {keras.activations.linear, keras.activations.softmax}
    if isinstance(layer, keras.layers.Activation):  # of the output of policies
        excluded.add(keras.activations.tanh)
    if activation not in excluded:
        found.append(np.asarray(output, np.float32))


def weights_of(agent: Agent) -> list[Weights]:
    """Return the sizes of the weights of each component, and of the gradients that its optimizer has seen."""
    seen = {}
    for optimizer in agent.optimizers.values():
        seen |= {id(variable): (optimizer, square) for variable, square in squared_gradients(optimizer)}
    found = []
    for name, network in agent.networks.items():
        kernels = [weight for weight in network.trainable_weights if len(weight.shape) == 2]
        if not kernels:
            continue
        sizes = np.array([np.sum(np.square(kernel.numpy(), dtype=np.float64)) for kernel in kernels])
        initial = np.array([2 / sum(kernel.shape) for kernel in kernels])
        counts = np.array([np.prod(kernel.shape) for kernel in kernels])
        optimizer, _ = seen.get(id(kernels[0]), (None, None))
        found.append(
            Weights(
                network=name,
                growth=float(np.sqrt(sizes.sum() / (initial * counts).sum())),
                initial=float(np.sqrt(initial.min())),
                learning_rate=None if optimizer is None else float(optimizer.learning_rate),
                gradient=_gradient_norm(optimizer, [seen.get(id(kernel), (None, None))[1] for kernel in kernels]),
            )
        )
    return found


def _gradient_norm(optimizer: Any, squares: Sequence[np.ndarray | None]) -> float | None:
    """Return √ Σ v, where v is the optimizer's running mean of the squared gradients."""
    known = [square for square in squares if square is not None]
    steps = 0 if optimizer is None else int(optimizer.iterations)
    if len(known) < len(squares) or not steps:
        return None
    decay = getattr(optimizer, "beta_2", getattr(optimizer, "rho", 0.0))  # of Adam, of RMSprop
    return float(np.sqrt(sum(square.sum(dtype=np.float64) for square in known) / (1 - decay**steps)))
