"""What is remembered of each lane."""

import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from tests.remembering import Counts, counting
from tfdpg import Spec
from tfdpg.acting import Behaviour, Recall
from tfdpg.exploration import OrnsteinUhlenbeck, noisy_actions

SPEC = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.float32([-1]), np.float32([0.25])))


def seen(lanes=2):
    return (np.zeros((lanes, 1), np.float32),)


def test_widths_and_the_start():
    spec = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.float32([-1, 0]), np.float32([3, 1])))
    recall = Recall(spec, True, True, (("h", 2), ("c", 1)), stored=True)
    assert (recall.before_width, recall.state_width, recall.stored_width) == (3, 3, 3)
    np.testing.assert_array_equal(recall.start(2), [[1, 0.5, 0, 0, 0, 0]] * 2)
    bare = Recall(spec, False, False, (("h", 2),), stored=False)
    assert (bare.before_width, bare.stored_width, bare.start(1).tolist()) == (0, 0, [[0, 0]])


def test_steps_lane_by_lane(rng):
    behaviour = counting(SPEC)
    assert behaviour.step_width == 2
    steps = [behaviour.greedy(seen())]
    behaviour.received(np.array([5.0, 6.0]))
    behaviour.end(np.array([False, True]))
    steps += [behaviour.greedy(seen()), behaviour.greedy(seen())]
    np.testing.assert_allclose(np.array(steps)[:, 0], [[0.1, 0], [0.2, 1], [0.25, 2]])  # [action, state before it]
    np.testing.assert_allclose(np.array(steps)[:, 1], [[0.1, 0], [0.1, 0], [0.2, 1]])
    start = [-0.375, 0, 0]  # the box's center
    recalled = behaviour.actor.recalled
    np.testing.assert_allclose(recalled[0], [start, start])
    np.testing.assert_allclose(recalled[1], [[0.1, 5, 1], start])
    np.testing.assert_allclose(recalled[2][:, ::2], [[0.2, 2], [0.1, 1]])
    behaviour.greedy(seen())
    assert recalled[3][0, 0] == 0.25  # what was executed: 0.3 is outside of the box


def test_what_is_remembered_was_executed(rng):
    memory = counting(SPEC).memory
    memory.ask(Counts(), seen(1))
    assert memory.keep(np.float32([[7]])).tolist() == [[7, 0]] and memory.state[0, 0] == 0.25
    behaviour = counting(SPEC, scale=10.0)
    step = behaviour.explore(seen(50), 1.0, rng)
    behaviour.greedy(seen(50))
    np.testing.assert_array_equal(behaviour.actor.recalled[1][:, 0], step[:, 0])
    assert step[:, 0].std() > 0.3 and (step[:, 0] <= 0.25).all()


@pytest.mark.parametrize("stored", [False, True])
def test_random_steps_go_on_with_the_memory(stored):
    behaviour = counting(SPEC, stored=stored)
    plain = Behaviour(SPEC, behaviour.actor, behaviour.exploration)
    rng, again = np.random.default_rng(1), np.random.default_rng(1)
    for t in range(3):
        step = behaviour.at_random(seen(), rng)
        assert step.shape == (2, behaviour.step_width) == (2, 1 + stored)
        np.testing.assert_array_equal(step[:, :1], plain.at_random(seen(), again))
        np.testing.assert_array_equal(step[:, 1:], np.full((2, int(stored)), t))
        np.testing.assert_array_equal(behaviour.memory.state[:, 0], step[:, 0])
    assert len(behaviour.actor.recalled) == 3  # the policy without a memory was not asked
    assert (behaviour.greedy(seen())[:, 0] == 0.25).all() and (behaviour.memory.state[:, -1] == 4).all()


def test_it_begins_anew_with_another_number_of_lanes():
    behaviour = counting(SPEC)
    for lanes in (2, 2, 3):
        behaviour.greedy(seen(lanes))
    assert [recalled[:, -1].tolist() for recalled in behaviour.actor.recalled] == [[0, 0], [1, 1], [0, 0, 0]]
    behaviour.end(np.ones(2, bool))  # of lanes that are no more
    assert behaviour.memory.state[:, -1].tolist() == [1, 1, 1]


def test_another_forward_pass_has_no_past_and_leaves_this_one_alone():
    behaviour, other = counting(SPEC), Counts()
    behaviour.greedy(seen())
    before = behaviour.memory.state.copy()
    other = behaviour.by(Counts())
    other.greedy(seen())
    np.testing.assert_array_equal(other.actor.recalled[0][:, -1], 0)
    np.testing.assert_array_equal(behaviour.memory.state, before)


def test_the_state_goes_through_json():
    spec = SPEC
    behaviour, other = (
        counting(spec, actor=(lambda packed: np.concatenate([packed[-1][:, -1:] / 3 + 0.1] * 2, 1))) for _ in range(2)
    )
    for one in (behaviour, other):
        one.exploration = noisy_actions(spec, "ou", 0.1, 0.15, None)
    assert isinstance(behaviour.exploration.noise, OrnsteinUhlenbeck)
    for _ in range(3):
        behaviour.explore(seen(), 1.0, np.random.default_rng(2))
        behaviour.received(np.array([0.1, 0.2]))
    other.restore(json.loads(json.dumps(behaviour.state())))
    assert other.memory.state.dtype == np.float32 and (other.memory.state[:, 1:] != 0).all()
    steps = [one.explore(seen(), 1.0, np.random.default_rng(3)) for one in (behaviour, other)]
    np.testing.assert_array_equal(*steps)
    np.testing.assert_array_equal(behaviour.memory.state, other.memory.state)
    other.restore({"noise": []})  # of a tfdpg that had no memory
    other.greedy(seen())
    assert other.memory.state[0, -1] == np.float32(0.1)


def test_acting_with_a_memory_imports_no_tensorflow():
    code = (
        "import sys, numpy as np; from gymnasium import spaces; from tfdpg.spec import Spec;"
        "from tfdpg.acting import *; from tfdpg.exploration import noisy_actions; box = spaces.Box(-1, 1, (1,));"
        "spec = Spec(box, box); recall = Recall(spec, True, True, (('h', 4), ('c', 4)), True);"
        "actor = MLPActor(spec, mlp((3,), 'relu'), cells=(('lstm', 4),), recall=recall);"
        "actor.load(np.ones((3 + 4 + 1) * 16 + 15 + 4, np.float32));"
        "one = Behaviour(spec, actor, noisy_actions(spec, 'gaussian', 0.1, 0.15, None), LaneMemory(recall));"
        "step = one.explore((np.zeros((1, 1), np.float32),), 1.0, np.random.default_rng(0));"
        "assert step.shape == (1, 9); print({'tensorflow', 'keras', 'ray'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
