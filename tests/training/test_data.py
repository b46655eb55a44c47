"""Stored transitions that a user may have: other shapes and names, tables, and data that cannot be right."""

import gymnasium as gym
import keras
import numpy as np
import pandas as pd
import pytest

import tfdpg
from tests.agents.roster import ACER, EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tests.training.test_offline import SPEC, data, transitions
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.names import ALIASES
from tfdpg.training.data.datasets import load_into

OFFLINE = {"epochs": 1, "steps_per_epoch": 1, "verbose": 0}


def loaded(given, **options):
    buffer = ReplayBuffer(SPEC, 5000)
    load_into(buffer, given, **options)
    return buffer


def in_the_singular(arrays):
    singular = {plural: name for name, plural in ALIASES.items() if name not in ("terminals", "timeouts")}
    return {singular[name]: values for name, values in arrays.items()}


def assert_same(one, other):
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def episodes(count, length, rng):
    """A random walk of `count` episodes, in float32."""
    observations = rng.normal(size=(count * length, 2)).astype(np.float32)
    arrays = {"observations": observations, "actions": rng.uniform(-1, 1, (count * length, 1))}
    return arrays | {"rewards": rng.normal(size=count * length), "terminations": np.zeros(count * length, bool)}


@pytest.mark.parametrize("name", ["rewards", "terminations", "truncations"])
def test_a_column_is_a_row_of_numbers(name):
    arrays = data()
    assert_same(
        loaded(arrays | {name: arrays[name][:, None]}).transitions(),
        loaded(arrays).transitions(),
    )
    rows = 20_000  # every pair of these would take 3 GB
    many = {key: np.resize(values, (rows, *values.shape[1:])) for key, values in arrays.items()}
    for shape in ((rows, 2), (rows, 1, 1), ()):
        with pytest.raises(ValueError, match=rf"'{name}' of `data` must have the shape \(n,\) or \(n, 1\).*Received"):
            loaded(many | {name: np.zeros(shape)})
    with pytest.raises(ValueError, match="a row for each transition in every array"):
        loaded(many | {name: np.zeros(1)})


def test_minibatches_take_columns_too():
    agent = tfdpg.TD3(SPEC, **SMALL, **EAGER)
    batch = {name: values[:2] for name, values in data().items()} | {"discounts": np.full(2, 0.9)}
    agent = tfdpg.TD3(SPEC, **SMALL | EAGER | {"batch_size": 2}, seed=1)
    other = tfdpg.TD3(SPEC, **SMALL | EAGER | {"batch_size": 2}, seed=1)
    columns = {name: values.reshape(2, -1) for name, values in batch.items()}
    assert agent.train_on_batch(batch) == other.train_on_batch(columns)
    with pytest.raises(ValueError, match=r"'rewards'\]` must have the shape \(2,\). Received: \(2, 2\)"):
        agent.train_on_batch(batch | {"rewards": np.zeros((2, 2))})


def test_the_whole_data_set_is_held_unless_replay_size_was_set(monkeypatch):
    arrays = episodes(3, 1000, np.random.default_rng(0)) | {"truncations": np.arange(3000) % 1000 == 999}
    agent = tfdpg.TD3(SPEC, **{**SMALL, "replay_size": 750}, run_eagerly=True)
    with pytest.raises(ValueError, match=r"at least the 3,003 rows of `data`.*Received: replay_size=750\. Raise it"):
        agent.fit_offline(arrays, **OFFLINE)
    assert agent.replay.added == 0
    small = {name: option for name, option in SMALL.items() if name != "replay_size"}
    default = tfdpg.agents.options.TD3Options.replay_size
    agent = tfdpg.TD3(SPEC, **small, run_eagerly=True, replay="prioritized")
    agent.replay.resize(750)  # stands for the default, which takes longer to fill
    held = []
    for _ in range(2):  # a second data set does not replace the first
        agent.fit_offline(arrays, **OFFLINE)
        held.append(len(agent.replay))
    assert held == [2997, 5994] and agent.options.replay_size == 6006 == agent.replay.replay_size != default
    priorities = agent.data.minibatch_builder.sampler.state()["priorities"]
    assert len(priorities) == 6006 and np.count_nonzero(priorities) == 5994


