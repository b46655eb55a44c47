"""The diagnosis of training runs: each check on synthetic evidence, with and without the problem, and real agents."""

import copy
import dataclasses
import functools
import json
import re

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from examples import broken_runs
from tests.agents.roster import (
    AGENTS,
    EAGER,
    OWN,
    SMALL,
    brief,
    custom_networks,
    fit_briefly,
    options_of,
    parametrize_agents,
)
from tests.environments import Counter, Remote
from tfdpg.agents.options import OPTIONS
from tfdpg.diagnosis import checks
from tfdpg.diagnosis.evidence import Evidence, Layer, Replay, Trajectory, Weights, collect, replay_of
from tfdpg.diagnosis.picture import draw
from tfdpg.training.checkpoints.checkpoint import state_of

STEPS = 2000
GAMMA = 0.95


def system(action_cost=-0.1, bound=1.0, velocity=True, scale=1.0, seed=0):
    """Return the replay buffer of a cart that is pulled to the origin: x ← x + 0.1 v, v ← 0.9 v − 0.1 x + 0.3 a."""
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, STEPS)
    states = np.zeros((STEPS + 1, 2))
    for t in range(STEPS):
        x, v = states[t]
        states[t + 1] = x + 0.1 * v, 0.9 * v - 0.1 * x + 0.3 * np.clip(action[t], -bound, bound)
    reward = -(states[:-1, 0] ** 2) + action_cost * action**2
    seen = scale * (states if velocity else states[:, :1])
    return Replay(
        names=["x[0]", "x[1]"][: seen.shape[1]],
        observation=seen[1:-1],
        next_observation=seen[2:],
        previous=seen[:-2],
        action=action[1:, None],
        previous_action=action[:-1, None],
        reward=reward[1:],
        rewards=np.split(reward, 10),
        lengths=np.full(10, 200),
        terminated=np.zeros(10, bool),
        size=STEPS,
        added=STEPS,
    )


def episodes(returns, action=0.5, error=0.0, spread=0.1, seed=0):
    """Return an episode of 100 equal rewards for each return, with values that are too large by `error`."""
    rng = np.random.default_rng(seed)
    found = []
    for total in returns:
        reward = np.full(100, total / 100)
        values = reward / (1 - GAMMA) + error + spread * rng.standard_normal(100)
        q2 = values + 0.1 * spread * rng.standard_normal(100)
        actions = np.clip(action * rng.choice([-1.0, 1.0], (100, 1)), -1, 1)
        observation = (0.3 * rng.standard_normal((100, 2)).astype(np.float32),)
        found.append(Trajectory(observation, actions, reward, False, {"q1": values, "q2": q2}))
    return found


HEALTHY = Evidence(
    options={"gamma": GAMMA, "act_noise": 0.1, "normalize_observations": False},
    start_steps=1000,
    replay=system(),
    greedy=episodes([-110.0, -100.0, -90.0]),
    exploring=episodes([-120.0, -100.0, -95.0]),
    random=episodes([-1100.0, -1000.0, -900.0]),
    layers=[Layer("pi", 64, 0.1, 40, False), Layer("pi", 64, 0.3, 30, True), Layer("q1", 64, 0.2, 20, True)],
    weights=[Weights("pi", 2.0, 0.1, 1e-3, 1.0), Weights("q1", 4.0, 0.1, 1e-3, 100.0)],
    edges={"q1": (0.01, 0.02, -10.0, 10.0)},
    curves={"val_return": np.array([-1000.0, -700.0, -300.0, -120.0, -100.0, -110.0])},
)
"""Evidence of a run in which there is nothing to find."""


def with_replay(**changes):
    return dataclasses.replace(HEALTHY, replay=dataclasses.replace(HEALTHY.replay, **changes))


def with_options(**changes):
    return dataclasses.replace(HEALTHY, options={**HEALTHY.options, **changes})


def with_changes(**changes):
    return dataclasses.replace(HEALTHY, **changes)


