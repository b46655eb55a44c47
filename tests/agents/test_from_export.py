"""Agents that are made from an exported model: what they begin with, and the updates that train only their critics."""

import json
import shutil

import gymnasium as gym
import jsonschema
import numpy as np
import pytest

import tfdpg
from examples.conservative_td3 import ConservativeTD3
from examples.sac import SAC
from tests.agents.roster import AGENTS, EACH, EAGER, SMALL, brief, custom_networks, fit_briefly, parametrize_agents
from tests.environments import Counter, RandomWalk, Reach
from tests.export.runtimes import schema
from tfdpg import files
from tfdpg.export import ExportError

pytestmark = brief


def exported(make, env, directory, steps=40, **options):
    """Train an agent and export it; return the agent."""
    agent = make(env, **options)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=steps, max_ep_len=10)
    agent.export(directory)
    return agent


def observations(env, n=6):
    """Return the observations of an episode as a batch."""
    seen = [env.reset(seed=3)[0]]
    env.action_space.seed(3)
    while len(seen) < n:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(env.reset()[0] if terminated or truncated else observation)
    if isinstance(seen[0], dict):
        return {name: np.stack([each[name] for each in seen]) for name in seen[0]}
    return np.stack(seen)


def assert_like_the_export(agent, model, env):
    """The first actions and their values equal those of the export."""
    policy = tfdpg.load(model)
    batch = observations(env)
    if policy.recurrent_spec is not None:
        wanted = [policy(each) for each in batch]
        np.testing.assert_allclose(agent.predict(batch), wanted, rtol=0, atol=1e-6)
        first = batch[0]
    else:
        wanted = policy(batch)
        np.testing.assert_allclose(agent.predict(batch), wanted, rtol=0, atol=1e-6)
        first = {name: each[0] for name, each in batch.items()} if isinstance(batch, dict) else batch[0]
        rows = batch if isinstance(batch, dict) else {"x": batch}
        for name in policy.critics:
            values = agent.signatures[name].reference(agent.spec)({**rows, "a": wanted})[name]
            np.testing.assert_allclose(values, policy.value(name, batch, wanted), rtol=1e-6, atol=1e-6)
    action = agent.act(first, explore=False)
    np.testing.assert_allclose(action, wanted[0], rtol=0, atol=1e-6)


def discrete(env, **options):
    return tfdpg.ACER(env, **EACH | {"n_steps": 5, "replay_start": 10} | options)


CASES = {
    "normalised": (AGENTS["TD3"], Counter, {"normalize_observations": True}),
    "batch": (AGENTS["TD3"], Counter, {"norm": "batch", "target_networks": False}),
    "recurrent": (AGENTS["TD3"], Counter, {"recurrent": "lstm", "recurrent_units": 4, "normalize_observations": True}),
    "ten critics": (AGENTS["TD3"], Counter, {"critics": 10}),
    "dict": (AGENTS["DDPG"], lambda: Counter(as_dict=True), {"normalize_observations": True}),
    "goals": (AGENTS["TD3"], Reach, {"her": "future"}),
    "chosen support": (AGENTS["D4PG"], Counter, {"v_min": None, "v_max": None}),
    "mixture": (AGENTS["D4PG"], Counter, {"critic": "mixture", "v_min": None, "v_max": None}),
    "discrete": (discrete, lambda: gym.make("CartPole-v1"), {"shared_torso": True}),
    "average critic": (AGENTS["ACER"], Counter, {"critic_average": 0.9, "reward_scale": 0.1}),
    "embeddings": (AGENTS["TD7"], Counter, {"norm": "batch", "target_networks": False}),
    "own algorithm": (lambda env, **options: SAC(env, **SMALL | options), Counter, {}),
}