@pytest.mark.slow
def test_a_grown_replay_buffer_is_saved_and_resumed(tmp_path):
    agent = tfdpg.TD3(Counter(), **SMALL | {"replay_size": 1_000_000}, run_eagerly=True)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=30)
    before = agent.replay.transitions()
    agent.data.grow(1_000_100)
    assert_same(agent.replay.transitions(), before)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert again.replay.replay_size == 1_000_100
    for each in (agent, again):
        fit_briefly(each, Counter(), epochs=2, steps_per_epoch=10)
    for mine, theirs in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_unknown_ends_of_episodes_are_refused_or_found():
    rng = np.random.default_rng(1)
    arrays = episodes(48, 21, rng)
    with pytest.raises(ValueError, match="'terminations' is False in all 1008 rows. Add 'truncations', .*'next_obs"):
        loaded(arrays)
    following = np.roll(arrays["observations"], -1, axis=0)
    following[20::21] = rng.normal(size=(48, 2))
    found = loaded(arrays | {"next_observations": following})
    assert len(found) == 1008 and found.size == 1008 + 48
    is_last = np.arange(1008) % 21 == 20
    assert len(loaded(arrays | {"timeouts": is_last})) == 1008 - 48
    assert len(loaded(arrays | {"truncations": np.zeros(1008)})) == 1007  # one episode, which is still open


def test_arrays_that_are_not_read_are_named():
    arrays = data() | {"infos/goal": np.zeros(7), "metadata/algorithm": "TD3"}
    assert_same(loaded(arrays).transitions(), loaded(data()).transitions())
    for name in ("done", "dones"):
        given = {key: values for key, values in arrays.items() if key != "terminations"} | {name: np.zeros(7)}
        with pytest.raises(ValueError, match=f"'truncations' for other ends of episodes. Received: '{name}'"):
            loaded(given)
    message = r"`data` has arrays that are not read: \['truncatons', 'velocity'\]. Did you mean 'truncations'\?"
    with pytest.warns(UserWarning, match=message):
        loaded(arrays | {"velocity": np.zeros(7), "truncatons": np.zeros(7)})
    with pytest.warns(UserWarning, match=r"not read: \['dones'\]"):
        loaded(arrays | {"dones": np.zeros(7), "truncations": np.zeros(7)})


def test_data_of_other_spaces_is_refused(tmp_path):
    def spec(low, **widths):
        boxes = {name: gym.spaces.Box(-9, 9, (width,), np.float32) for name, width in widths.items()}
        return tfdpg.Spec(gym.spaces.Dict(boxes), gym.spaces.Box(low, 1, (1,), np.float32))

    here = spec(-1, height=1, rate=2)
    for other, kind in (
        (spec(-1, position=2, speed=1), "observation_space"),
        (spec(-2, height=1, rate=2), "action_space"),
    ):
        agent = tfdpg.TD3(other, **SMALL)
        agent.act({leaf.name: np.zeros(leaf.shape) for leaf in other.leaves})
        agent.observe(1.0, {leaf.name: np.ones(leaf.shape) for leaf in other.leaves}, True, False)
        agent.save(tmp_path / kind / "agent")
        agent.replay.save(tmp_path / kind / "replay")
        for given in (agent, agent.replay, tmp_path / kind / "agent", tmp_path / kind / "replay"):
            with pytest.raises(ValueError, match=f"The {kind} of .* must be the agent's.*Received"):
                load_into(ReplayBuffer(here, 10), given)
        with pytest.raises(ValueError, match=f"The {kind} of `recorders` must be the agent's"):
            tfdpg.TD3(here, **SMALL, recorders=[agent.replay])
    box = gym.spaces.Box(-5, 5, SPEC.observation_space.shape, np.float32)
    source = ReplayBuffer(tfdpg.Spec(box, SPEC.action_space), 100)
    load_into(source, data())
    assert_same(loaded(source).transitions(), loaded(data()).transitions())  # only bounds of observations differ