BROKEN = {
    "schedule": with_changes(start_steps=20_000),
    "schedule, no update": with_changes(updates=0),
    "time limit": with_replay(terminated=np.ones(10, bool)),
    "time limit, with other ends": with_replay(lengths=np.array([200] * 5 + [20, 37, 90]), terminated=np.ones(8, bool)),
    "observation scale": with_changes(replay=system(scale=1e4)),
    "reward scale, small": with_replay(reward=1e-4 * HEALTHY.replay.reward),
    "reward scale, large": with_replay(reward=1e4 * HEALTHY.replay.reward),
    "reward scale, none": with_replay(reward=0 * HEALTHY.replay.reward),
    "learning rate": with_changes(weights=[Weights("pi", 5.0, 0.1, 0.1, 1.0)]),
    "clipped actions": with_changes(replay=system(bound=0.2)),
    "missing observation": with_changes(replay=system(velocity=False)),
    "horizon": with_options(gamma=0.5),
    "reward sign": with_changes(replay=system(action_cost=0.1)),
    "reward sign, stored": with_changes(
        has_shaper=True, replay=dataclasses.replace(system(), reward=np.full(STEPS - 1, 1.0))
    ),
    "early end": with_changes(
        random=[
            dataclasses.replace(each, reward=np.array([*[-1.0] * n, -5.0]), terminated=n < 100)
            for each, n in zip(HEALTHY.random, (99, 20, 30), strict=True)
        ][1:]
        + HEALTHY.random[:1]
    ),
    "no exploration": dataclasses.replace(with_options(act_noise=0.0), start_steps=0),
    "return": with_changes(greedy=episodes([-1500.0, -1400.0, -1450.0]), exploring=episodes([-1500.0, -1400.0])),
    "saturated actions": with_changes(
        greedy=episodes([-1000.0, -1100.0, -900.0], action=1.0), exploring=episodes([-1000.0, -1100.0])
    ),
    "overestimation": with_changes(greedy=episodes([-110.0, -100.0, -90.0], error=20.0)),
    "edge atoms": with_changes(edges={"q1": (0.1, 0.05, -10.0, 10.0)}),
    "critic disagreement": with_changes(
        greedy=[
            dataclasses.replace(each, values={"q1": each.values["q1"], "q2": -each.values["q1"]})
            for each in HEALTHY.greedy
        ]
    ),
    "dead units": with_changes(layers=[Layer("q1", 64, 0.8, 20, True)]),
    "dead units, rank": with_changes(layers=[Layer("q1", 64, 0.1, 1, True)]),
    "norms": with_changes(weights=[Weights("q1", 40.0, 0.1, 1e-3, 1.0)]),
    "norms, gradient": with_changes(weights=[Weights("q1", 4.0, 0.1, 1e-3, 1e7)]),
    "replay buffer": with_replay(size=500, capacity=500, added=10_000),
    "coverage": with_changes(
        greedy=[dataclasses.replace(each, observation=(each.observation[0] + 20,)) for each in HEALTHY.greedy]
    ),
    "exploration noise": with_changes(exploring=episodes([-900.0, -950.0, -1000.0])),
    "exploration noise, better": with_changes(
        greedy=episodes([-700.0, -710.0, -690.0]), exploring=episodes([-100.0, -90.0, -110.0])
    ),
    "spread": with_changes(
        curves={"val_return": np.array([-1000.0, -500.0, -1100.0, -400.0, -1200.0, -500.0])},
        random=episodes([-900.0, -1000.0, -800.0]),
    ),
}
"""Evidence of broken runs, by the check that finds it, and perhaps a remark."""


@functools.cache
def verdicts_of(name):
    return checks.verdicts(BROKEN[name])


@functools.cache
def finding_checks(name):
    """The checks that find something in broken evidence."""
    return [check for check in checks.CHECKS if check(BROKEN[name]) is not None]


def test_nothing_is_found_in_a_healthy_run():
    assert checks.verdicts(HEALTHY) == []


@pytest.mark.parametrize("option, value", [("average_policy", 0.05), ("keep_best_policy", True)])
def test_returns_of_different_weights_say_nothing_about_the_noise(option, value):
    broken = BROKEN["exploration noise"]
    assert checks.noise_effect(broken) is not None
    other = dataclasses.replace(broken, options={**broken.options, option: value})
    assert checks.noise_effect(other) is None