@parametrize_agents("DDPG")
def test_an_agent_acts_values_and_learns_from_where_the_export_ended(make, tmp_path):
    before = exported(make, Counter(), tmp_path / "model", normalize_observations=True)
    options = {} if make is AGENTS["ACER"] else {"update_after": 10}
    agent = type(before).from_export(tmp_path / "model", Counter(), **options)
    assert_like_the_export(agent, tmp_path / "model", Counter())
    assert (agent.env_steps, agent.updates, agent.epoch, len(agent.replay)) == (0, 0, 0, 0)
    assert agent.data.observation_statistics.count == before.data.observation_statistics.count > 0
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=40)
    assert agent.updates > 0
    agent.save(tmp_path / "agent")
    shutil.rmtree(tmp_path / "model")
    again = tfdpg.load_agent(tmp_path / "agent")
    for one, other in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_networks_of_every_kind_are_those_of_the_export(case, tmp_path):
    make, make_env, options = CASES[case]
    kind = type(exported(make, make_env(), tmp_path / "model", **options))
    agent = kind.from_export(tmp_path / "model", make_env())
    assert {name: agent.get_config()[name] for name in options} == {
        name: agent.get_config()[name] if value is None else value for name, value in options.items()
    }
    assert_like_the_export(agent, tmp_path / "model", make_env())
    for name, copied in agent.copies.items():
        for one, other in zip(copied.weights, agent.networks[agent.parts.source(name)].weights, strict=True):
            np.testing.assert_array_equal(one, other)
    fit_briefly(agent, make_env(), epochs=1, steps_per_epoch=20)


@pytest.mark.slow
def test_the_support_of_a_categorical_critic_is_not_chosen_again(tmp_path):
    exported(AGENTS["D4PG"], Counter(), tmp_path / "model", v_min=None, v_max=None)
    agent = tfdpg.D4PG.from_export(tmp_path / "model", Counter(), update_after=10)
    before = agent.networks["q1"].layers[-1].atoms.numpy()
    fit_briefly(agent, Counter(length=40), epochs=1, steps_per_epoch=40)  # the returns are larger than before
    np.testing.assert_array_equal(agent.networks["q1"].layers[-1].atoms, before)


