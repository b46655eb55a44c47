"""Hindsight experience replay against a slow, obvious implementation, and against Stable-Baselines3 if it is there."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.environments import Reach
from tfdpg.replay import GoalFunctions, ReplayBuffer, TransitionLayout, transition_minibatches
from tfdpg.replay.hindsight import EpisodeIndex
from tfdpg.spec import Spec

GAMMA = 0.9
SAMPLING = {"replay": "uniform", "alpha": None, "beta": None, "beta_steps": None}
SAMPLING |= {"epochs_per_round": None, "max_minibatches_per_round": None}


def filled(env, episodes, num_envs=1, replay_size=10_000, seed=0):
    """Return a replay buffer with episodes of random actions, and the same episodes as lists of transitions."""
    spec = Spec.of(env)
    buffer = ReplayBuffer(spec, replay_size, has_predecessors=True)
    rng = np.random.default_rng(seed)
    envs = [env, *(Reach(env.length, env.ends, env.accepts_arrays) for _ in range(num_envs - 1))]
    for index, each in enumerate(envs):
        each.length += 3 * index  # sub-environments whose episodes end at different times
    observations = [each.reset(seed=seed + index)[0] for index, each in enumerate(envs)]
    buffer.begin(np.arange(num_envs), pack(spec, observations))
    open_episodes = [[] for _ in envs]
    finished = []
    while len(finished) < episodes:
        actions = rng.uniform(-1, 1, (num_envs, 2)).astype(np.float32)
        steps = [each.step(action) for each, action in zip(envs, actions, strict=True)]
        following = [step[0] for step in steps]
        rewards = np.array([step[1] for step in steps])
        terminated = np.array([step[2] for step in steps])
        buffer.add(np.arange(num_envs), actions, rewards, terminated, pack(spec, following))
        for index, (_, reward, is_terminal, truncated, _) in enumerate(steps):
            open_episodes[index].append((observations[index], actions[index], reward, following[index], is_terminal))
            observations[index] = following[index]
            if is_terminal or truncated:
                finished.append(open_episodes[index])
                open_episodes[index] = []
                observations[index] = envs[index].reset()[0]
                buffer.end(np.array([index]))
                buffer.begin(np.array([index]), pack(spec, [observations[index]]))
    return buffer, [*finished, *(episode for episode in open_episodes if episode)]


def pack(spec, observations):
    return spec.pack({key: np.stack([each[key] for each in observations]) for key in observations[0]})


def builder(buffer, env, her="future", her_ratio=0.8, n_step=1, batch_size=64, **sampling):
    made = transition_minibatches(
        buffer, n_step=n_step, gamma=GAMMA, seed=3, her=her, her_ratio=her_ratio, batch_size=batch_size,
        **SAMPLING | sampling,
    )  # fmt: skip
    made.hindsight.functions = GoalFunctions(env)
    return made


def unpack(buffer, packed):
    """Return the observations, rewards, discounts and next observations of packed transitions, flat."""
    layout = TransitionLayout.of(buffer.spec)
    rows = packed[0].reshape(-1, layout.width)
    first, last = (buffer.spec.unpack((rows[:, columns],)) for columns in (layout.observation, layout.next_observation))
    return first, rows[:, layout.reward], rows[:, layout.discount], last


def find(episodes, buffer, slot):
    """Return the episode of a row and the index of its step, which the observation and the action identify."""
    observation = buffer.spec.unpack(buffer.observation(np.array([slot])))
    action = buffer.action(np.array([slot]))[0]
    for episode in episodes:
        for t, transition in enumerate(episode):
            if np.array_equal(transition[1], action) and np.array_equal(
                transition[0]["desired_goal"], observation["desired_goal"][0]
            ):
                return episode, t
    raise AssertionError("no such transition")


def n_step_return(env, episode, t, goal, n_step):
    """Return the n-step return of a step for a goal, its discount, and its last observation, step by step."""
    total = 0.0
    for k in range(n_step):
        _, _, _, following, _ = episode[t + k]
        goals = following["achieved_goal"], goal, {}
        total += GAMMA**k * env.compute_reward(*goals)
        terminated = env.compute_terminated(*goals)
        if terminated or env.compute_truncated(*goals) or t + k + 1 == len(episode):
            break
    return total, GAMMA ** (k + 1) * (not terminated), following


@pytest.mark.parametrize("accepts_arrays", [True, False])
@pytest.mark.parametrize("ends", [None, "terminated", "truncated"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("her", ["future", "final", "episode"])
def test_a_minibatch_equals_that_of_a_slow_implementation(her, n_step, ends, accepts_arrays):
    env = Reach(8, ends, accepts_arrays)
    buffer, episodes = filled(env, 12, num_envs=2)
    made = builder(buffer, env, her, n_step=n_step)
    packed, slots = made(5, 2)
    first, reward, discount, last = unpack(buffer, packed)
    relabelled = 0
    for row, slot in enumerate(slots.ravel()):
        episode, t = find(episodes, buffer, slot)
        goal = first["desired_goal"][row]
        stored = episode[t][0]
        allowed = {"future": episode[t:], "final": episode[-1:], "episode": episode}[her]
        achieved = [following["achieved_goal"] for *_, following, _ in allowed]
        is_new = not np.array_equal(goal, stored["desired_goal"])
        assert not is_new or any(np.array_equal(goal, each) for each in achieved)
        relabelled += is_new
        total, expected_discount, following = n_step_return(env, episode, t, goal, n_step)
        np.testing.assert_allclose(reward[row], total, rtol=1e-6)
        np.testing.assert_allclose(discount[row], expected_discount, rtol=1e-6)
        for key in ("observation", "achieved_goal"):
            np.testing.assert_array_equal(first[key][row], stored[key])
            np.testing.assert_array_equal(last[key][row], following[key])
        np.testing.assert_array_equal(last["desired_goal"][row], goal)
    assert 85 < relabelled < 120  # 102 of 128 are expected; the standard deviation is 4.5


@pytest.mark.parametrize("her", ["future", "episode"])
def test_goals_are_uniform_over_the_episode(her):
    env = Reach(5)
    buffer, episodes = filled(env, 6, num_envs=2)
    hindsight = builder(buffer, env, her, her_ratio=1.0, batch_size=4000).hindsight
    slot = 2 * 2  # the third step of sub-environment 0, whose episodes have five
    slots = np.full((1, 4000), slot)
    goals = hindsight.sample_goals(0, slots, np.ones(slots.shape, bool))
    achieved = buffer.spec.unpack(buffer.observation(goals.ravel()))["achieved_goal"]
    episode, t = find(episodes, buffer, slot)
    candidates = episode[t:] if her == "future" else episode
    counts = [(achieved == step[3]["achieved_goal"]).all(axis=1).sum() for step in candidates]
    assert t == 2 and sum(counts) == 4000
    expected = 4000 / len(candidates)
    assert max(abs(count - expected) for count in counts) < 5 * np.sqrt(expected)


@settings(max_examples=200, deadline=None)
@example(
    actions=[(0, False), (1, False), (0, False), (0, False), (0, True), (0, True), (1, False), (0, False), (1, False)],
    replay_size=8,
    sync_every=1,
)
@given(
    actions=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=80),
    replay_size=st.integers(8, 40),
    sync_every=st.integers(1, 20),
)
def test_the_index_of_episodes_follows_the_buffer(actions, replay_size, sync_every):
    """In the example, an episode begins in the slot of the overwritten first row of an episode that goes on."""
    spec = Spec(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (1,)))
    buffer = ReplayBuffer(spec, replay_size, has_predecessors=True)
    index = EpisodeIndex(buffer)
    episode_of = {}  # by row number
    rows = dict.fromkeys(range(3))
    for step, (env_index, ends) in enumerate(actions):
        env = np.array([env_index])
        if rows[env_index] is None:
            buffer.begin(env, (np.zeros((1, 1), np.float32),))
            episode_of[buffer.added - 1] = rows[env_index] = buffer.added - 1
        elif buffer.current[env_index] < buffer.oldest:
            rows[env_index] = None  # its current row was overwritten, which is tested elsewhere
            buffer.end(env)
            continue
        buffer.add(env, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), (np.zeros((1, 1), np.float32),))
        episode_of[buffer.added - 1] = rows[env_index]
        if ends:
            buffer.end(env)
            rows[env_index] = None
        if step % sync_every == 0 or step == len(actions) - 1:
            for slot in buffer.transition_slots():
                (first,), (last,) = index.bounds(np.array([slot]))
                (number,) = index.numbers(np.array([slot]))
                same = [r for r in range(buffer.oldest, buffer.added) if episode_of[r] == episode_of[number]]
                assert (first, last) == (same[0], same[-1])
                assert [
                    r for r in range(buffer.oldest, buffer.added) if index.contains(np.array([slot]), np.array([r]))[0]
                ] == same


def test_the_goals_of_a_minibatch_depend_on_its_update_and_on_nothing_sampled_with_it():
    env = Reach(8)
    buffer, _ = filled(env, 10, num_envs=2)
    together, _ = builder(buffer, env)(4, 3)
    for offset in range(3):
        alone, _ = builder(buffer, env)(4 + offset, 1)
        np.testing.assert_array_equal(alone[0][0], together[0][offset])


def test_an_index_made_later_samples_the_same_goals():
    """A resumed run has another index, which sees only the rows that are left of the oldest episodes."""
    env = Reach(8)
    for her in ("future", "final", "episode"):
        buffer, _ = filled(env, 8, num_envs=2, replay_size=50)
        made = builder(buffer, env, her, batch_size=200)
        made(0, 1)
        assert buffer.oldest > 0
        restored = ReplayBuffer(buffer.spec, 50, has_predecessors=True)
        restored.restore(buffer.state(), [buffer.segment(buffer.oldest, buffer.added)])
        again = builder(restored, env, her, batch_size=200)
        for place in (made, again):
            place.buffer.add(
                np.array([0]), np.ones((1, 2)), np.ones(1), np.zeros(1, bool), place.buffer.observation([3])
            )
        np.testing.assert_array_equal(made(7, 1)[0][0], again(7, 1)[0][0])


def test_a_buffer_that_was_cleared_is_indexed_again():
    env = Reach(8)
    buffer, _ = filled(env, 5)
    index = EpisodeIndex(buffer)
    index.bounds(buffer.transition_slots())
    buffer.clear()
    other, _ = filled(env, 9, num_envs=2, seed=1)
    buffer.restore(other.state(), [other.segment(0, other.added)])
    slots = buffer.transition_slots()
    np.testing.assert_array_equal(index.bounds(slots), EpisodeIndex(buffer).bounds(slots))


class Functions(Reach):
    """Returns what `reward` makes of the goals."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward
        self.calls = 0

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == {}
        self.calls += 1
        return self.reward(achieved_goal, desired_goal)


