"""The recurrent state of each sub-environment."""

import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from tests.recurrent_policies import Counts, counting_policy
from tfdpg import Spec
from tfdpg.acting import BehaviourPolicy, RecurrentSpec
from tfdpg.exploration import OrnsteinUhlenbeck, noisy_actions

SPEC = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.float32([-1]), np.float32([0.25])))


def seen(num_envs=2):
    return (np.zeros((num_envs, 1), np.float32),)


def test_widths_and_the_start():
    spec = Spec(spaces.Box(-1, 1, (1,)), spaces.Box(np.float32([-1, 0]), np.float32([3, 1])))
    recurrent_spec = RecurrentSpec(spec, True, True, (("h", 2), ("c", 1)), stored=True)
    assert (recurrent_spec.previous_width, recurrent_spec.state_width, recurrent_spec.stored_width) == (3, 3, 3)
    np.testing.assert_array_equal(recurrent_spec.initial_state(2), [[1, 0.5, 0, 0, 0, 0]] * 2)
    bare = RecurrentSpec(spec, False, False, (("h", 2),), stored=False)
    assert (bare.previous_width, bare.stored_width, bare.initial_state(1).tolist()) == (0, 0, [[0, 0]])


def test_steps_of_each_sub_environment(rng):
    behaviour = counting_policy(SPEC)
    assert behaviour.step_width == 2
    steps = [behaviour.greedy(seen())]
    behaviour.received(np.array([5.0, 6.0]))
    behaviour.end(np.array([False, True]))
    steps += [behaviour.greedy(seen()), behaviour.greedy(seen())]
    np.testing.assert_allclose(np.array(steps)[:, 0], [[0.1, 0], [0.2, 1], [0.25, 2]])  # [action, state before it]
    np.testing.assert_allclose(np.array(steps)[:, 1], [[0.1, 0], [0.1, 0], [0.2, 1]])
    start = [-0.375, 0, 0]  # the box's center
    recurrent_inputs = behaviour.network.recurrent_inputs
    np.testing.assert_allclose(recurrent_inputs[0], [start, start])
    np.testing.assert_allclose(recurrent_inputs[1], [[0.1, 5, 1], start])
    np.testing.assert_allclose(recurrent_inputs[2][:, ::2], [[0.2, 2], [0.1, 1]])
    behaviour.greedy(seen())
    assert recurrent_inputs[3][0, 0] == 0.25  # what was executed: 0.3 is outside of the box


def test_what_is_remembered_was_executed(rng):
    policy_state = counting_policy(SPEC).policy_state
    policy_state.forward(Counts(), seen(1))
    assert policy_state.record_step(np.float32([[7]])).tolist() == [[7, 0]] and policy_state.state[0, 0] == 0.25
    behaviour = counting_policy(SPEC, scale=10.0)
    step = behaviour.explore(seen(50), 1.0, rng)
    behaviour.greedy(seen(50))
    np.testing.assert_array_equal(behaviour.network.recurrent_inputs[1][:, 0], step[:, 0])
    assert step[:, 0].std() > 0.3 and (step[:, 0] <= 0.25).all()


@pytest.mark.parametrize("stored", [False, True])
def test_random_steps_advance_the_recurrent_state(stored):
    behaviour = counting_policy(SPEC, stored=stored)
    plain = BehaviourPolicy(SPEC, behaviour.network, behaviour.exploration)
    rng = np.random.default_rng(1)
    again = np.random.default_rng(1)
    for t in range(3):
        step = behaviour.act_uniformly(seen(), rng)
        assert step.shape == (2, behaviour.step_width) == (2, 1 + stored)
        np.testing.assert_array_equal(step[:, :1], plain.act_uniformly(seen(), again))
        np.testing.assert_array_equal(step[:, 1:], np.full((2, int(stored)), t))
        np.testing.assert_array_equal(behaviour.policy_state.state[:, 0], step[:, 0])
    assert len(behaviour.network.recurrent_inputs) == 3  # random steps do not call a policy that is not recurrent
    assert (behaviour.greedy(seen())[:, 0] == 0.25).all() and (behaviour.policy_state.state[:, -1] == 4).all()


def test_the_state_is_reset_when_the_number_of_sub_environments_changes():
    behaviour = counting_policy(SPEC)
    for num_envs in (2, 2, 3):
        behaviour.greedy(seen(num_envs))
    assert [recurrent_inputs[:, -1].tolist() for recurrent_inputs in behaviour.network.recurrent_inputs] == [
        [0, 0],
        [1, 1],
        [0, 0, 0],
    ]
    behaviour.end(np.ones(2, bool))  # of sub-environments that no longer exist
    assert behaviour.policy_state.state[:, -1].tolist() == [1, 1, 1]


def test_a_copy_with_another_network_is_reset_and_leaves_the_original_unchanged():
    behaviour = counting_policy(SPEC)
    other = Counts()
    behaviour.greedy(seen())
    before = behaviour.policy_state.state.copy()
    other = behaviour.with_network(Counts())
    other.greedy(seen())
    np.testing.assert_array_equal(other.network.recurrent_inputs[0][:, -1], 0)
    np.testing.assert_array_equal(behaviour.policy_state.state, before)


def test_the_state_goes_through_json():
    spec = SPEC
    behaviour, other = (
        counting_policy(spec, actor=(lambda packed: np.concatenate([packed[-1][:, -1:] / 3 + 0.1] * 2, 1)))
        for _ in range(2)
    )
    for one in (behaviour, other):
        one.exploration = noisy_actions(spec, "ou", 0.1, 0.15, None)
    assert isinstance(behaviour.exploration.noise, OrnsteinUhlenbeck)
    for _ in range(3):
        behaviour.explore(seen(), 1.0, np.random.default_rng(2))
        behaviour.received(np.array([0.1, 0.2]))
    other.restore(json.loads(json.dumps(behaviour.state())))
    assert other.policy_state.state.dtype == np.float32 and (other.policy_state.state[:, 1:] != 0).all()
    steps = [one.explore(seen(), 1.0, np.random.default_rng(3)) for one in (behaviour, other)]
    np.testing.assert_array_equal(*steps)
    np.testing.assert_array_equal(behaviour.policy_state.state, other.policy_state.state)


def test_acting_with_a_memory_imports_no_tensorflow():
    code = (
        "import sys, numpy as np; from gymnasium import spaces; from tfdpg.spec import Spec;"
        "from tfdpg.acting import *; from tfdpg.acting.network import Node;"
        "from tfdpg.exploration import noisy_actions; box = spaces.Box(-1, 1, (1,));"
        "spec = Spec(box, box); rnn = RecurrentSpec(spec, True, True, (('h', 4), ('c', 4)), True);"
        "dense = Node('Dense', (0,), {'activation': 'tanh'}, ((0, (1, 1)), (1, (1,))));"
        "state = Node('ops.GetItem', (1,), {'start': 2, 'stop': 10}, ());"
        "actor = NumpyPolicy(spec, [dense, state, Node('Concatenate', (2, 3), {'axis': -1}, ())], rnn);"
        "actor.load(np.ones(2, np.float32));"
        "one = BehaviourPolicy(spec, actor, noisy_actions(spec, 'gaussian', 0.1, 0.15, None), RecurrentState(rnn));"
        "step = one.explore((np.zeros((1, 1), np.float32),), 1.0, np.random.default_rng(0));"
        "assert step.shape == (1, 9); print({'tensorflow', 'keras', 'ray'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
