"""A worker in this process: the chunks that it collects for each request."""

import numpy as np
import pytest

from tests.environments import Counter, Identity
from tests.recurrent_policies import counting_policy
from tfdpg import Spec
from tfdpg.acting import BehaviourPolicy
from tfdpg.distributed.worker import RolloutRequest, Worker
from tfdpg.exploration import noisy_actions
from tfdpg.training.environment.env_runner import TRAINING, reset_seed

ENV = Counter(length=3)
SPEC = Spec.of(ENV)


class Constant:
    """A policy whose weights are its action."""

    def __init__(self):
        self.loaded = []

    def load(self, weights):
        self.loaded.append(weights)

    def __call__(self, packed):
        return np.full((1, 1), self.loaded[-1], np.float32)


def worker(make_env=lambda: Counter(length=3), spec=SPEC, policy=None, scale=0.0, env_index=2, max_ep_len=None):
    behaviour = BehaviourPolicy(spec, policy or Constant(), noisy_actions(spec, "gaussian", scale, 0.15, None))
    return Worker(env_index, make_env, behaviour, 7, max_ep_len)


def test_rows_are_in_the_form_of_the_replay_buffer():
    one = worker()
    chunk = one.rollout(0.5, 0, RolloutRequest(4, 0, 1.0, 0))
    assert chunk.rows.observation[0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]]
    assert chunk.rows.is_first.tolist() == [True, False, False, False, True, False]
    assert chunk.rows.reward.tolist() == [0, 1, 2, 3, 0, 1]
    assert chunk.rows.terminated.tolist() == [False, False, False, True, False, False]
    np.testing.assert_array_equal(chunk.rows.action[1:4], 0.5)
    assert chunk.summary.ended.tolist() == [False, False, True, False]
    assert (chunk.summary.chunk_index, chunk.summary.episodes) == (0, 2)
    assert [(episode.episode_return, episode.length) for episode in chunk.summary.finished] == [(6.0, 3)]
    following = one.rollout(0.5, 0, RolloutRequest(2, 0, 1.0, 0))
    assert following.rows.observation[0].tolist() == [[1, 2], [1, 3]] and not following.rows.is_first.any()
    assert following.summary[:2] == (chunk.summary.process_id, 1)


def test_each_episode_has_its_own_seed_and_a_new_worker_continues_the_sequence():
    environments = []

    def make_env():
        environments.append(Counter(length=3))
        return environments[-1]

    first = worker(make_env).rollout(0.0, 0, RolloutRequest(7, 0, 1.0, 0))
    second = worker(make_env).rollout(0.0, 0, RolloutRequest(1, 0, 1.0, first.summary.episodes))
    assert environments[0].seeds == [reset_seed(7, TRAINING, 2, episode) for episode in range(3)]
    assert environments[1].seeds == [reset_seed(7, TRAINING, 2, 3)]
    assert second.summary.episodes == 4 and second.summary.process_id != first.summary.process_id


def test_weights_are_loaded_once_for_each_version():
    policy = Constant()
    one = worker(policy=policy)
    versions = [
        one.rollout(weights, version, RolloutRequest(1, 0, 1.0, 0)).summary.version
        for weights, version in ((1, 0), (2, 0))
    ]
    assert policy.loaded == [1] and versions == [0, 0]
    assert one.rollout(3, 1, RolloutRequest(1, 0, 1.0, 0)).summary.version == 1 and policy.loaded == [1, 3]


def test_noise_and_random_actions():
    one = worker(lambda: Identity(), Spec.of(Identity()), scale=0.1)
    actions = one.rollout(1.0, 0, RolloutRequest(200, 100, 2.0, 0)).rows.action[1::2, 0]
    assert actions[:100].std() == pytest.approx(4 / np.sqrt(12), rel=0.2)
    assert actions[100:].std() == pytest.approx(2 * 0.1 * 2, rel=0.3) and actions[100:].mean() == pytest.approx(1, 0.2)
    quiet = one.rollout(1.0, 0, RolloutRequest(5, 0, 0.0, 0)).rows.action[1::2]
    np.testing.assert_array_equal(quiet, 1)


def test_max_ep_len_truncates():
    chunk = worker(max_ep_len=2).rollout(0.0, 0, RolloutRequest(4, 0, 1.0, 0))
    assert chunk.rows.is_first.tolist() == [True, False, False] * 2 and not chunk.rows.terminated.any()
    assert chunk.summary.ended.tolist() == [False, True] * 2


def test_an_environment_with_other_spaces_is_refused():
    with pytest.raises(ValueError, match="observation_space of `make_env` must be"):
        worker(lambda: Identity()).rollout(0.0, 0, RolloutRequest(1, 0, 1.0, 0))
    with pytest.raises(ValueError, match="`make_env` must .* that makes one"):
        worker(lambda: None).rollout(0.0, 0, RolloutRequest(1, 0, 1.0, 0))


def test_recurrent_state_persists_between_requests_and_is_reset_after_episodes():
    behaviour = counting_policy(SPEC)
    one = Worker(0, lambda: Counter(length=4), behaviour, 7, None)
    chunks = [one.rollout(None, version, RolloutRequest(3, 2 - 2 * version, 1.0, 0)) for version in range(2)]
    rows = [chunk.rows.action[~chunk.rows.is_first] for chunk in chunks]
    np.testing.assert_allclose(np.concatenate(rows)[:, 1], [0, 1, 2, 3, 0, 1])  # the state before each step
    np.testing.assert_allclose(np.concatenate(rows)[2:, 0], [0.3, 0.4, 0.1, 0.2], rtol=1e-6)
    recurrent_inputs = np.concatenate(behaviour.network.recurrent_inputs)
    np.testing.assert_array_equal(recurrent_inputs[:, 1], [0, 1, 2, 3, 0, 1])  # rewards
    np.testing.assert_array_equal(recurrent_inputs[1:4, 0], np.concatenate(rows)[:3, 0])
