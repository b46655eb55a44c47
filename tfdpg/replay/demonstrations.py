"""Demonstrations: a fixed set of transitions, from which a share of the rows of each minibatch comes.

Source: Ball, Smith, Kostrikov, Levine 2023, "Efficient Online Reinforcement Learning with Offline Data", section 4.1.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from tfdpg.arguments import warn
from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.minibatches import Gather, MinibatchBuilder
from tfdpg.spec import Packed

SEEDS = 1 << 32
"""Added to the agent's seed, which is smaller, so that samples of the two replay buffers are independent."""
SAMPLER, JOINED, PLACES = "sampler/", "joined/", "places/"
"""Prefixes of the arrays of `Demonstrations.state`."""


class Demonstrations:
    """A replay buffer with demonstrations, which minibatches mix with the agent's own rows.

    Importance weights are those of each replay buffer on its own: (N P(i))^−β, where N is the number of its transitions
    and P(i) the probability of a row among them. With β = 1, the loss is therefore that of uniform samples of both
    replay buffers, in the same shares. If weights are normalised, they are divided by the largest one of the whole
    minibatch.

    Args:
        builder: builds minibatches of the replay buffer, which holds the demonstrations and nothing else.

    Attributes:
        builder: as given.
        buffer: its replay buffer.
        rows: the number of rows of the data. Steps that join later follow them.
        digest: identifies the data.
    """

    def __init__(self, builder: MinibatchBuilder):
        self.builder = builder
        self.buffer = builder.buffer
        self.rows = self.buffer.added
        self.digest = digest(self.buffer)
        self._normalizes = False
        self._is_full = False
        builder.sampler.seed += SEEDS
        if builder.hindsight is not None:
            builder.hindsight.seed += SEEDS

    @contextlib.contextmanager
    def mixed_with(self, own: MinibatchBuilder, ratio: float) -> Iterator[None]:
        """Inside the context, `sample` and `update_priorities` may be called.

        Args:
            own: builds minibatches of the agent's own replay buffer.
            ratio: the share of demonstrations in a minibatch, which is rounded to a number of rows.

        Raises:
            ValueError: a minibatch would have no row of one of the two replay buffers.
        """
        samplers = own.sampler, self.builder.sampler
        before = [(sampler.batch_size, sampler.normalize_weights) for sampler in samplers]
        batch_size = own.sampler.batch_size
        shown = round(ratio * batch_size)
        if not 0 < shown < batch_size:
            raise ValueError(
                "`demonstration_ratio` must leave a row for demonstrations and one for new experience in each "
                f"minibatch. Received: demonstration_ratio={ratio}, batch_size={batch_size}"
            )
        self._normalizes = own.sampler.normalize_weights
        for sampler, count in zip(samplers, (batch_size - shown, shown), strict=True):
            sampler.batch_size = count
            sampler.normalize_weights = False
        try:
            yield
        finally:
            for sampler, values in zip(samplers, before, strict=True):
                sampler.batch_size, sampler.normalize_weights = values

    def sample(self, own: MinibatchBuilder, update: int, count: int) -> tuple[Gather, np.ndarray]:
        """Sample minibatches, as `MinibatchBuilder` does: first the agent's own rows, and then demonstrations."""
        parts = own, self.builder
        sampled = [part.sampler.sample(update, count) for part in parts]
        weights = [given for _, given in sampled]
        if self._normalizes:
            largest = np.concatenate([given for given in weights if given is not None], axis=1).max(axis=1)
            weights = [None if given is None else given / largest[:, None] for given in weights]
        gathers = [
            part.gather(update, rows, given) for part, (rows, _), given in zip(parts, sampled, weights, strict=True)
        ]

        def gather_both() -> Packed:
            packed = [gather() for gather in gathers]
            return tuple(np.concatenate(arrays, axis=1) for arrays in zip(*packed, strict=True))

        return gather_both, np.concatenate([rows for rows, _ in sampled], axis=1)

    def update_priorities(self, own: MinibatchBuilder, rows: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of rows that `sample` returned, each in its own replay buffer.

        Args:
            own: builds minibatches of the agent's own replay buffer.
            rows: the slots, `[count, batch, ...]`.
            errors: the TD errors, the same number for each row.
        """
        first = own.sampler.batch_size
        errors = errors.reshape(*rows.shape[:2], -1)
        for part, columns in ((own, slice(first)), (self.builder, slice(first, None))):
            part.update_priorities(rows[:, columns], errors[:, columns].reshape(len(rows), -1))

    def join(
        self,
        is_joining: np.ndarray,
        env_indices: np.ndarray,
        observation: Packed,
        step: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_observation: Packed,
    ) -> None:
        """Add some steps. Successive ones of a sub-environment count as steps of one episode, which others end.

        Once there is no room, further steps do not join: those before are kept, and so is the data.

        Args:
            is_joining: whether each step is added, bool `[n]`.
            env_indices: the sub-environments, `[n]`.
            observation: packed, `[n, ...]`.
            step: the action and the columns stored with it, `[n, step_width]`.
            reward: `[n]`.
            terminated: `[n]`, bool.
            next_observation: packed, `[n, ...]`.
        """
        buffer = self.buffer
        buffer.end(env_indices[~is_joining])
        if not is_joining.any() or not self._has_room(2 * int(is_joining.sum())):
            return
        joining = env_indices[is_joining]
        open_ones = np.flatnonzero(buffer.current != NONE)
        opens = ~np.isin(joining, open_ones)
        if opens.any():
            buffer.begin(joining[opens], tuple(part[is_joining][opens] for part in observation))
        outcome = reward[is_joining], terminated[is_joining], tuple(part[is_joining] for part in next_observation)
        buffer.add(joining, step[is_joining], *outcome)

    def _has_room(self, rows: int) -> bool:
        """Return whether there is room for more rows; if not for the first time, warn."""
        if self.buffer.added + rows <= self.buffer.replay_size and not self._is_full:
            return True
        if not self._is_full:
            self._is_full = True
            warn(
                f"{self.buffer.added - self.rows:,} rows of interventions have joined the demonstrations, as many as "
                "`replay_size` allows. Further ones do not."
            )
        return False

    def end(self, env_indices: np.ndarray) -> None:
        """Let steps that join next be those of other episodes."""
        self.buffer.end(env_indices)

    def state(self) -> dict[str, np.ndarray]:
        """Return what `restore` needs, as arrays: the state of the sampler and the steps that joined, not the data."""
        buffer = self.buffer
        described = {"rows": np.array(self.rows), "digest": np.array(self.digest)}
        described |= {SAMPLER + name: np.array(values) for name, values in self.builder.sampler.state().items()}
        if buffer.added > self.rows:
            joined = buffer.segment(self.rows, buffer.added)
            described |= {JOINED + name: np.array(values) for name, values in joined.items()}
            described |= {PLACES + name: np.array(values) for name, values in buffer.state().items()}
        return described

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `state` of demonstrations with the same data."""
        if joined := _part(state, JOINED):
            self.buffer.append(joined)
            places = _part(state, PLACES)
            self.buffer.current, self.buffer.newest, self.buffer.episode_start = (
                places[name] for name in ("heads", "newest", "opened")
            )
        self.builder.sampler.restore(self.buffer.state() | _part(state, SAMPLER))


def _part(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}


def joined_rows(state: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows that had joined when `Demonstrations.state` was called."""
    return len(state.get(f"{JOINED}rows", ()))


def digest(buffer: ReplayBuffer) -> str:
    """Return a digest of all rows of a replay buffer."""
    digest = hashlib.blake2b(digest_size=8)
    for _, values in sorted(buffer.segment(buffer.oldest, buffer.added).items()):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