@pytest.mark.parametrize(
    "reward, calls",
    [
        (lambda a, d: -np.abs(a - d).sum(axis=-1), 1 + 16),  # once for all, and for the rows that are compared
        (lambda a, d: -float(np.abs(a - d).sum()), 1 + 40),  # a scalar for all
        (lambda a, d: -float(np.abs(a[0] - d[0])) - abs(a[1] - d[1]), 1 + 40),  # raises for arrays
        (lambda a, d: np.arange(len(a)) if a.ndim == 2 else -abs(a - d).sum(), 1 + 16 + 40),  # wrong for arrays
    ],
)
def test_functions_of_the_environment_are_called_with_arrays_where_that_is_right(reward, calls):
    env = Functions(reward)
    functions = GoalFunctions(env)
    achieved, desired = np.random.default_rng(0).uniform(-1, 1, (2, 40, 2)).astype(np.float32)
    expected = -np.abs(achieved - desired).sum(axis=1)
    np.testing.assert_allclose(functions.reward(achieved, desired), expected, rtol=1e-6)
    assert env.calls == calls
    np.testing.assert_allclose(functions.reward(achieved[:1], desired[:1]), expected[:1], rtol=1e-6)


def test_functions_of_vector_environments_and_wrappers():
    wrapped = gym.wrappers.TimeLimit(Reach(), 3)
    makers = [functools.partial(Reach, 5)] * 2
    sync = gym.vector.SyncVectorEnv(makers)
    parallel = gym.vector.AsyncVectorEnv(makers)
    goals = np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)
    for env in (wrapped, sync, parallel):
        np.testing.assert_array_equal(GoalFunctions(env).reward(goals, goals[::-1]), [-1, -1])
        np.testing.assert_array_equal(GoalFunctions(env).reward(goals, goals), [0, 0])
    sync.close()
    parallel.close()