@pytest.mark.parametrize("name", BROKEN)
def test_each_check_finds_its_problem(name):
    found = verdicts_of(name)
    expected = name.partition(",")[0]
    assert expected in [verdict.check for verdict in found]
    if expected not in ("saturated actions", "overestimation", "critic disagreement", "exploration noise", "spread"):
        assert found[0].check == expected
    for verdict in found:
        assert verdict.severity in checks.SEVERITIES and any(map(str.isdigit, verdict.evidence))
        assert all(text.endswith(".") and "nan" not in text for text in verdict[2:])


def test_every_check_is_tested():
    names = {name.partition(",")[0] for name in BROKEN}
    by_check = {verdict.check for name in BROKEN for verdict in verdicts_of(name)}
    assert names == by_check and len(names) + 1 == len(checks.CHECKS)  # `reward sign` has two


def test_the_worst_is_first():
    mixed = dataclasses.replace(BROKEN["return"], edges=BROKEN["edge atoms"].edges, replay=system(scale=1e4))
    found = [(verdict.check, verdict.severity) for verdict in checks.verdicts(mixed)]
    assert found[0] == ("observation scale", "high") and ("edge atoms", "medium") in found
    ranks = [checks.SEVERITIES.index(severity) for _, severity in found]
    assert ranks == sorted(ranks)


def test_what_does_not_apply_finds_nothing():
    assert checks.verdicts(Evidence()) == []
    normalized = dataclasses.replace(BROKEN["observation scale"], options={"normalize_observations": True})
    assert "observation scale" not in [verdict.check for verdict in checks.verdicts(normalized)]
    recurrent = dataclasses.replace(BROKEN["missing observation"], is_recurrent=True)
    assert "missing observation" not in [verdict.check for verdict in checks.verdicts(recurrent)]
    rare = checks.reward_scale(with_replay(reward=np.where(np.arange(STEPS - 1) % 50, 0.0, 0.005)))
    assert "divide by 0.005" in rare.remedy
    scaled = with_options(reward_scale=100.0)
    scaled = dataclasses.replace(scaled, replay=dataclasses.replace(system(), reward=1e-3 * system().reward))
    assert "reward scale" not in [verdict.check for verdict in checks.verdicts(scaled)]
    never_rewarded = BROKEN["reward scale, none"]
    with_goals = dataclasses.replace(never_rewarded, options=never_rewarded.options | {"her": "future"})
    assert checks.reward_scale(never_rewarded) is not None and checks.reward_scale(with_goals) is None
    many = np.random.default_rng(0).standard_normal((2, STEPS - 1, 100))  # no transition has neighbours then
    paid = dataclasses.replace(system(action_cost=0.1), observation=many[0], next_observation=many[1])
    assert checks.action_reward(dataclasses.replace(HEALTHY, replay=paid)) is None
    random = dataclasses.replace(with_options(act_noise=0.0, random_eps=0.3), start_steps=0)
    assert checks.exploration(random) is None


