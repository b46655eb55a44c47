"""Compare what two trees of tfdpg learn: the state of each agent after 500 updates, for many combinations of options.

    git worktree add /tmp/before <commit>
    python tests/same_updates.py /tmp/before .            # without XLA: every number must be equal
    python tests/same_updates.py /tmp/before . --xla      # with XLA: up to 1e-6 of the largest value of an array
    python tests/same_updates.py /tmp/before . --cases td3 acer-discrete

Each tree runs in its own process, and both processes run at the same time. For each case, the script compares:

- the actions taken while training, or the history that `fit` returned;
- the weights of each network and target network, named as `Agent.save_weights` names them: `pi/0`, `q1_target/3`;
- the list that `Agent.get_weights` returns;
- the variables of each optimizer, named by the key in `Agent.optimizers`: `pi optimizer/2`;
- the predictions for fixed observations;
- for some cases, all of this again after the agent was saved, loaded and trained for 50 more updates.

It prints one line for each case, with the seconds of processor time that each tree took. The exit status is 1 if a case
differs, or raises an error in either tree.
The script uses only the public interface of tfdpg, so that it can also run trees that are older than itself.
"""

import argparse
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

UPDATES = 500
MORE_UPDATES = 50
MOST_STEPS = 20_000

Arrays = dict[str, np.ndarray]


# Environments.


class PendulumDict(gym.ObservationWrapper):
    """Pendulum with a Dict observation that has a Discrete part."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        angle = spaces.Box(-1, 1, (2,), np.float32)
        speed = spaces.Box(-8, 8, (1,), np.float32)
        self.observation_space = spaces.Dict(angle=angle, speed=speed, side=spaces.Discrete(2, start=1))

    def observation(self, observation: np.ndarray) -> dict[str, Any]:
        """Split the observation into its parts."""
        return {"angle": observation[:2], "speed": observation[2:], "side": 1 + int(observation[0] > 0)}


class PendulumImage(gym.ObservationWrapper):
    """Pendulum as an image of one bright pixel: its place is the angle, and its brightness is the speed."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (12, 12, 1), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Draw the observation."""
        image = np.zeros((12, 12, 1), np.uint8)
        row, column = np.round(5.5 + 5 * observation[:2]).astype(int)
        image[row, column] = 135 + 15 * observation[2]
        return image


def pendulum() -> gym.Env:
    """Make a Pendulum."""
    return gym.make("Pendulum-v1")


def cart_pole() -> gym.Env:
    """Make a CartPole."""
    return gym.make("CartPole-v1")


def pendulum_dict() -> gym.Env:
    """Make a Pendulum with a Dict observation."""
    return PendulumDict(pendulum())


def pendulum_image() -> gym.Env:
    """Make a Pendulum with an image as its observation."""
    return PendulumImage(pendulum())


def pendulums() -> gym.vector.VectorEnv:
    """Make three sub-environments that are reset in the step after an episode's last one."""
    return gym.make_vec("Pendulum-v1", num_envs=3, vectorization_mode="sync", max_episode_steps=60)


def cart_poles() -> gym.vector.VectorEnv:
    """Make four sub-environments that are reset in the last step of an episode."""
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync", vector_kwargs=mode)


# Options that are objects. They are made in the process that trains, because they need TensorFlow.


def layer(units: int, seed: int, activation: str | None = None, l2: float = 0.0) -> Any:
    """Make a dense layer whose initial weights depend only on `seed`."""
    import keras

    regularizer = keras.regularizers.L2(l2) if l2 else None
    kernel: Any = keras.initializers.GlorotUniform(seed)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, kernel_regularizer=regularizer)


def policy(seed: int) -> Any:
    """Make a policy for Pendulum."""
    import keras

    inputs = keras.Input((3,))
    action = layer(1, seed + 1, "tanh")(layer(24, seed, "elu", l2=1e-3)(inputs))
    return keras.Model(inputs, keras.layers.Rescaling(2.0)(action))