def test_ends_are_0_or_1():
    for name in ("terminations", "truncations"):
        with pytest.raises(ValueError, match=f"'{name}' of `data` must be 0 or 1 in each row. Received: 0.5 in row 3"):
            loaded(data() | {name: np.where(np.arange(7) == 3, 0.5, 0)})


def test_masked_values_are_refused():
    masked = np.ma.masked_array(np.ones(7), np.arange(7) < 2)
    for given in ({"reward": masked}, {"rewards": {"part": masked}}, {"rewards": masked, "client_ids": ["a"] * 7}):
        with pytest.raises(ValueError, match="`data` must have no masked values. Received: masked values in 'rewards'"):
            loaded({name: array for name, array in data().items() if name != "rewards"} | given)
    assert len(loaded(data() | {"rewards": np.ma.masked_array(np.ones(7))})) == len(loaded(data()))


def test_actions_outside_the_action_space_are_refused_or_clipped(tmp_path):
    arrays = data() | {"actions": np.linspace(-1, 2, 7)[:, None]}
    message = r"2 of 7 rows \(28.6%\) are outside, by up to 1; the first is row 5, with 1.5 as component 0"
    with pytest.raises(ValueError, match=f"{message}, which goes from -1 to 1.*clip_actions=True clips them"):
        loaded(arrays)
    clipped = loaded(arrays, clip_actions=True).transitions()["actions"]
    np.testing.assert_allclose(clipped[:, 0], np.minimum(np.linspace(-1, 2, 7), 1), rtol=1e-6)
    rounded = loaded(data() | {"actions": np.full((7, 1), 1 + 1e-6)}).transitions()["actions"]
    assert (rounded == 1).all()
    np.savez(tmp_path / "0.npz", **arrays)
    agent = tfdpg.TD3(SPEC, **SMALL, run_eagerly=True)
    with pytest.raises(ValueError, match="0.npz must hold actions of the environment's action space"):
        agent.fit_offline(tmp_path, **OFFLINE)
    agent.fit_offline(tmp_path, clip_actions=True, **OFFLINE)
    assert len(agent.replay) == 7
    wide = tfdpg.Spec(SPEC.observation_space, tfdpg.Spec.of("Pendulum-v1").action_space)
    source = ReplayBuffer(wide, 100)
    load_into(source, arrays)
    with pytest.raises(ValueError, match=r"action_space of `data` must be the agent's, Box\(-1.0.*Box\(-2.0"):
        loaded(source)
    assert loaded(source, clip_actions=True).transitions()["actions"].max() == 1


def test_discrete_actions_are_those_of_the_space():
    agent = tfdpg.ACER("CartPole-v1", **ACER)
    given = {"observations": np.zeros((3, 4)), "rewards": np.ones(3), "terminations": [0, 0, 1]}
    with pytest.raises(ValueError, match="with the distribution that drew each action"):
        agent.fit_offline(given | {"actions": [0, 1, 1]}, **OFFLINE)
    for actions in ([0, 1, 2], [0, 0.5, 1]):
        with pytest.raises(ValueError, match="'actions' of `data` must hold actions of the .* 1 of 3 rows"):
            agent.fit_offline(given | {"actions": actions}, **OFFLINE)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"recurrent": "gru", "recurrent_units": 3}, marks=pytest.mark.slow)]
)
def test_what_a_replay_buffer_gives_offline_training_takes(options):
    env = Counter(length=4, ends="truncated")
    agent = tfdpg.TD3(env, **SMALL | {"update_after": 1000}, **options, run_eagerly=True)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=30)
    held = agent.replay.transitions()
    for given in (held, agent.replay, agent, in_the_singular(held)):
        other = tfdpg.TD3(env, **SMALL, **options, run_eagerly=True)
        other.fit_offline(given, **OFFLINE)
        stored = other.replay.transitions()
        for name in set(held) - {"truncations"}:  # the open episode counts as truncated
            np.testing.assert_array_equal(stored[name], held[name], err_msg=name)
    with pytest.raises(ValueError, match="must not be the agent's own replay buffer"):
        agent.fit_offline(agent, **OFFLINE)