@keras.saving.register_keras_serializable("tests")
class Opaque(keras.Model):
    """A model that is not a graph of layers."""

    def __init__(self, normalizes, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.LayerNormalization() if normalizes else keras.layers.Flatten()
        self.second = keras.layers.Dense(1, "tanh")
        self.normalizes = normalizes

    def call(self, x):
        return self.second(self.first(x))

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build(input_shape)

    def get_config(self):
        return super().get_config() | {"normalizes": self.normalizes}


def scale_verdict(**networks):
    agent = tfdpg.DDPG(Remote(), **(OWN if "pi" in networks else SMALL), **networks)
    fill(agent, Remote(), 100)
    found = checks.verdicts(collect(agent, Remote(), 2, 0, 10, {}))
    return next((verdict for verdict in found if verdict.check == "observation scale"), None)


def test_networks_that_rescale_observations_need_no_other_scale():
    spec = tfdpg.Spec.of(Remote())
    verdict = scale_verdict(**custom_networks(None, spec))
    assert "root mean square of x[1] is" in verdict.evidence and "normalize_observations" not in verdict.remedy
    (layer,) = re.findall(r"tfdpg\.networks\.Normalizer\(\)", verdict.remedy)
    rescaling = lambda: keras.layers.Rescaling([1.0, 1e-3])  # noqa: E731
    for advised in (lambda: eval(layer), keras.layers.LayerNormalization, rescaling):
        assert scale_verdict(**custom_networks(advised, spec)) is None
    assert "normalize_observations=True" in scale_verdict().remedy
    assert scale_verdict(normalize_observations=True) is None
    for normalizes in (False, True):
        networks = custom_networks(rescaling, spec) | {"pi": Opaque(normalizes)}
        assert (scale_verdict(**networks) is None) == normalizes


ADVISED = {
    "DDPG": {},
    "DDPG, custom": {"pi": keras.Sequential(), "q1": keras.Sequential()},
    "DDPG, goals": {"her": "future"},
    "TD3": {},
    "TD3, optimizer": {"pi_optimizer": keras.optimizers.Adam(1e-3)},
    "TD3, one critic": {"critics": 1},
    "D4PG": {},
    "TD7": {},
    "ACER": {},
}
"""Agents, perhaps with a remark, and their options."""
VALUES = {
    "pi_lr": 1e-4,
    "q_lr": 1e-4,
    "encoder_lr": 1e-4,
    "lr": 1e-4,
    "clip_norm": 1.0,
    "reward_shaper": lambda reward, step, steps: 0.1 * reward,
    "reward_scale": 0.1,
    "act_noise": 0.2,
    "act_noise_schedule": lambda step, steps: 1.0,
    "gamma": 0.999,
    "start_steps": 5,
    "update_after": 5,
    "update_every": 5,
    "n_steps": 5,
    "replay_start": 5,
    "replay_size": 1000,
    "v_min": -10.0,
    "v_max": 10.0,
    "ent_coef": 1e-4,
}
"""Values of the options that remedies name without one."""
NOT_OPTIONS = {"action_space", "compute_reward", "stochastic", "return", "her"}
"""Names in remedies that are not options, or that depend on the environment."""
SPECIFIC = {"edge atoms", "no exploration"}
"""Checks that find nothing unless the agent has the options that their remedies name."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "DDPG")) for n in ADVISED])
def test_each_agent_accepts_the_options_that_remedies_name(name):
    kind = OPTIONS[name.partition(",")[0]]
    given = ADVISED[name]
    values = kind(**given).values()
    changes = {key: HEALTHY.options[key] for key in ("gamma", "act_noise") if key in values}
    accepted = 0
    for broken, evidence in BROKEN.items():
        if broken.partition(",")[0] in SPECIFIC and name != "D4PG":
            continue
        evidence = dataclasses.replace(
            evidence,
            options=values | changes,
            has_custom_networks="pi" in given,
            critics=1 if name in ("TD3, one critic", "ACER") or kind is OPTIONS["DDPG"] else 2,
            first_action=0 if name == "ACER" else None,
            start_steps=evidence.start_steps if "start_steps" in values else 0,
            has_shaper=evidence.has_shaper and "her" not in given,
        )
        for verdict in filter(None, (check(evidence) for check in finding_checks(broken))):
            quoted = re.findall(r"`(\w+)(?:=([^`]+))?`", verdict.remedy)
            named = {key: eval(value) if value else VALUES[key] for key, value in quoted if key not in NOT_OPTIONS}
            pair = named.keys() & {"v_min", "v_max"}
            for options in ({key: named[key]} for key in named.keys() - pair):
                kind(**given | options)
                refused = options.keys() & {"normalize_observations", "recurrent", "norm"}
                assert not ("pi" in given and refused)  # the networks of an agent refuse these
                accepted += 1
            kind(**given | {key: named[key] for key in pair})
    assert accepted > 5


def test_episodes_that_end_by_themselves_at_different_lengths_are_no_time_limit():
    lengths = np.array([20, 31, 32, 33, 33, 33, 17])
    assert checks.time_limit(with_replay(lengths=lengths, terminated=np.ones(7, bool))) is None
    truncated = with_replay(lengths=np.array([200] * 5 + [20]), terminated=np.array([False] * 5 + [True]))
    assert checks.time_limit(truncated) is None


def fill(agent, env, steps):
    """Let an agent act and store without updates."""
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset()


def test_the_replay_buffer_is_read_step_by_step():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER | {"replay_size": 12})
    fill(agent, Counter(), 9)  # episodes of 5 steps: rows (1, 0) to (1, 5), then (2, 0) to (2, 4)
    replay = replay_of(agent.replay)
    assert replay.names == ["x[0]", "x[1]"]
    np.testing.assert_array_equal(replay.observation[:, 1], [0, 1, 2, 3, 4, 0, 1, 2, 3])
    np.testing.assert_array_equal(replay.next_observation - replay.observation, [[0, 1]] * 9)
    np.testing.assert_array_equal(np.isnan(replay.previous[:, 1]), replay.observation[:, 1] == 0)
    np.testing.assert_array_equal(replay.previous_action[1:5], replay.action[:4])
    assert replay.lengths.tolist() == [5] and replay.terminated.tolist() == [True]
    np.testing.assert_array_equal(replay.rewards[0], [1, 2, 3, 4, 5])
    fill(agent, Counter(), 9)  # the beginnings of older episodes are overwritten
    assert replay_of(agent.replay).lengths.tolist() == [5]


def snapshot(agent):
    return copy.deepcopy(state_of(agent)), agent.get_weights(), agent.replay.transitions()["actions"]


ENVIRONMENTS = {
    "TD3": lambda: Counter(ends="truncated", as_dict=True),
    "ACER": lambda: gym.make("CartPole-v1"),
}
"""Environments other than Pendulum."""


@brief
@parametrize_agents("DDPG")
def test_every_agent_is_diagnosed_and_does_not_change(make, tmp_path, request):
    name = next(name for name, each in AGENTS.items() if each is make)
    env = ENVIRONMENTS.get(name, lambda: gym.make("Pendulum-v1", max_episode_steps=30))()
    agent = make(env)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=60)
    before = snapshot(agent)
    diagnosis = agent.diagnose(env, episodes=2, max_ep_len=30)
    after = snapshot(agent)
    assert before[0] == after[0]
    for one, other in zip(before[1], after[1], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(before[2], after[2])
    assert "episodes each" in str(diagnosis)
    values = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
    assert values["returns"].keys() == {"greedy", "exploring", "random"} and values["env_steps"] == 60
    assert [each["check"] for each in values["findings"]] == [verdict.check for verdict in diagnosis.verdicts]
    assert diagnosis.evidence.greedy[0].values.keys() == {"q1", "q2"} & agent.networks.keys()
    assert {layer.network for layer in diagnosis.evidence.layers} >= {"policy"}
    assert {weights.network for weights in diagnosis.evidence.weights} == agent.networks.keys()
    assert all(weights.gradient > 0 for weights in diagnosis.evidence.weights if weights.network.startswith("q"))
    diagnosis.plot(tmp_path / "picture.svg")
    assert "Values against returns" in (tmp_path / "picture.svg").read_text()


@brief
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, make in AGENTS.items() if "recurrent" in options_of(make)])
def test_recurrent_agents_and_vector_environments_are_diagnosed(name):
    memory = {"recurrent": "gru", "recurrent_units": 4, "sequence_length": 4, "burn_in": 0}
    memory |= {"remembers": ("observation", "action", "reward")}
    env = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    agent = AGENTS[name](env, **memory)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=40)
    before = snapshot(agent)
    diagnosis = agent.diagnose(env, episodes=3, max_ep_len=20)
    assert before[0] == snapshot(agent)[0]
    assert [len(each.reward) for each in diagnosis.evidence.greedy] == [20, 20, 20]
    assert np.isfinite(diagnosis.evidence.greedy[0].values["q1"]).all() and not diagnosis.evidence.layers


def test_values_are_those_of_the_critics():
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    agent = tfdpg.TD3(env, **SMALL | EAGER)
    fill(agent, env, 15)
    episode = agent.diagnose(env, episodes=1).evidence.greedy[0]
    action = 2 * episode.action.astype(np.float32)
    np.testing.assert_allclose(action, agent(episode.observation[0]), rtol=1e-5, atol=1e-6)
    expected = agent.networks["q2"]([episode.observation[0], action])
    np.testing.assert_allclose(episode.values["q2"], expected, rtol=1e-4, atol=1e-5)
    assert episode.total == pytest.approx(agent.evaluate(env, episodes=1)["return"])


class Mixed(gym.Env):
    """A Dict with an image, and with keys and numbers that are easily confused with others."""

    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (8, 8, 3), np.uint8),
        mode=spaces.Discrete(2, start=7),
        r=spaces.Box(-1, 1, (3,), np.float32),
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 5, {}


def test_images_are_no_features_and_every_key_is_allowed():
    agent = tfdpg.TD3(Mixed(), **SMALL | EAGER)
    fill(agent, Mixed(), 12)
    evidence = agent.diagnose(Mixed(), episodes=2).evidence
    assert evidence.replay.names == ["r[0]", "r[1]", "r[2]"] and evidence.replay.has_images
    stored = agent.replay.transitions()["observations"]["r"]
    np.testing.assert_array_equal(evidence.replay.observation, stored)
    episode = evidence.greedy[0]
    observation = agent.spec.unpack(episode.observation)
    action = episode.action.astype(np.float32)
    np.testing.assert_allclose(episode.values["q1"], agent.networks["q1"]([observation, action]), rtol=1e-4, atol=1e-5)


def test_discrete_parts_are_read_before_the_replay_buffer_is_full():
    env = gym.wrappers.TransformObservation(gym.make("Pendulum-v1"), lambda x: 5, spaces.Discrete(3, start=5))
    agent = tfdpg.TD3(env, **SMALL | EAGER)
    fill(agent, env, 4)
    replay = replay_of(agent.replay)
    np.testing.assert_array_equal(replay.observation, [[1, 0, 0]] * 4)
    np.testing.assert_array_equal(replay.previous, [[np.nan] * 3, *[[1, 0, 0]] * 3])


def test_numbers_of_discrete_actions_are_no_actions_at_their_bounds():
    constant = episodes([-110.0, -100.0, -90.0], action=1.0)
    stuck = dataclasses.replace(HEALTHY, greedy=constant, random=constant, replay=None)
    assert checks.saturation(stuck) is not None
    discrete = dataclasses.replace(stuck, first_action=0)
    assert checks.saturation(discrete) is None


def test_the_picture_shows_discrete_actions_by_their_numbers():
    one_hot = np.repeat(np.eye(2), [30, 70], axis=0)
    greedy = [dataclasses.replace(each, action=np.full((100, 1), 4.0)) for each in episodes([1.0, 2.0])]
    evidence = dataclasses.replace(with_replay(action=one_hot, reward=np.ones(100)), greedy=greedy, first_action=3)
    (axes,) = [each for each in draw("", evidence).axes if each.get_title() == "Actions"]
    bars = [[(bar.get_x() + 0.5, round(bar.get_height(), 6)) for bar in group.patches] for group in axes.containers]
    assert bars == [[(3, 0), (4, 1)], [(3, 0.3), (4, 0.7)]]  # greedy, replay buffer


@pytest.mark.parametrize("option", ({"episodes": 0}, {"seed": -1}, {"max_ep_len": 0}))
def test_wrong_arguments_are_named(option):
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER)
    with pytest.raises(ValueError, match=rf"`{next(iter(option))}` must be"):
        agent.diagnose(Counter(), **option)


def test_an_untrained_agent_is_diagnosed():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER)
    assert "nothing found" in str(agent.diagnose(Counter(), episodes=2))


def test_a_picture_needs_a_known_format(tmp_path):
    diagnosis = tfdpg.TD3(Counter(), **SMALL | EAGER).diagnose(Counter(), episodes=2)
    with pytest.raises(ValueError, match=r"`plot` must end in one of .*png.* Received: .*picture\.txt"):
        diagnosis.plot(tmp_path / "picture.txt")
    diagnosis.plot(tmp_path / "picture.png")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lie at their bounds", "ignore:This training ends at")
@pytest.mark.parametrize(
    ("name", "expected"),
    (
        ("learning rates 100 times too large", "learning rate"),
        ("no velocity in the observation", "missing observation"),
        pytest.param("actions clipped to a tenth of their range", "clipped actions", marks=pytest.mark.hours),
        ("healthy: TD3 on Pendulum-v1", None),
    ),
)
def test_broken_runs(name, expected, tmp_path, capsys):
    short = ["--epochs", "8" if expected is None else "2"]
    broken_runs.train(tmp_path, name, 0, short)
    assert broken_runs.diagnose(tmp_path, name, 0)[:1] == ([] if expected is None else [expected])