def critic(seed: int, *, normalization: bool = False, head: Any = None, units: int = 1) -> Any:
    """Make a critic for Pendulum, which ends in a dense layer and, if given, in a head."""
    import keras

    inputs = [keras.Input((3,)), keras.Input((1,))]
    outputs: Any = layer(24, seed, "relu", l2=1e-3)(keras.layers.Concatenate()(inputs))
    if normalization:
        outputs = keras.layers.BatchNormalization()(outputs)
    outputs = layer(units, seed + 1)(outputs)
    return keras.Model(inputs, outputs if head is None else head(outputs))


def optimizers() -> dict[str, Any]:
    """Return one optimizer with momentum and one with a learning-rate schedule."""
    import keras

    schedule: Any = keras.optimizers.schedules.PolynomialDecay(3e-3, 400, 1e-4)
    momentum = keras.optimizers.SGD(1e-3, momentum=0.9, nesterov=True, clipnorm=1.0)
    return {"pi_optimizer": momentum, "q_optimizer": keras.optimizers.Adam(schedule, weight_decay=1e-3)}


def momentum_with_schedule() -> dict[str, Any]:
    """Return an optimizer for ACER that has momentum and a learning-rate schedule."""
    import keras

    schedule: Any = keras.optimizers.schedules.ExponentialDecay(1e-3, 200, 0.5)
    return {"optimizer": keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=5.0)}


def networks() -> dict[str, Any]:
    """Return a custom policy and a custom critic with batch normalization."""
    return {"pi": policy(1), "q1": critic(3, normalization=True)}


def twin_networks() -> dict[str, Any]:
    """Return two custom critics; the policy is built by tfdpg."""
    return {"q1": critic(3), "q2": critic(5)}


def custom_policy() -> dict[str, Any]:
    """Return a custom policy; the critics are built by tfdpg."""
    return {"pi": policy(1)}


def categorical_critic() -> dict[str, Any]:
    """Return a custom critic of a return distribution."""
    import keras

    import tfdpg

    kernel: Any = keras.initializers.GlorotUniform(9)
    return {"q1": critic(3, head=tfdpg.networks.Categorical(-20.0, 0.0, 21, kernel_initializer=kernel), units=24)}


def discrete_networks() -> dict[str, Any]:
    """Return a custom policy and a custom critic for ACER on CartPole."""
    import keras

    policy_layers = [layer(24, 1, "tanh"), layer(2, 2, "softmax")]
    critic_layers = [layer(24, 3, "tanh"), layer(2, 4)]
    return {
        "pi": keras.Sequential([keras.Input((4,)), *policy_layers]),
        "q1": keras.Sequential([keras.Input((4,)), *critic_layers]),
    }


def box_networks() -> dict[str, Any]:
    """Return a custom policy, advantage and state value for ACER on Pendulum."""
    import keras

    values = keras.Sequential([keras.Input((3,)), layer(24, 7, "tanh"), layer(1, 8)])
    return {"pi": policy(1), "q1": critic(3), "v": values}


def dense_encoder() -> dict[str, Any]:
    """Return an encoder for the observations of Pendulum."""
    import keras

    return {"encoder": keras.Sequential([keras.Input((3,)), layer(8, 9, "tanh")])}


def image_encoder() -> dict[str, Any]:
    """Return an encoder with a convolution for the observations of `PendulumImage`."""
    import keras

    kernel: Any = keras.initializers.GlorotUniform(9)
    convolution = keras.layers.Conv2D(4, 3, 2, activation="relu", kernel_initializer=kernel)
    layers = [keras.layers.Rescaling(1 / 255), convolution, keras.layers.Flatten()]
    return {"encoder": keras.Sequential([keras.Input((12, 12, 1), dtype="uint8"), *layers])}


def cell() -> dict[str, Any]:
    """Return a recurrent cell of Keras."""
    import keras

    kernel: Any = keras.initializers.GlorotUniform(9)
    return {"recurrent": keras.layers.GRUCell(6, kernel_initializer=kernel)}


def normalized_recipe() -> dict[str, Any]:
    """Return the recipe with fewer random steps at the start, so that the policy also acts."""
    import tfdpg

    return tfdpg.recipes.normalized | {"start_steps": 100}


def half_rewards(reward: np.ndarray, step: int, steps: int | None) -> np.ndarray:
    """Halve the rewards that the agent stores."""
    return reward / 2


