"""What tests/test_gpu.py runs in processes of its own, because devices are configured before TensorFlow starts.

    python -m tests.on_device FUNCTION DEVICE DIRECTORY [NAME ...]

Two logical CPUs stand for two devices: "cpu:1" has what must be on the device, and "cpu:0" is where TensorFlow would
place it otherwise.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfdpg
from tests.agents.roster import AGENTS, EACH, OWN, custom_networks, fit_briefly
from tests.environments import Counter
from tests.same_updates import image_encoder, pendulum_image
from tests.training.test_flat_state import assert_same, is_flat, train_in_own_loop
from tfdpg.compat.tensorflow import saved_model_from_bytes

ALL = AGENTS | {
    "mixture": lambda env, **changes: AGENTS["D4PG"](env, critic="mixture", v_min=None, v_max=None, **changes),
    "LSTM": lambda env, **changes: AGENTS["TD3"](env, **MEMORY | changes),
}
MEMORY = {"recurrent": "lstm", "recurrent_units": 4, "sequence_length": 3, "burn_in": 2}
SEEN = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)


def make(name, device, **options):
    return ALL[name](Counter(), device=device, **{"update_every": 5} | options)


def places(agent):
    """The devices of everything that updates read and write."""
    networks = (agent.networks | agent.copies).values()
    found = {variable.value.device for network in networks for variable in network.variables}
    found |= {variable.value.device for optimizer in agent.optimizers.values() for variable in optimizer.variables}
    found |= {variable.device for variable in agent.device_state.values()}
    return found | {agent.learner.counter.device}


def check_places(agent, device):
    (place,) = places(agent)
    assert place.lower().endswith(device), place


def check_free(export):
    """An export runs on any device; TensorFlow reads and writes files on the CPU."""
    (graph,) = saved_model_from_bytes((export / "saved_model.pb").read_bytes()).meta_graphs
    functions = graph.graph_def.library.function
    nodes = [*graph.graph_def.node, *(node for function in functions for node in function.node_def)]
    assert len(nodes) > 20 and {node.device for node in nodes} <= {"", "/device:CPU:0", "/device:CPU:*"}


def outputs(policy):
    """The actions of a policy for three observations; a recurrent one starts from its initial state."""
    return np.asarray(policy(SEEN))


def train(device, directory, *names):
    """Train, save and export agents; everything of theirs is on the device."""
    for name in names:
        agent = make(name, device, jit_compile=device == "gpu:0")
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=40, validation_env=Counter(), validation_episodes=1)
        assert agent.updates >= 30
        check_places(agent, device)
        agent.save(directory / name)
        check_free(agent.export(directory / f"{name}-model"))
        again = tfdpg.load_agent(directory / name)
        check_places(again, device)
        for each in (agent, again):
            each.learn(updates=2)
        check_places(again, device)
        print(name)


def move(device, directory, *names):
    """Resume agents of another device on this one, and export them; the exports are equal."""
    for name in names:
        agent = tfdpg.load_agent(directory / name, device=device, jit_compile=False)
        check_places(agent, device)
        agent.export(directory / f"{name}-moved")
        with tf.device("cpu:0"):
            moved, there = (tfdpg.load(directory / f"{name}-{which}") for which in ("moved", "model"))
            np.testing.assert_array_equal(outputs(moved), outputs(there), name, strict=True)
        before = agent.get_weights()
        logs = agent.learn(updates=4)
        assert np.isfinite(list(logs.values())).all()
        assert any(not np.array_equal(a, b) for a, b in zip(before, agent.get_weights(), strict=True))
        check_places(agent, device)
        agent.save(directory / name, overwrite=True)
        agent.export(directory / f"{name}-model")
        print(name)


def compile_or_not(device, directory, *names):
    """XLA changes weights by rounding only."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for name in names:
        agents = [make(name, device, jit_compile=jit) for jit in (True, False)]
        for agent in agents:
            fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=40)
            check_places(agent, device)
        check_close(*agents)
        print(name)


