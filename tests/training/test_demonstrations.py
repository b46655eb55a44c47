"""`fit(demonstrations=…)`: a share of each minibatch comes from a data set."""

import contextlib
import functools

import gymnasium as gym
import keras
import numpy as np
import pytest

import tfdpg
from examples.sac import SAC
from tests.agents.roster import ACER, EAGER, SMALL, brief, fit_briefly, parametrize_agents
from tests.commands import TINY
from tests.environments import Counter, RandomWalk, Reach
from tests.training.test_resume import StopAt, assert_equal, trained
from tfdpg import cli
from tfdpg.distributed.options import DistributedFitOptions
from tfdpg.replay import ReplayBuffer, SequenceLayout, TransitionLayout, transition_minibatches
from tfdpg.replay.demonstrations import Demonstrations
from tfdpg.training.options import FitOptions

pytestmark = brief
FIRST = 100
"""The number of the first demonstrated episode, which tells demonstrations from other rows."""
RUN = {"epochs": 1, "steps_per_epoch": 40}


def demonstrations(episodes=3, length=6, first=FIRST):
    """Episodes of `Counter`, whose numbers begin with 100."""
    count = episodes * length
    episode, t = np.divmod(np.arange(count), length)
    observations = np.stack([first + episode, t], axis=1).astype(np.float32)
    return {
        "observations": observations,
        "actions": np.full((count, 1), 0.5, np.float32),
        "rewards": t + 1.0,
        "terminations": t == length - 1,
        "next_observations": observations + np.float32([0, 1]),
    }


def watched(agent):
    """Return a list to which the packed minibatches of the agent are added."""
    taken = []
    sample = agent.learner._local_replay.sample

    def watch(update, count):
        taken.append(sample(update, count))
        return taken[-1]

    agent.learner._local_replay.sample = watch
    return taken


def are_shown(packed):
    """Return which rows of packed minibatches are demonstrations, by the number of their episode."""
    return packed[0][..., 0] >= FIRST


@pytest.mark.parametrize(
    "batch_size, ratio, share", [(8, 0.5, 4), (7, 0.5, 4), (9, 0.5, 4), (5, 0.3, 2), (6, 0.9, 5), (2, 0.5, 1)]
)
def test_each_minibatch_has_exactly_the_share(batch_size, ratio, share):
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER | {"batch_size": batch_size})
    taken = watched(agent)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations(), demonstration_ratio=ratio)
    assert agent.updates > 0 and agent.replay.transitions()["observations"].max() < FIRST
    for packed in taken:
        assert packed[0].shape[1] == batch_size and (are_shown(packed).sum(axis=1) == share).all()


@parametrize_agents("TD3")
def test_all_agents(make, tmp_path):
    agent = make(Counter())
    data = demonstrations()
    if isinstance(agent, tfdpg.ACER):  # it needs the distributions
        data = make(Counter())
        fit_briefly(data, Counter(), **RUN)
        data.replay.rows[:, 0] += FIRST
    taken = watched(agent)
    fit_briefly(agent, Counter(), **RUN, demonstrations=data)
    assert agent.updates > 0
    for packed in taken:
        shown = are_shown(packed)
        shown = shown.any(axis=2) if shown.ndim == 3 else shown
        assert (shown.sum(axis=1) == 4).all()