def callables() -> dict[str, Any]:
    """Return a noise schedule and a reward shaper."""
    import tfdpg

    return {"act_noise_schedule": tfdpg.exploration.Linear(1.0, 0.1, 500), "reward_shaper": half_rewards}


# How an agent trains. Each function returns what happened on the way.


def train_stepwise(agent: Any, env: Any, updates: int) -> Arrays:
    """Train in a custom loop until the agent has made `updates` updates; return the actions."""
    is_vector = isinstance(env, gym.vector.VectorEnv)
    seed = [agent.next_reset_seed(i) for i in range(env.num_envs)] if is_vector else agent.next_reset_seed(0)
    observation, _ = env.reset(seed=seed)
    actions = []
    while agent.updates < updates:
        if len(actions) == MOST_STEPS:
            raise RuntimeError(f"{agent} made {agent.updates} updates in {MOST_STEPS} steps.")
        actions.append(np.array(agent.act(observation)))
        next_observation, reward, terminated, truncated, info = env.step(actions[-1])
        agent.observe(reward, next_observation, terminated, truncated, info.get("final_obs"))
        agent.learn()
        observation = next_observation
        if not is_vector and (terminated or truncated):
            observation, _ = env.reset(seed=agent.next_reset_seed(0))
    return {"actions": np.array(actions)}


def train_with_fit(agent: Any, env: Any, updates: int) -> Arrays:
    """Train with `fit` and a validation environment; return the history."""
    steps = updates // 3
    validation = {"validation_env": pendulum(), "validation_episodes": 2}
    history = agent.fit(env, epochs=4, steps_per_epoch=steps, max_ep_len=40, verbose=0, **validation).history
    return {f"history/{name}": np.array(values) for name, values in history.items() if "second" not in name}