def check_close(agent, other):
    assert agent.updates == other.updates > 0
    for a, b in zip(agent.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def flat_state(device, directory, *names):
    """`fit` makes updates on flat tensors of the device; a subclass that prevents these makes them on variables."""
    from tests.environments import RandomWalk
    from tests.training.test_own_flat_state import TINY, AssignsRaw, my_td3

    tf.config.experimental.enable_tensor_float_32_execution(False)
    agents = [AGENTS["TD3"](RandomWalk(), device=device, jit_compile=True) for _ in range(2)]
    fit_briefly(agents[0], RandomWalk(), epochs=1, steps_per_epoch=47)
    assert is_flat(agents[0])
    assert all(flat.device.lower().endswith(device) for flat in agents[0].learner._state._flat)
    train_in_own_loop(agents[1], 47)
    check_close(*agents)
    print("flat")
    own = type("Own", (AssignsRaw, my_td3()), {})(RandomWalk(), device=device, **TINY | {"jit_compile": True})
    fit_briefly(own, RandomWalk(), epochs=1, steps_per_epoch=20, verbose=2)
    assert not is_flat(own)
    check_places(own, device)


def minibatches(device, directory, *names):
    """Minibatches of numbers and of images reach the device unchanged."""
    with tf.device(device):
        encoder = image_encoder()
    for name, env, options in (("numbers", Counter(), {}), ("images", pendulum_image(), encoder)):
        agent = tfdpg.TD3(env, device=device, **EACH | options | {"start_steps": 30, "update_after": 10**9})
        with warnings.catch_warnings(action="ignore"):
            agent.fit(env, epochs=1, steps_per_epoch=30, verbose=0)
        packed, _ = agent.data.sample(0, 5)
        assert len(packed) == (2 if name == "images" else 1)
        with tf.device(device):
            for part in packed:
                sent = tf.constant(part)
                assert sent.device.lower().endswith(device)
                np.testing.assert_array_equal(sent.numpy(), part, strict=True)
        agent.learn(updates=2)
        check_places(agent, device)
        print(name)


def replay(device, directory, *names):
    """Training is the same with the replay buffer on the device, whose rows are those of the host."""
    tf.config.experimental.enable_op_determinism()
    options = {"TD3": {}, "TD7": {"replay": "lap"}, "n_step": {"n_step": 3, "replay_size": 40}}
    for name in names:
        kind = "TD3" if name == "n_step" else name
        agents = [make(kind, device, **options[name], replay_device=place) for place in (None, device)]
        for agent in agents:
            fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=60)
            assert agent.updates == 50
        assert_same(*agents)
        rows = agents[1].data.device_replay.rows
        held = agents[1].replay.transition_slots()
        assert rows.device.lower().endswith(device)
        np.testing.assert_array_equal(rows.numpy()[held], agents[1].replay.rows[held, :-1], strict=True)
        print(name)


def replay_with_xla(device, directory, *names):
    """Training by `fit` with XLA is the same except for rounding."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    agents = [make("TD3", device, jit_compile=True, replay_device=place) for place in (None, device)]
    for agent in agents:
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=60)
        assert is_flat(agent)
    check_close(*agents)
    print("replay")


def custom(device, directory, *names):
    """Save an agent with custom networks on the device."""
    with tf.device(device):
        networks = custom_networks(None, tfdpg.Spec.of(Counter()))
    agent = tfdpg.DDPG(Counter(), device=device, **OWN, **networks)
    check_places(agent, device)
    agent.save(directory / "agent")


def command(device, directory, *words):
    """Run a command of `tfdpg`."""
    from tfdpg import cli

    sys.exit(cli.main(list(words)))


if __name__ == "__main__":
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    function, at, where, *others = sys.argv[1:]
    globals()[function](at, Path(where), *others)