@pytest.mark.slow
def test_what_acer_s_replay_buffer_gives_acer_takes():
    agent, other = (tfdpg.ACER("Pendulum-v1", **ACER) for _ in range(2))
    fit_briefly(agent, "Pendulum-v1", epochs=1, steps_per_epoch=50)
    other.fit_offline(agent.replay.transitions(), **OFFLINE)
    one, same = (each.replay.transitions() for each in (agent, other))
    for name in ("actions", "behaviours", "rewards"):
        np.testing.assert_array_equal(one[name], same[name])


@pytest.mark.parametrize("states", [np.zeros(7), np.zeros((6, 3)), np.zeros((7, 3, 1))])
def test_states_of_another_shape_are_refused(states):
    buffer = ReplayBuffer(SPEC, 50, step_width=SPEC.act_dim + 3, has_predecessors=True)
    with pytest.raises(ValueError, match="`data` must have"):
        load_into(buffer, data() | {"states": states})
    assert buffer.added == 0


def test_what_a_replay_buffer_gives_train_on_batch_takes():
    agents = [tfdpg.TD3(SPEC, **SMALL | EAGER, seed=1, n_step=3) for _ in range(2)]
    for agent in agents:
        fit_briefly(agent, Counter(length=4), epochs=1, steps_per_epoch=30)
    batch = agents[0].replay.sample(agents[0].options.batch_size, seed=0)
    singular = in_the_singular(batch)
    assert agents[0].train_on_batch(batch) == agents[1].train_on_batch(singular)
    assert batch["reward"] is batch["rewards"] and batch["terminated"] is batch["terminations"]
    with pytest.raises(ValueError, match="rewards are sums over up to 3 steps"):
        agents[0].fit_offline(batch, **OFFLINE)
    with pytest.raises(ValueError, match="single steps. Received: 'discounts' from "):
        agents[0].fit_offline(dict(agents[0].replay.sample(200, seed=0)), **OFFLINE)
    with pytest.raises(ValueError, match="the array 'observations' once"):
        agents[0].train_on_batch(batch | singular)
    with pytest.raises(KeyError, match="reword"):
        batch["reword"]


def frame():
    arrays = data()
    columns = {"obs_0": arrays["observations"][:, 0], "obs_1": arrays["observations"][:, 1]}
    columns |= {"action_0": arrays["actions"][:, 0], "reward": arrays["rewards"]}
    return pd.DataFrame(columns | {"terminated": arrays["terminations"], "truncated": arrays["truncations"]})


@pytest.mark.parametrize("form", ["frame", "data.csv", "data.parquet", "DATA.CSV"])
def test_tables_are_data(form, tmp_path):
    given = frame()
    if form != "frame":
        path = tmp_path / form
        given.to_parquet(path) if form == "data.parquet" else given.to_csv(path, index=False)
        given = path
    assert_same(loaded(given).transitions(), loaded(data(with_next=False)).transitions())


def test_columns_for_episodes_next_observations_and_dict_observations():
    table = frame().rename(columns={"action_0": "action"})
    following = table.assign(next_obs_0=table["obs_0"], next_obs_1=table["obs_1"] + 1)
    assert_same(loaded(following).transitions(), loaded(data()).transitions())
    numbered = table.drop(columns="truncated").assign(episode=["a"] * 3 + ["b"] * 2 + ["c"] * 2)
    assert_same(loaded(numbered).transitions(), loaded(data(with_next=False)).transitions())
    mixed = numbered.iloc[[0, 3, 1, 5, 2, 4, 6]]  # the rows of episodes alternate
    assert_same(loaded(mixed).transitions(), loaded(numbered).transitions())
    spec = tfdpg.Spec.of(Counter(as_dict=True))
    names = {"obs_0": "obs_position_0", "obs_1": "obs_position_1"}
    buffer = ReplayBuffer(spec, 100)
    load_into(buffer, table.rename(columns=names).assign(obs_phase=[1] * 7))
    held = buffer.transitions()
    np.testing.assert_array_equal(held["observations"]["position"][:3], data()["observations"][:3])
    assert set(held["observations"]["phase"]) == {1}