def test_errors_of_functions():
    with pytest.raises(ValueError, match="needs an environment with compute_reward"):
        GoalFunctions(gym.make("Pendulum-v1"))
    with pytest.raises(ValueError, match=r"call agent\.relabel_with\(env\) with one"):
        GoalFunctions(type("Simulator", (gym.vector.VectorEnv,), {"num_envs": 2})())
    functions = GoalFunctions(Functions(lambda a, d: "far"))
    with pytest.raises(ValueError, match="must return a number for one goal"):
        functions.reward(np.zeros((3, 2)), np.zeros((3, 2)))
    functions = GoalFunctions(Functions(lambda a, d: np.where(a[..., 0] > 0.5, np.nan, -1.0)))
    with pytest.raises(
        ValueError, match=r"`compute_reward` .* finite numbers. Received: nan for .*\[1, 1\] .*\[0.0, 0.0\]"
    ):
        functions.reward(np.array([[0, 0], [1, 1]]), np.zeros((2, 2)))


@pytest.mark.parametrize("her", ["future", "final", "episode"])
def test_it_equals_stable_baselines3(her):
    pytest.importorskip("torch")
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = Reach(8)
    buffer, episodes = filled(env, 12)
    spaces = env.observation_space, env.action_space
    theirs = sb3.HerReplayBuffer(
        1000, *spaces, DummyVecEnv([lambda: Reach(8)]), goal_selection_strategy=her, n_sampled_goal=4
    )
    for episode in episodes:
        for t, (observation, action, reward, following, _) in enumerate(episode):
            done = t == len(episode) - 1
            batched = [{key: value[None] for key, value in each.items()} for each in (observation, following)]
            theirs.add(*batched, action[None], np.array([reward]), np.array([done]), [{"TimeLimit.truncated": done}])
    np.random.seed(0)
    rows = np.arange(0, 90)
    zeros = np.zeros_like(rows)
    drawn = []
    original = theirs._sample_goals
    theirs._sample_goals = lambda *arguments: drawn.append(original(*arguments)) or drawn[-1]
    expected = theirs._get_virtual_samples(rows, zeros)
    made = builder(buffer, env, her)
    slots = rows + rows // 8  # ours also has a row for the last observation of each episode of eight steps
    achieved = buffer.spec.unpack(buffer.observation(np.arange(buffer.size)))["achieved_goal"]
    goal_slots = []
    for slot, goal in zip(slots, drawn[0], strict=True):
        (candidates,) = np.nonzero((achieved == goal).all(axis=1))
        goal_slots.append(candidates[candidates > slot][0] if her == "future" else candidates[0])
    relabelled = made.hindsight.relabel(slots, np.ones(len(slots), bool), np.array(goal_slots))
    first, reward, discount, last = unpack(buffer, made.pack(slots[None], None, relabelled))
    for key in first:
        np.testing.assert_array_equal(first[key], expected.observations[key].numpy())
        np.testing.assert_array_equal(last[key], expected.next_observations[key].numpy())
    np.testing.assert_array_equal(reward, expected.rewards.numpy()[:, 0])
    np.testing.assert_array_equal(discount, np.float32(GAMMA) * (1 - expected.dones.numpy()[:, 0]))