@pytest.mark.slow
def test_the_best_policy_of_td7_acts_first_and_stays_until_another_one_is_better(tmp_path):
    env = Counter()
    options = {"keep_best_policy": True, "normalize_observations": True, "replay": "lap"}
    before = exported(AGENTS["TD7"], env, tmp_path / "model", steps=60, **options)
    best, newest = (before.copies["pi_best"].get_weights(), before.networks["pi"].get_weights())
    assert any((one != other).any() for one, other in zip(best, newest, strict=True))
    with pytest.warns(UserWarning, match="newer weights of state_encoder than the policy has.*warm_up_updates"):
        agent = tfdpg.TD7.from_export(tmp_path / "model", env, update_after=10)
    policy = tfdpg.load(tmp_path / "model")
    batch = observations(env)
    np.testing.assert_allclose(agent.predict(batch), policy(batch), rtol=0, atol=1e-6)
    np.testing.assert_allclose(agent.act(batch[0], explore=False), policy(batch[0]), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(agent.device_state["value_max"], before.device_state["value_max"])
    fit_briefly(agent, env, epochs=1, steps_per_epoch=4)
    assert agent.defers_updates and agent.host_state["best_return"] is None
    fit_briefly(agent, Counter(length=12), epochs=1, steps_per_epoch=30)
    assert agent.host_state["best_return"] is not None and agent.updates > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The export of a TD3 agent with some options."""
    directory = tmp_path_factory.mktemp("exports") / "model"
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER, gamma=0.9, replay="prioritized", alpha=0.7, beta=0.5, seed=5)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20)
    agent.export(directory)
    return directory


def test_options_are_those_of_the_export_unless_others_are_given(model):
    agent = tfdpg.TD3.from_export(model, Counter(), pi_lr=1e-5, replay="uniform", hidden_units=[8])
    options = agent.options
    assert (options.hidden_units, options.gamma, options.pi_lr) == ((8,), 0.9, 1e-5)
    assert (options.replay, options.alpha, options.beta) == ("uniform", None, None)
    assert (options.start_steps, options.update_after, options.bc_weight, agent.seed) == (0, 1000, 2.5, 0)
    options = tfdpg.TD3.from_export(model, Counter(), bc_weight=0).options
    assert (options.bc_weight, options.pi_lr) == (0, 1e-4)  # the export's pi_lr is 1e-3
    assert tfdpg.TD3.from_export(model, Counter(), alpha=0.2).options.alpha == 0.2


def test_the_file_for_clients_follows_its_schema_also_with_infinite_options(model, tmp_path):
    exported(AGENTS["ACER"], Counter(), tmp_path / "model", steps=1, delta=np.inf)
    for directory in (model, tmp_path / "model"):
        text = (directory / "1/tfdpg.json").read_text()
        assert "Infinity" not in text
        jsonschema.validate(json.loads(text), json.loads(schema()))
    assert tfdpg.ACER.from_export(tmp_path / "model", Counter()).options.delta == np.inf


def test_an_option_that_determines_networks_cannot_differ(model):
    with pytest.raises(ValueError, match=r"`hidden_units` must be that of .*model/1, \(8,\).*hidden_units=\(16, 16\)"):
        tfdpg.TD3.from_export(model, Counter(), hidden_units=(16, 16))
    with pytest.raises(TypeError, match="learning_rate"):
        tfdpg.TD3.from_export(model, Counter(), learning_rate=1e-3)


def test_what_is_no_export_of_this_agent_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="must be one of DDPG. Received: .*model/1, which is one of TD3"):
        tfdpg.DDPG.from_export(model, Counter())
    with pytest.raises(ValueError, match="observation_space of `env` must be the agent's"):
        tfdpg.TD3.from_export(model, Reach())
    with pytest.raises(FileNotFoundError, match="No exported model"):
        tfdpg.TD3.from_export(tmp_path, Counter())
    with pytest.raises(ExportError, match=r"has no agent.npz, because an older version.*Export the saved agent again"):
        tfdpg.DDPG.from_export("exported_models/ddpg-pendulum", "Pendulum-v1")


def forged(model, directory, arrays=None, **facts):
    """Copy a version, with other arrays in `agent.npz` or other facts, and with correct checksums."""
    version = shutil.copytree(model / "1", directory / "1")
    if arrays is not None:
        with np.load(version / "agent.npz") as file:
            np.savez(version / "agent.npz", **dict(file) | arrays)
    stored = json.loads((version / "tfdpg.json").read_text())
    (version / "tfdpg.json").unlink()
    kept = {name: value for name, value in stored.items() if name not in ("files", "sha256")}
    files.write_manifest(version, "tfdpg.json", kept | facts)
    return directory


@pytest.mark.parametrize(
    ("arrays", "facts", "message"),
    [
        ({"pi/0": np.zeros((2, 9), np.float32)}, {}, r"pi/0 of .*agent.npz must have the shape \(2, 8\)"),
        ({"pi/0": np.full((2, 8), np.nan, np.float32)}, {}, "pi/0 of .* not finite"),
        ({"pi/0": np.array([["x"] * 8] * 2)}, {}, "pi/0 of .* must have the shape"),
        ({"pi/0": np.full((2, 8), None)}, {}, "agent.npz is damaged"),
        ({"extra": np.zeros(1)}, {}, "other networks than those of this agent: extra is unknown"),
        (None, {"options": {"gamma": 2}}, "damaged: `gamma` must be"),
        (None, {"options": {"gamma": {"layer": {"class_name": "Lambda"}}}}, "damaged: `gamma` must be"),
        (None, {"options": []}, "no valid options"),
        (None, {"own_networks": [1]}, "no valid options"),
        (None, {"options": {"critics": 3}}, "agent.npz has the weights of other networks"),
    ],
)
def test_a_forged_file_is_refused(model, tmp_path, arrays, facts, message):
    with pytest.raises(ExportError, match=message):
        tfdpg.TD3.from_export(forged(model, tmp_path, arrays, **facts), Counter(), **EAGER)


def test_files_set_no_option_of_the_machine(model, tmp_path):
    options = {"hidden_units": [8], "replay_dir": str(tmp_path / "x"), "device": "nowhere", "pi": "x", "recorders": "x"}
    agent = tfdpg.TD3.from_export(forged(model, tmp_path, options=options), Counter())
    assert agent.options.replay_dir is None and agent.options.device is None and not (tmp_path / "x").exists()


def test_a_damaged_file_is_named(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model/1/agent.npz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ExportError, match="agent.npz"):
        tfdpg.TD3.from_export(tmp_path / "model", Counter())


@pytest.mark.slow
def test_custom_networks_are_given_again(tmp_path):
    spec = tfdpg.Spec.of(RandomWalk())
    options = {name: value for name, value in SMALL.items() if name != "hidden_units"}
    before = tfdpg.DDPG(RandomWalk(), **options, **custom_networks(None, spec))
    before.export(tmp_path / "model")
    with pytest.raises(ValueError, match=r"`pi` and `q1` of the exported agent are not built in.*pi=\.\.\., q1="):
        tfdpg.DDPG.from_export(tmp_path / "model", RandomWalk())
    agent = tfdpg.DDPG.from_export(tmp_path / "model", RandomWalk(), **custom_networks(None, spec))
    batch = observations(RandomWalk())
    np.testing.assert_allclose(agent.predict(batch), before.predict(batch), rtol=0, atol=1e-6)


def test_a_subclass_takes_the_export_of_its_base(model):
    agent = ConservativeTD3.from_export(model, Counter(), conservatism=0.5)
    np.testing.assert_array_equal(agent.predict(np.ones((1, 2))), tfdpg.load(model)(np.ones((1, 2), np.float32)))


def weights_and_moments(agent, *names):
    """Return copies of the weights of networks and of the variables of their optimizers."""
    networks = {name: agent.parts[name].get_weights() for name in names}
    optimizers = {f"{name} optimizer": agent.optimizers[name].variables for name in names if name in agent.optimizers}
    return {name: [np.array(each) for each in arrays] for name, arrays in (networks | optimizers).items()}


def changed(before, agent):
    """Return the names of what differs from an earlier result of `weights_and_moments`."""
    now = weights_and_moments(agent, *(name for name in before if name in agent.parts.all))
    return {name for name, arrays in before.items() if any(map(np.any, map(np.not_equal, arrays, now[name])))}


WARM_UP = {
    "DDPG": {},
    "TD3": {"norm": "batch", "policy_delay": 1},
    "D4PG": {},
    "TD7": {"norm": "batch"},
}


@parametrize_agents("TD3")
def test_the_first_updates_change_only_the_critics(make, tmp_path):
    name = next(each for each in AGENTS if AGENTS[each] is make)
    if name == "ACER":
        with pytest.raises(TypeError, match="warm_up_updates"):
            make(Counter(), warm_up_updates=5)
        return
    agent = make(Counter(), warm_up_updates=6, update_after=10, **WARM_UP[name])
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    assert agent.updates == 0
    policy = [each for each in agent.parts.all if not agent.parts.source(each).startswith("q")]
    before = weights_and_moments(agent, *policy, *(each for each in agent.networks if each not in policy))
    trainable = [weight.trainable for network in agent.parts.all.values() for weight in network.weights]
    agent.learn(updates=6)
    assert changed(before, agent) == {each for each in before if each.startswith("q")}
    assert trainable == [weight.trainable for network in agent.parts.all.values() for weight in network.weights]
    agent.learn(updates=6)
    assert changed(before, agent) == {*before}


@pytest.mark.slow
def test_the_first_update_phase_contains_them_and_a_resumed_training_is_equal(tmp_path):
    options = SMALL | {"start_steps": 0, "update_after": 10, "warm_up_updates": 7}
    agent = tfdpg.TD3(Counter(), **options)
    before = weights_and_moments(agent, "pi")
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=15)
    assert agent.updates == 7 + 5 and changed(before, agent) == {*before}
    fit_briefly(agent, Counter(), epochs=2, initial_epoch=1, steps_per_epoch=15)
    assert agent.updates == 7 + 20

    one = tfdpg.TD3(Counter(), **options)
    fit_briefly(one, Counter(), epochs=1, steps_per_epoch=10)
    one.learn(updates=3)
    one.save(tmp_path / "agent")
    other = tfdpg.load_agent(tmp_path / "agent")
    for each in (one, other):
        each.learn(updates=9)
    for first, second in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_without_an_optimizer_of_critics_there_is_no_warm_up():
    class Together(tfdpg.DDPG):
        """One optimizer for all networks."""

        @staticmethod
        def declare(spec, options):
            import dataclasses

            from tfdpg.agents.ddpg import declare
            from tfdpg.components import adam

            declaration = declare(spec, options)
            return dataclasses.replace(declaration, optimizers={"all": adam(options, "q1", of=("pi", "q1"))})

    with pytest.raises(ValueError, match="`warm_up_updates` must be 0 for Together: none of its optimizers"):
        Together(Counter(), **SMALL, warm_up_updates=1)