def test_tables_with_other_columns_are_refused(tmp_path):
    for change, message in (
        ({"columns": "reward"}, "must have the column 'reward'. Received: .*'obs_0'"),
        ({"columns": "obs_1"}, "the columns obs_0 to obs_1, as the spaces have 2"),
        ({"columns": ["obs_0", "obs_1"]}, "columns 'obs_0', 'obs_1', ..."),
        ({"columns": "action_0"}, "the column action_0, as the spaces have 1"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded(frame().drop(**change))
    with pytest.raises(ValueError, match="the columns obs_0 to obs_1, as the spaces have 2"):
        loaded(frame().assign(obs_2=0.0))
    with pytest.raises(ValueError, match="an 'episode' in each row. Received: none in row 3"):
        loaded(frame().assign(episode=[0, 0, 0, None, 1, 2, 2]))
    with pytest.raises(ValueError, match="'rewards' of `data` .* nan in row 2"):
        loaded(frame().assign(reward=[0, 1, np.nan, 3, 4, 5, 6]))
    for content in (b"", b"\xff\xfe\x00obs", b"a,b\n1,2,3\n4\n5,6,7,8,9\n"):
        (tmp_path / "0.csv").write_bytes(content)
        with pytest.raises(ValueError, match="0.csv"):
            loaded(tmp_path / "0.csv")
    (tmp_path / "0.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match="`data` must be a table. Received: .*0.parquet"):
        loaded(tmp_path / "0.parquet")
    with pytest.raises(FileNotFoundError, match="`data` must exist. Received: .*1.csv"):
        loaded(tmp_path / "1.csv")


def test_no_message_repeats_the_data(tmp_path):
    agent = tfdpg.TD3(SPEC, **SMALL, run_eagerly=True)
    observations = np.random.default_rng(0).normal(size=(9000, 2))
    tuples = [(o, np.zeros(1), 1.0, o, False) for o in observations]
    many = {f"a long name of an array, number {i}": np.zeros(3) for i in range(999)}
    with pytest.raises(ValueError, match="Received: data=a list of 9,000 items, of which the first is"):
        agent.fit_offline(tuples, **OFFLINE)
    calls = (
        lambda: agent.fit_offline(tuples, **OFFLINE),
        lambda: agent.fit_offline({"observations": tuples}, **OFFLINE),
        lambda: agent.fit_offline(many, **OFFLINE),
        lambda: agent.fit_offline({name: values[:0] for name, values in data().items()}, **OFFLINE),
        lambda: agent.fit_offline(pd.DataFrame(many), **OFFLINE),
        lambda: agent.fit_offline({"rewards": {"a": tuples}}, **OFFLINE),
        lambda: agent.train_on_batch(many),
        lambda: agent.train_on_batch(tuples),
        lambda: agent.predict(np.array([str(o) for o in observations])),
        lambda: agent.predict(observations.tolist() + [["text", "text"]]),
        lambda: agent.act(observations[:, :1]),
        lambda: tfdpg.TD3(SPEC, hidden_units=observations.tolist()),
        lambda: tfdpg.TD3(SPEC, hidden_units=observations),
        lambda: tfdpg.TD3(SPEC, act_noise=many),
        lambda: tfdpg.TD3(tuples),
        lambda: tfdpg.TD3(SPEC, hidden_units=keras.Input((300,))),
        lambda: tfdpg.TD3(SPEC, recorders=tuples),
        lambda: agent.replay.sample(tuples),
        lambda: agent.evaluate(tuples),
        lambda: agent.evaluate(Counter(), episodes=tuples),
    )
    for number, call in enumerate(calls):
        with pytest.raises((ValueError, TypeError, AttributeError)) as raised:
            call()
        assert len(str(raised.value)) <= 2000, (number, str(raised.value)[:400])


def test_nothing_is_stored_of_data_with_one_bad_file(tmp_path):
    np.savez(tmp_path / "0.npz", **data())
    np.savez(tmp_path / "1.npz", **data() | {"rewards": np.full(7, np.nan)})
    buffer = ReplayBuffer(SPEC, 100)
    with pytest.raises(ValueError, match="1.npz"):
        load_into(buffer, tmp_path)
    assert buffer.added == 0
    (tmp_path / "1.npz").unlink()
    load_into(buffer, tmp_path)
    np.testing.assert_array_equal(transitions(buffer), transitions(loaded(data())))