def train_offline(agent: Any, env: Any, updates: int) -> Arrays:
    """Train with `fit_offline` on random transitions; return the history."""
    rng = np.random.default_rng(1)
    ends = np.arange(400) % 50 == 49
    data = {
        "observations": rng.normal(size=(400, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(400, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (400, 1)).astype(np.float32),
        "rewards": rng.normal(size=400),
        "terminations": ends & (rng.random(400) < 0.5),
        "truncations": ends,
    }
    history = agent.fit_offline(data, epochs=2, steps_per_epoch=updates // 2, verbose=0).history
    return {f"history/{name}": np.array(values) for name, values in history.items() if "second" not in name}


class Case(NamedTuple):
    """A combination of an agent, an environment and options.

    Attributes:
        agent: the name of the agent's class.
        environment: makes the environment.
        options: the agent's options.
        objects: returns further options, which need TensorFlow.
        train: trains the agent.
        resumes: whether the agent is also saved, loaded and trained further.
    """

    agent: str
    environment: Callable[[], Any]
    options: dict[str, Any]
    objects: Callable[[], dict[str, Any]] = dict
    train: Callable[[Any, Any, int], Arrays] = train_stepwise
    resumes: bool = False


SMALL = {"hidden_units": (32, 32), "replay_size": 1000, "seed": 3}
STEPS = SMALL | {"batch_size": 16, "start_steps": 100, "update_after": 100, "update_every": 25}
SMALL_CUSTOM = {name: value for name, value in SMALL.items() if name != "hidden_units"}
STEPS_CUSTOM = {name: value for name, value in STEPS.items() if name != "hidden_units"}
SEQUENCES = {"sequence_length": 6, "burn_in": 4}
MEMORY = SEQUENCES | {"recurrent_units": 8}
ATOMS = {"v_min": -20.0, "v_max": 0.0}
WINDOWS = SMALL | {"batch_size": 8, "replay_start": 100}
WINDOWS_CUSTOM = SMALL_CUSTOM | {"batch_size": 8, "replay_start": 100}
SHORT = {"n_steps": 20}
RANK = {"replay": "prioritized", "alpha": 0.7, "beta": 0.5, "beta_steps": 300}
CROSS_Q = {"norm": "batch", "target_networks": False}
EMBEDDINGS = {"embedding_units": 8, "encoder_units": (16,), "target_update_every": 30, "keep_best_policy": False}
MIXED = {
    **{"l2": 1e-4, "clip_value": 0.5, "policy_delay": 3, "target_update_every": 2, "update_every": 10},
    **{"gradient_steps": 7, "noise": "ou", "ou_theta": 0.2, "act_noise": 0.2, "target_noise": 0.3},
    **{"noise_clip": 0.4, "target_noise_decay": 0.001, "target_noise_min": 0.5, "gamma": 0.95, "polyak": 0.99},
    **{"activation": "tanh", "pi_lr": 5e-4, "q_lr": 2e-3, "beta_1": 0.8, "replay_size": 300, "n_step": 3},
}
PASSES = {"epochs_per_round": 2, "max_minibatches_per_round": 20}
CUT = {"retrace_lambda": 0.9, "c": 2.0, "delta": 0.5, "alpha": 0.9, "reward_scale": 0.1, "gamma": 0.95}

CASES = {
    "ddpg": Case("DDPG", pendulum, STEPS),
    "ddpg-ou-prioritized": Case("DDPG", pendulum, STEPS | {"noise": "ou", "replay": "prioritized"}),
    "ddpg-batch-norm": Case("DDPG", pendulum, STEPS | {"norm": "batch"}),
    "ddpg-batch-norm-no-targets": Case("DDPG", pendulum, STEPS | CROSS_Q),
    "ddpg-networks": Case("DDPG", pendulum, STEPS_CUSTOM, networks, resumes=True),
    "ddpg-optimizers": Case("DDPG", pendulum, STEPS, optimizers),
    "ddpg-episodes": Case("DDPG", pendulum, STEPS | {"update_every": "episode", "target_update_every": 3, "l2": 1e-4}),
    "ddpg-dict": Case("DDPG", pendulum_dict, STEPS | {"normalize_observations": True, "clip_norm": 0.5}),
    "ddpg-lap": Case("DDPG", pendulum, STEPS | {"replay": "lap"}),
    "td7": Case("TD7", pendulum, STEPS | EMBEDDINGS, resumes=True),
    "td7-batch-norm-no-targets": Case("TD7", pendulum, STEPS | EMBEDDINGS | CROSS_Q | {"replay": "uniform"}),
    "ddpg-fit": Case("DDPG", pendulum, STEPS, train=train_with_fit),
    "td3": Case("TD3", pendulum, STEPS),
    "td3-prioritized": Case("TD3", pendulum, STEPS | {"replay": "prioritized", "n_step": 3}),
    "td3-prioritized-betas": Case("TD3", pendulum, STEPS | RANK | {"replay_size": 300}, resumes=True),
    "td3-passes": Case("TD3", pendulum, STEPS | {"epochs_per_round": 1, "policy_gradient": "min"}),
    "td3-normalized": Case(
        "TD3", pendulum, STEPS | {"normalize_observations": True, "clip_norm": 1.0, "l2": 1e-4}, resumes=True
    ),
    "td3-delayed-ddpg": Case("TD3", pendulum, STEPS | {"critics": 1, "target_update_every": 7, "bc_weight": 0.1}),
    "td3-batch-norm-no-targets": Case("TD3", pendulum, STEPS | CROSS_Q | {"policy_delay": 3}, resumes=True),
    "td3-no-targets": Case("TD3", pendulum, STEPS | {"target_networks": False}),
    "td3-recipe-normalized": Case("TD3", pendulum, STEPS, normalized_recipe),
    "td3-layer-norm": Case("TD3", pendulum, STEPS | {"norm": "layer"}),
    "td3-blocks": Case("TD3", pendulum, STEPS | {"blocks": 2, "hidden_units": (16,)}),
    "td3-optimizers": Case("TD3", pendulum, STEPS, optimizers, resumes=True),
    "td3-twin-networks": Case("TD3", pendulum, STEPS, twin_networks),
    "td3-policy": Case("TD3", pendulum, STEPS | {"l2": 1e-4}, custom_policy),
    "td3-encoder": Case("TD3", pendulum, STEPS, dense_encoder),
    "td3-image": Case("TD3", pendulum_image, STEPS, image_encoder),
    "td3-dict": Case("TD3", pendulum_dict, STEPS | {"n_step": 2}),
    "td3-mixed": Case("TD3", pendulum, STEPS | MIXED, callables),
    "td3-vector": Case("TD3", pendulums, STEPS | {"n_step": 3, "noise": "ou"}),
    "td3-fit-vector": Case("TD3", pendulums, STEPS, train=train_with_fit),
    "td3-offline": Case(
        "TD3", pendulum, STEPS | {"bc_weight": 0.4, "normalize_observations": True}, train=train_offline
    ),
    "d4pg": Case("D4PG", pendulum, STEPS | ATOMS),
    "d4pg-twin-uniform": Case("D4PG", pendulum, STEPS | ATOMS | {"critics": 2, "replay": "uniform"}),
    "d4pg-auto": Case("D4PG", pendulum, STEPS),
    "d4pg-running": Case("D4PG", pendulum, STEPS | {"v_range": "running", "clip_action_gradient": 0.1}, resumes=True),
    "d4pg-mixture": Case("D4PG", pendulum, STEPS | {"critic": "mixture"}),
    "d4pg-scalar": Case("D4PG", pendulum, STEPS | {"critic": "scalar"}),
    "d4pg-batch-norm-no-targets": Case("D4PG", pendulum, STEPS | ATOMS | CROSS_Q),
    "d4pg-betas": Case("D4PG", pendulum, STEPS | ATOMS | RANK | {"normalize_weights": True, "polyak": 0.99}),
    "d4pg-network": Case("D4PG", pendulum, STEPS, categorical_critic),
    "d4pg-control": Case("D4PG", pendulum, STEPS_CUSTOM | ATOMS | {"torso": "control"}),
    "d4pg-layer-norm": Case("D4PG", pendulum, STEPS_CUSTOM | ATOMS | {"torso": "layer_norm"}),
    "d4pg-two-branch": Case("D4PG", pendulum_dict, STEPS | ATOMS | {"torso": "two_branch"}),
    "td3-lstm": Case("TD3", pendulum, STEPS | MEMORY | {"recurrent": "lstm", "n_step": 2}),
    "td3-cell-passes": Case("TD3", pendulum, STEPS | SEQUENCES | PASSES, cell),
    "ddpg-gru-prioritized": Case(
        "DDPG", pendulum, STEPS | MEMORY | {"recurrent": "gru", "replay": "prioritized"}, resumes=True
    ),
    "d4pg-rnn": Case("D4PG", pendulum, STEPS | ATOMS | MEMORY | {"recurrent": "rnn", "stored_state": False}),
    "d4pg-lstm-layers": Case(
        "D4PG",
        pendulum,
        STEPS
        | ATOMS
        | SEQUENCES
        | {"recurrent": "lstm", "recurrent_units": (6, 5), "remembers": ("observation", "action", "reward")}
        | {"n_step": 3, "normalize_observations": True, "norm": "layer"},
    ),
    "d4pg-gru-vector": Case("D4PG", pendulums, STEPS | ATOMS | MEMORY | {"recurrent": "gru", "critics": 2}),
    "acer-discrete": Case("ACER", cart_pole, WINDOWS),
    "acer-gaussian": Case("ACER", pendulum, WINDOWS),
    "acer-learnt": Case("ACER", pendulum, WINDOWS | {"learn_sigma": True}),
    "acer-separate": Case("ACER", pendulum, WINDOWS | SHORT | {"dueling": False}),
    "acer-discrete-shared": Case("ACER", cart_pole, WINDOWS | CUT | {"shared_torso": True}, resumes=True),
    "acer-gaussian-shared": Case("ACER", pendulum, WINDOWS | SHORT | {"shared_torso": True}, dense_encoder),
    "acer-discrete-average": Case("ACER", cart_pole, WINDOWS | {"critic_average": 0.9}),
    "acer-gaussian-average": Case(
        "ACER",
        pendulum,
        WINDOWS | SHORT | {"critic_average": 0.9, "shared_torso": True, "learn_sigma": True, "ent_coef": 0.01},
        resumes=True,
    ),
    "acer-optimizer": Case("ACER", cart_pole, WINDOWS, momentum_with_schedule),
    "acer-discrete-networks": Case("ACER", cart_pole, WINDOWS_CUSTOM | {"clip_norm": 1.0}, discrete_networks),
    "acer-gaussian-networks": Case("ACER", pendulum, WINDOWS_CUSTOM | SHORT, box_networks),
    "acer-normalized": Case(
        "ACER", pendulum, WINDOWS | SHORT | {"normalize_observations": True, "on_policy": True, "replay_ratio": 2.0}
    ),
    "acer-dict": Case("ACER", pendulum_dict, WINDOWS | SHORT),
    "acer-vector": Case("ACER", cart_poles, WINDOWS),
}


# What one tree learns, in a process of its own.


def learn_cases(cases: list[str], xla: bool, directory: Path) -> None:
    """Run cases and write a file `<case>.npz` into `directory` for each of them."""
    for case in cases:
        start = time.process_time()
        try:
            learnt = learn(case, xla)
        except Exception:
            learnt = {"error": np.array(traceback.format_exc())}
        gc.collect()
        scratch = directory / f"{case}.part"
        with scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **learnt, seconds=np.array(time.process_time() - start))
        scratch.rename(directory / f"{case}.npz")


def learn(name: str, xla: bool) -> Arrays:
    """Train the agent of a case and return everything that is compared, by name."""
    import tfdpg

    case = CASES[name]
    env = case.environment()
    agent = getattr(tfdpg, case.agent)(env, **case.options | case.objects(), jit_compile=xla)
    arrays = case.train(agent, env, UPDATES) | state_of(agent, env)
    if case.resumes:
        with tempfile.TemporaryDirectory() as directory:
            agent.save(f"{directory}/agent")
            agent = tfdpg.load_agent(f"{directory}/agent")
        resumed = case.train(agent, env, agent.updates + MORE_UPDATES) | state_of(agent, env)
        arrays |= {f"resumed {name}": array for name, array in resumed.items()}
    env.close()
    return arrays


def state_of(agent: Any, env: Any) -> Arrays:
    """Return the weights, the variables of the optimizers and the predictions of an agent."""
    import h5py

    arrays = {"updates": np.array(agent.updates)}
    with tempfile.TemporaryDirectory() as directory:
        agent.save_weights(f"{directory}/agent.weights.h5")
        with h5py.File(f"{directory}/agent.weights.h5") as file:
            for network, group in file.items():
                arrays |= {f"{network}/{i}": group[i][()] for i in sorted(group, key=int)}
    arrays["get_weights()"] = np.concatenate([weight.ravel() for weight in agent.get_weights()])
    for name, optimizer in agent.optimizers.items():
        for i, variable in enumerate(optimizer.variables):
            arrays[f"{name} optimizer/{i}"] = np.array(variable)
    return arrays | {"predictions": predictions(agent, env)}


def predictions(agent: Any, env: Any) -> np.ndarray:
    """Return the greedy actions for 12 random observations, or 3 sequences of 4 observations for a recurrent agent."""
    space = env.single_observation_space if isinstance(env, gym.vector.VectorEnv) else env.observation_space
    space.seed(5)
    batch: Any = concatenate(space, [space.sample() for _ in range(12)], create_empty_array(space, 12))
    if getattr(agent.options, "recurrent", None) is None:
        return agent.predict(batch)
    sequences = np.reshape(batch, (3, 4, -1))
    if "reward" not in agent.options.remembers:
        return agent.predict(sequences)
    policy = agent.policy()
    actions = []
    for t in range(4):
        actions.append(policy(sequences[:, t]))
        policy.received(np.full(3, t - 2.0))
    return np.array(actions)


# The comparison of two trees.


def start(tree: Path, cases: list[str], xla: bool, directory: Path) -> subprocess.Popen[bytes]:
    """Start the process that runs the cases with one tree."""
    environment = os.environ | {"PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    script = Path(__file__).resolve()
    command = [sys.executable, script, "--learn", directory, "--cases", *cases, *(["--xla"] if xla else [])]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=log)


def result(process: subprocess.Popen[bytes], directory: Path, case: str) -> Arrays:
    """Wait for the result of a case; it has the key `error` if there was an error."""
    file = directory / f"{case}.npz"
    while not file.exists():
        if process.poll() is not None and not file.exists():
            log = (directory / "log").read_text(errors="replace")[-2000:]
            return {"error": np.array(f"The process ended with the status {process.returncode}:\n{log}")}
        time.sleep(0.05)
    with np.load(file) as arrays:
        return dict(arrays)


def differences(before: Arrays, after: Arrays, tolerance: float) -> list[str]:
    """Describe how the results of two trees differ, with one entry for each network, optimizer or other group."""
    found = []
    for which, names in (("first", before.keys() - after.keys()), ("second", after.keys() - before.keys())):
        if names:
            groups = sorted({group_of(name) for name in names})
            found.append(f"only the {which} tree has {len(names)} arrays, of {', '.join(groups)}")
    shared = [name for name in before if name in after]
    for group, names in itertools.groupby(shared, group_of):
        described = [difference(before[name], after[name], tolerance) for name in names]
        worst = max(described)
        if worst[0] > tolerance:
            count = sum(size > tolerance for size, _ in described)
            of = f" ({count} of {len(described)} arrays)" if len(described) > 1 else ""
            at = ""
            if group.endswith("actions") and np.isfinite(worst[0]):
                unequal = (before[group] != after[group]).reshape(len(before[group]), -1).any(axis=1)
                at = f" from step {int(unequal.argmax()) + 1} on"
            found.append(f"{group} {worst[1]}{of}{at}")
    return found


def group_of(name: str) -> str:
    """Return the name of the network, optimizer or history that an array belongs to."""
    return name.rpartition("/")[0] or name


def difference(before: np.ndarray, after: np.ndarray, tolerance: float) -> tuple[float, str]:
    """Return the largest difference, relative to the largest value, and a description of it."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return np.inf, f"{before.dtype}{list(before.shape)} and {after.dtype}{list(after.shape)}"
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return np.inf, "not finite"
    if np.array_equal(before, after):
        return 0.0, ""
    errors = np.abs(before.astype(np.float64) - after.astype(np.float64)) / max(np.abs(before).max(), 1e-30)
    return float(errors.max()), f"by {errors.max():.2g}"


def compare(trees: list[Path], cases: list[str], xla: bool) -> int:
    """Run the cases with two trees, print the comparison, and return the exit status."""
    begin = time.monotonic()
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        directories = [Path(scratch, name) for name in ("before", "after")]
        for directory in directories:
            directory.mkdir()
        processes = [start(tree, cases, xla, directory) for tree, directory in zip(trees, directories, strict=True)]
        try:
            for case in cases:
                results = [result(*each, case) for each in zip(processes, directories, strict=True)]
                line = report(case, results[0], results[1], 1e-6 if xla else 0.0)
                failures += " same: " not in line.splitlines()[0]
                print(line, flush=True)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    print(f"{len(cases) - failures} of {len(cases)} cases are the same. {time.monotonic() - begin:.0f} s")
    return int(failures > 0)


def report(case: str, before: Arrays, after: Arrays, tolerance: float) -> str:
    """Return the line for a case."""
    seconds = " and ".join(f"{float(each.pop('seconds', np.nan)):.1f}" for each in (before, after))
    errors = [
        f"{case:27}ERROR in the {which} tree:\n{each['error']}"
        for which, each in (("first", before), ("second", after))
        if "error" in each
    ]
    if errors:
        return "\n".join(errors)
    found = differences(before, after, tolerance)
    if found:
        return f"{case:27}DIFFERENT: {'; '.join(found)}; {seconds} s"
    return f"{case:27}same: {len(before)} arrays, {seconds} s"


def main() -> int:
    """Compare two trees, or run the cases with one; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="the tree before and the tree after the change")
    parser.add_argument("--xla", action="store_true", help="compile the updates with XLA")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="run only these cases")
    parser.add_argument("--learn", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.learn:
        learn_cases(options.cases, options.xla, options.learn)
        return 0
    if len(options.trees) != 2:
        parser.error(f"two trees are needed. Received: {len(options.trees)}")
    if missing := [str(tree) for tree in options.trees if not (tree / "tfdpg").is_dir()]:
        parser.error(f"these directories have no package tfdpg: {', '.join(missing)}")
    return compare(options.trees, options.cases, options.xla)


if __name__ == "__main__":
    sys.exit(main())
