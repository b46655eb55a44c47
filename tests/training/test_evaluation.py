import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import fit_briefly
from tests.environments import Counter
from tfdpg.training.environment.env_runner import reset_seed


class Informed(Counter):
    """Its `info` has numbers: in each step, in the last step only, and what is no number or has a meaning."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {
            "cost": np.float32(self.t),
            "hot": self.t > 2,
            "name": "x",
            "place": np.zeros(2),
            "wave": 1j,
        }
        if terminated or truncated:
            info |= {"goals": 3 + self.t, "success": self.t == 4}
        return observation, reward, terminated, truncated, info


class Fixed:
    """Always the same action."""

    def __init__(self, env):
        self.spec = tfdpg.Spec.of(env)

    def __call__(self, observation):
        return np.zeros((len(observation), self.spec.act_dim), np.float32)


def test_numbers_in_info_are_averaged_over_steps_and_episodes():
    env = Informed(length=4)
    scores = tfdpg.evaluate(Fixed(env), env, episodes=2)
    info = {name: value for name, value in scores.items() if name.startswith("info_")}
    assert info == {"info_cost": 2.5, "info_goals": 7, "info_hot": 0.5}
    assert (scores["success_rate"], scores["terminated"], scores["truncated"]) == (1, 1, 0)


@pytest.mark.parametrize("success", ["no", np.zeros(2), None])
def test_what_is_no_number_is_no_success(success):
    class Talking(Counter):
        def step(self, action):
            *result, _ = super().step(action)
            return *result, {"success": success, "id": 2**999, 3: 4.0}

    scores = tfdpg.evaluate(Fixed(Talking()), Talking(), episodes=2)
    assert "success_rate" not in scores and scores["info_3"] == 4


@pytest.mark.parametrize("mode", AutoresetMode)
def test_numbers_in_info_are_those_of_each_sub_environment(mode):
    make = [lambda length=length: Informed(length, "truncated") for length in (2, 4)]
    env = SyncVectorEnv(make, autoreset_mode=mode)
    scores = tfdpg.evaluate(Fixed(env), env, episodes=4)
    assert scores["info_cost"] == (1.5 + 2.5) / 2 and scores["info_hot"] == 0.25
    assert scores["info_goals"] == 6 and scores["success_rate"] == 0.5 and scores["truncated"] == 1


def test_counts_by_hand():
    env = Counter(length=4)
    scores = tfdpg.evaluate(Fixed(env), env, episodes=3)
    returns = {"return": 10, "return_std": 0, "return_min": 10, "return_max": 10}
    assert scores == {**returns, "episode_length": 4, "terminated": 1, "truncated": 0}
    assert env.episode == 2  # three episodes, and no reset more
    assert tfdpg.evaluate(Fixed(env), env, episodes=2, max_ep_len=2)["return"] == 3
    for wrong in (0, -5, True, 2.5):
        with pytest.raises(ValueError, match=f"`max_ep_len` must be a positive integer. Received: max_ep_len={wrong}"):
            tfdpg.evaluate(Fixed(env), env, max_ep_len=wrong)


def test_the_seed_fixes_the_episodes():
    env = gym.make("Pendulum-v1")
    first, again, other = (tfdpg.evaluate(Fixed(env), env, 3, seed=seed) for seed in (7, 7, 8))
    assert first == again != other
    assert first["return_min"] < first["return"] < first["return_max"] and first["return_std"] > 0


def test_noise_with_a_past_has_none_when_an_episode_begins():
    class Starts(Counter):
        def step(self, action):
            if self.t == 0:
                starts.append(float(action[0] - agent(self._observation())[0]))
            return super().step(action)

    starts = []
    options = {"noise": "ou", "act_noise": 0.01, "ou_theta": 0.0, "start_steps": 0, "update_after": 1000}
    agent = tfdpg.DDPG(Counter(), **options, hidden_units=(4,), jit_compile=False)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=502)
    scores = [agent.evaluate(Starts(length=100), 20, stochastic=True) for _ in range(2)]
    assert scores[0] == scores[1] and starts[:20] == starts[20:]
    assert np.std(starts) < 0.02  # it is 0.1 after an episode


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_sub_environments_share_the_episodes(kind, mode):
    envs = kind([lambda: Counter(length=2), lambda: Counter(length=5)], autoreset_mode=mode)
    scores = tfdpg.evaluate(Fixed(envs), envs, episodes=5)
    envs.close()
    assert scores["episode_length"] == (3 * 2 + 2 * 5) / 5  # short episodes do not crowd out the long ones
    assert scores["return"] == (3 * 3 + 2 * 15) / 5


@pytest.mark.parametrize("bad", ["reward", "observation"])
def test_nan_stops_an_evaluation(bad):
    env = Counter(bad=bad, bad_at=7)
    with pytest.raises(ValueError, match=f"{bad} is not finite at step 7 of"):
        tfdpg.evaluate(Fixed(env), env, episodes=3)


def test_wrong_spaces_and_counts():
    env = Counter()
    with pytest.raises(ValueError, match="`env`"):
        tfdpg.evaluate(Fixed(env), gym.make("Pendulum-v1"))
    with pytest.raises(ValueError, match="`episodes`"):
        tfdpg.evaluate(Fixed(env), env, episodes=0)


def test_reset_seeds_differ_between_everything():
    seeds = {
        reset_seed(s, stream, env_index, e)
        for s in range(3)
        for stream in range(2)
        for env_index in range(3)
        for e in range(9)
    }
    assert len(seeds) == 3 * 2 * 3 * 9


def test_float64_actions_reach_the_environment_in_its_type():
    class Double(Counter):
        action_space = spaces.Box(-0.1, 0.1, (1,), np.float64)

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action)

    env = Double()
    agent = tfdpg.DDPG(env, hidden_units=(4,), start_steps=0, act_noise=9.0, update_after=100, jit_compile=False)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    agent.evaluate(env, 1)


def test_any_callable_is_a_policy():
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    scores = tfdpg.evaluate(lambda observation: env.action_space.sample(), env, 3)
    assert -2000 < scores["return"] < -500 and scores["episode_length"] == 200

    def swing(observation):  # sees one observation, as the environment gives it
        assert observation.shape == (3,)
        return np.array([-2 * np.sign(observation[2])], np.float32)

    assert tfdpg.evaluate(swing, "Pendulum-v1", 2) == tfdpg.evaluate(swing, env, 2)


def test_a_callable_sees_all_sub_environments_of_a_vector_environment():
    envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    lean = tfdpg.evaluate(lambda observations: (observations[:, 2] > 0).astype(int), envs, 6, per_episode=True)
    one = tfdpg.evaluate(lambda observation: int(observation[2] > 0), "CartPole-v1", 6)
    assert len(lean["returns"]) == 6 and 20 < one["return"] < 80 and 20 < lean["return"] < 80
    with pytest.raises(ValueError, match=r"`policy` must .*of shape \(3,\)"):
        tfdpg.evaluate(lambda observations: 1, envs)


def test_a_callable_sees_dicts_and_must_give_actions():
    env = Counter(as_dict=True)
    seen = []
    tfdpg.evaluate(lambda observation: seen.append(observation) or [0.5], env, 1)
    assert seen[1]["position"].tolist() == [0, 1] and seen[1]["phase"] == 2
    with pytest.raises(ValueError, match=r"shape \(1,\), .*Received: array\(0.5\)"):
        tfdpg.evaluate(lambda observation: 0.5, env)
    with pytest.raises(ValueError, match="`policy` must .*actions, not a tuple"):
        tfdpg.evaluate(lambda observation: (np.zeros(1), None), env)
    with pytest.raises(ValueError, match="`policy` must be .*agent, or a callable"):
        tfdpg.evaluate("TD3", env)


def test_each_episode_on_request():
    envs = SyncVectorEnv([lambda: Counter(length=2), lambda: Counter(length=5)])
    scores = tfdpg.evaluate(Fixed(envs), envs, episodes=5, per_episode=True)
    assert scores["lengths"] == [2, 2, 5, 2, 5] and scores["returns"] == [3, 3, 15, 3, 15]
    assert scores["return"] == np.mean(scores["returns"])
    agent = tfdpg.DDPG(Counter(), hidden_units=(4,))
    assert agent.evaluate(Counter(), 3, per_episode=True)["lengths"] == [5, 5, 5]