class Camera(Counter):
    """Observations have an image, and actions are integers."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), position=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    )
    action_space = gym.spaces.Box(-2, 2, (1,), np.int64)

    def __init__(self):
        super().__init__()
        self.observation_space = Camera.observation_space

    def _observation(self):
        return {"image": np.full((6, 6, 1), self.t, np.uint8), "position": super()._observation()}


@pytest.mark.parametrize(
    "make, make_env, options",
    [
        pytest.param(SAC, Counter, SMALL | EAGER, id="an own file"),
        pytest.param(tfdpg.TD3, Camera, SMALL | EAGER, id="images and integers", marks=pytest.mark.slow),
        pytest.param(tfdpg.ACER, lambda: gym.make("CartPole-v1"), ACER, id="discrete", marks=pytest.mark.slow),
    ],
)
def test_own_algorithms_and_other_spaces(make, make_env, options):
    data, agent = (make(make_env(), **options) for _ in range(2))
    fit_briefly(data, make_env(), **RUN)
    taken = watched(agent)
    fit_briefly(agent, make_env(), **RUN, demonstrations=data)
    shapes = {tuple(part.shape[1:] for part in packed) for packed in taken}
    assert agent.updates > 0 and len(shapes) == 1 and {shape[0] for shape in shapes.pop()} == {8}
    rows = agent.data.demonstrations_state["rows"]
    assert rows == data.replay.added and agent.replay.added < 2 * RUN["steps_per_epoch"]


@pytest.mark.parametrize(
    "options",
    [
        {"replay": "prioritized"},
        {"epochs_per_round": 1, "max_minibatches_per_round": 2, "gradient_steps": None},
        {"critics": 1, "normalize_observations": True},
        pytest.param({"replay": "lap"}, marks=pytest.mark.slow),
        pytest.param({"replay_dir": "rows"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_options_of_the_replay(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER | options)
    taken = watched(agent)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations(), demonstration_ratio=0.25)
    assert agent.updates > 0
    assert all((are_shown(packed).sum(axis=1) == 2).all() for packed in taken)


def test_n_step_returns_stay_in_one_replay_buffer():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER, n_step=3, gamma=0.5)
    taken = watched(agent)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations())
    layout = TransitionLayout.of(agent.spec)
    for packed in taken:
        row = packed[0][are_shown(packed)]
        t = row[:, 1]
        returns = t + 1 + np.where(t < 5, (t + 2) / 2, 0) + np.where(t < 4, (t + 3) / 4, 0)
        np.testing.assert_allclose(row[:, layout.reward], returns, rtol=1e-6)
        after = row[:, layout.next_observation]
        np.testing.assert_array_equal(after[:, 0], row[:, 0])
        np.testing.assert_array_equal(after[:, 1], np.minimum(t + 3, 6))


@pytest.mark.parametrize("stored_state", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sequences_are_of_one_replay_buffer(stored_state):
    recurrent = {"recurrent": "lstm", "recurrent_units": (4,), "sequence_length": 4, "burn_in": 2}
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER | recurrent, stored_state=stored_state, replay="prioritized")
    taken = watched(agent)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations())
    layout = SequenceLayout.of(agent.spec, agent.data.recurrent_spec.previous_width)
    assert agent.updates > 0
    for packed in taken:
        valid = packed[0][..., layout.valid] > 0
        shown = are_shown(packed)
        assert ((shown & valid).any(axis=2).sum(axis=1) == 4).all()
        assert not ((shown & valid).any(axis=2) & (~shown & valid).any(axis=2)).any()


def test_new_goals_are_of_the_same_replay_buffer():
    data = tfdpg.TD3(Reach(), **SMALL | {"update_after": 1000})
    fit_briefly(data, Reach(), **RUN)
    agent = tfdpg.TD3(Reach(), **SMALL | EAGER, her="future", her_ratio=1.0)
    taken = watched(agent)
    fit_briefly(agent, Reach(), **RUN, demonstrations=data)
    columns = {leaf.name: leaf.columns for leaf in agent.spec.leaves}
    achieved = [buffer.rows[:, columns["achieved_goal"]] for buffer in (agent.replay, data.replay)]
    for packed in taken:
        goals = packed[0][..., columns["desired_goal"]]
        for part, known in ((goals[:, :4], achieved[0]), (goals[:, 4:], achieved[1])):
            distances = np.abs(part[:, :, None] - known).max(axis=-1)
            assert (distances.min(axis=-1) == 0).all()


def two_buffers(**sampling):
    """Return builders for own rows and for demonstrations, of 40 and of 10 transitions."""
    spec = tfdpg.Spec.of(Counter())
    make = functools.partial(
        transition_minibatches, n_step=1, gamma=0.9, seed=3, batch_size=10, beta=0.5, alpha=1.0, beta_steps=None
    )
    make = functools.partial(make, epochs_per_round=None, max_minibatches_per_round=None, **sampling)
    builders = []
    for rows in (41, 11):
        buffer = ReplayBuffer(spec, rows)
        buffer.begin(np.array([0]), (np.zeros((1, 2), np.float32),))
        for t in range(1, rows):
            observation = np.array([[rows, t]], np.float32)
            step = np.array([[0.0]]), np.array([float(t)]), np.array([False]), (observation,)
            buffer.add(np.array([0]), *step)
        builders.append(make(buffer))
    return builders[0], Demonstrations(builders[1])


@pytest.mark.parametrize("normalizes", [True, False])
def test_importance_weights_and_priorities_are_those_of_each_replay_buffer(normalizes):
    own, shown = two_buffers(replay="prioritized", normalize_weights=normalizes)
    layout = TransitionLayout.of(own.buffer.spec)
    with shown.mixed_with(own, 0.3):
        _, rows = shown.sample(own, 0, 5)
        assert rows.shape == (5, 10)
        errors = 1 + np.arange(50.0).reshape(5, 10)
        shown.update_priorities(own, rows, errors)
        priorities = [part.sampler.state()["priorities"] for part in (own, shown.builder)]
        for part, columns in zip(priorities, (slice(7), slice(7, None)), strict=True):
            expected = np.where(np.arange(len(part)) < len(part) - 1, 1.0, 0.0)
            for slot, error in zip(rows[:, columns].ravel(), errors[:, columns].ravel(), strict=True):
                expected[slot] = error + 1e-6
            np.testing.assert_allclose(part, expected, rtol=1e-6)
        gather, rows = shown.sample(own, 5, 5)
        packed = gather()
        weights = np.concatenate(
            [
                ((len(part) - 1) * part[rows[:, columns]] / part.sum()) ** -0.5
                for part, columns in zip(priorities, (slice(7), slice(7, None)), strict=True)
            ],
            axis=1,
        )
        if normalizes:
            weights /= weights.max(axis=1, keepdims=True)
        np.testing.assert_allclose(packed[0][..., layout.weight], weights, rtol=1e-5)
    assert own.sampler.batch_size == 10 and own.sampler.normalize_weights == normalizes


def test_the_samples_of_the_two_replay_buffers_are_independent():
    own, shown = two_buffers(replay="uniform")
    with shown.mixed_with(own, 0.5):
        _, rows = shown.sample(own, 0, 200)
    one, other = rows[:, :5].ravel() / 40, rows[:, 5:].ravel() / 10
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert np.unique(rows[:, 5:]).tolist() == list(range(10))


def test_statistics_and_ranges_know_the_demonstrations():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER, normalize_observations=True)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations())
    once = agent.data.observation_statistics
    rows = np.concatenate([agent.replay.rows[: agent.replay.added, 0], *[np.full(7, 100 + i) for i in range(3)]])
    assert once.mean[0] == pytest.approx(rows.mean(), rel=0.02)
    count = once.count
    fit_briefly(agent, Counter(), **RUN | {"epochs": 2}, initial_epoch=1, demonstrations=demonstrations())
    assert once.count - count < 60  # the same data does not count again
    ranges = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ranges.append(agent.data.return_range()))
    shown = demonstrations(length=20)
    fit_briefly(agent, Counter(), **RUN | {"epochs": 3}, initial_epoch=2, demonstrations=shown, callbacks=[watch])
    assert ranges[0][1] > 20 / (1 - 0.99) > 2 * agent.data.return_range()[1]


KINDS = {
    "uniform": (tfdpg.TD3, SMALL),
    "prioritised": (tfdpg.TD3, SMALL | EAGER | {"replay": "prioritized", "update_every": 10}),
    "passes": (tfdpg.TD3, SMALL | {"epochs_per_round": 1, "max_minibatches_per_round": 3}),
    "normaliser": (tfdpg.TD7, SMALL | EAGER | {"normalize_observations": True, "encoder_units": (4,)}),
    "lstm": (tfdpg.TD3, SMALL | {"recurrent": "lstm", "recurrent_units": (4,), "sequence_length": 4}),
    "acer": (tfdpg.ACER, ACER),
}


class Operated(RandomWalk):
    """An operator makes about each third step."""

    def step(self, action):
        *result, info = super().step(action)
        return *result, info | {"intervention": self.t % 7 in (1, 2)}


def walks(steps=60, seed=5):
    agent = tfdpg.TD3(RandomWalk(), **SMALL | {"update_after": 1000}, seed=seed)
    fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=steps)
    return agent.replay.transitions()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, joins",
    [
        ("prioritised", False),
        *(pytest.param(kind, True, marks=[pytest.mark.hours] * (kind == "lstm")) for kind in KINDS),
    ],
)
def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path, kind, joins):
    new, options = KINDS[kind]

    def make_env():
        return gym.vector.SyncVectorEnv([lambda: Operated(30), lambda: Operated(41)])

    data = walks()
    if new is tfdpg.ACER:
        data = new(RandomWalk(), **options)
        fit_briefly(data, RandomWalk(), epochs=1, steps_per_epoch=60)
    with contextlib.closing(make_env()) as env:
        whole, agent = (new(env, **options) for _ in range(2))
    given = {"demonstrations": data, "demonstration_ratio": 0.4, "join_interventions": joins}
    trained(whole, make_env, **given)
    for steps in (47, 133, 10_000):
        trained(agent, make_env, StopAt(steps), initial_epoch=agent.epoch, **given)
        agent.save(tmp_path / "agent")
        agent = tfdpg.load_agent(tmp_path / "agent")
    assert_equal(whole, agent, tmp_path)
    joined = agent.data.demonstrations_state.get("joined/rows", ())
    assert (len(joined) > 30) == joins and agent.updates >= 8


def test_a_resume_with_other_data_is_refused(tmp_path):
    agent = tfdpg.TD3(RandomWalk(), **SMALL | EAGER)
    trained(agent, RandomWalk, epochs=1, demonstrations=walks())
    agent.save(tmp_path / "agent")
    agent = tfdpg.load_agent(tmp_path / "agent")
    before = agent.env_steps
    with pytest.raises(ValueError, match="`demonstrations` must be those of the run that is resumed, 6[0-9] rows") as e:
        trained(agent, RandomWalk, epochs=2, initial_epoch=1, demonstrations=walks(50))
    assert "\n" not in str(e.value) and agent.env_steps == before and agent.data.demonstrations is None
    agent.data.demonstrations_state.clear()
    trained(agent, RandomWalk, epochs=2, initial_epoch=1, demonstrations=walks(50))
    assert agent.env_steps > before


def test_fit_without_them_takes_whole_minibatches_again():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER)
    fit_briefly(agent, Counter(), **RUN, demonstrations=demonstrations())
    assert agent.data.demonstrations_state
    taken = watched(agent)
    agent.learn(updates=1)
    fit_briefly(agent, Counter(), **RUN | {"epochs": 2}, initial_epoch=1)
    assert agent.data.demonstrations_state == {}
    assert all(packed[0].shape[1] == 8 and not are_shown(packed).any() for packed in taken) and len(taken) > 1


class Helped(Counter):
    """An operator makes the second and the third step of each episode, and the last one of every other."""

    def step(self, action):
        *result, info = super().step(action)
        by_operator = self.t in (2, 3) or (self.t == self.length and self.episode % 2 == 0)
        return *result, info | {"intervention": by_operator, "executed_action": np.float32([0.75])}


@pytest.mark.parametrize("realtime", [False, True])
def test_interventions_join(realtime):
    agent = tfdpg.TD3(Counter(), **SMALL | {"update_every": 10})
    given = {"demonstrations": demonstrations(), "join_interventions": True}
    fit_briefly(agent, Helped(), **RUN, **given, realtime=realtime)
    state = agent.data.demonstrations_state
    rows = state["joined/rows"][state["joined/successor_after"] > 0]
    rows = rows[rows[:, 0] < 8]
    wanted = [[e, t - 1, 0.75, t] for e in range(8) for t in (2, 3, *((5,) if e % 2 == 0 else ()))]
    np.testing.assert_array_equal(rows, wanted)
    runs = np.diff(np.flatnonzero(np.append(True, state["joined/successor_after"] == 0)))
    assert set(runs.tolist()) <= {2, 3}  # two steps, or one, and the observation after the last
    assert agent.replay.transitions()["observations"].shape[0] == 40


def test_without_the_option_interventions_do_not_join():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER)
    fit_briefly(agent, Helped(), **RUN, demonstrations=demonstrations())
    assert "joined/rows" not in agent.data.demonstrations_state


def test_interventions_do_not_replace_the_data():
    agent = tfdpg.TD3(Counter(), **SMALL | EAGER | {"replay_size": 12})
    with pytest.warns(UserWarning, match="rows of interventions have joined the demonstrations, as many as `replay_s"):
        fit_briefly(agent, Helped(), **RUN, demonstrations=demonstrations(), join_interventions=True)
    assert 10 <= len(agent.data.demonstrations_state["joined/rows"]) <= 12


@pytest.mark.parametrize(
    "options, message",
    [
        ({"demonstration_ratio": 0.25}, "`demonstration_ratio` does nothing where there are no `demonstrations`. Rec"),
        ({"join_interventions": True}, "`join_interventions` does nothing where there are no `demonstrations`"),
        ({"demonstrations": {}, "demonstration_ratio": 0.0}, "must be a number above 0 and below 1. Received: .*=0"),
        ({"demonstrations": {}, "demonstration_ratio": 1.0}, "must be a number above 0 and below 1. Received: .*=1"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(ValueError, match=message):
        FitOptions(**options)


def test_rollout_workers_are_refused():
    with pytest.raises(ValueError, match="`demonstrations` does nothing where rollout workers collect: only `Agent.f"):
        DistributedFitOptions(demonstrations={})


@pytest.mark.parametrize(
    "data, ratio, message",
    [
        (demonstrations(0), 0.5, "`data` must hold at least one transition"),
        (demonstrations() | {"observations": np.zeros((18, 3))}, 0.5, "obs"),
        (demonstrations() | {"actions": np.full((18, 1), 2.0)}, 0.5, "must hold actions of the environment's action"),
        (demonstrations(), 0.05, "`demonstration_ratio` must leave a row .* Received: demonstration_ratio=0.05, batch"),
        (demonstrations(), 0.99, "`demonstration_ratio` must leave a row"),
        (3, 0.5, "`data` must be"),
    ],
)
def test_data_that_cannot_be_used(data, ratio, message):
    agent = tfdpg.TD3(Counter(), **SMALL)
    with pytest.raises(ValueError, match=message):
        fit_briefly(agent, Counter(), **RUN, demonstrations=data, demonstration_ratio=ratio)
    assert agent.env_steps == 0 and agent.replay.added == 0 and agent.data.minibatch_builder.sampler.batch_size == 8


COMMAND = ["train", "ddpg", "--env", "tfdpg-test/Counter-v0", *TINY, "--run-eagerly", "--gradient-steps", "1"]
COMMAND += ["--steps-per-epoch", "30", "--validation-episodes", "2", "--verbose", "0"]


@pytest.mark.slow
def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("shown.npz", **demonstrations())
    np.savez("others.npz", **demonstrations(2))
    flags = ["--demonstrations", "shown.npz", "--demonstration-ratio", "0.25", "--run-dir", "runs", "--epochs", "1"]
    assert not cli.main([*COMMAND, *flags])
    assert not cli.main(["train", "--resume", "runs/seed-0", "--epochs", "2"])
    assert cli.main(["train", "--resume", "runs/seed-0", "--epochs", "3", "--demonstrations", "others.npz"])
    assert "must be those of the run that is resumed" in capsys.readouterr().err
    assert cli.main([*COMMAND, "--demonstrations", "missing.npz", "--run-dir", "others"])
    assert "`--demonstrations` must be a file or a directory. Received: missing.npz" in capsys.readouterr().err
    assert not (tmp_path / "others").exists()
