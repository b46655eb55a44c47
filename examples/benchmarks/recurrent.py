"""Updates per second of recurrent TD3 in tfdpg and in skrl (torch), in one run.

    pip install -e '.[benchmark]'
    python examples/benchmarks/recurrent.py --cell lstm --rounds 3

Each library makes its updates on Pendulum-v1 in its own process, pinned to the same core. Each network has a recurrent
layer of 64 units and hidden layers of 64 and 64 units. Minibatches have 64 sequences of 30 steps. tfdpg learns from the
last 20 steps, after 10 steps of burn-in; skrl has no burn-in and learns from all 30. The time of an update includes
sampling. Rounds are interleaved.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pinned

UNITS = 64
BATCH = 64
STEPS = 20
BURN_IN = 10
FILLED = 2500


def tfdpg(cell: str) -> Callable[[int], Any]:
    """Return a function that makes updates of tfdpg's TD3."""
    import tfdpg

    env = gym.make("Pendulum-v1")
    memory = {"recurrent": cell, "recurrent_units": UNITS, "sequence_length": STEPS, "burn_in": BURN_IN}
    agent = tfdpg.TD3(env, hidden_units=(64, 64), batch_size=BATCH, update_after=10**9, **memory)
    with warnings.catch_warnings(action="ignore"):  # about a run without updates
        agent.fit(env, epochs=1, steps_per_epoch=FILLED, verbose=0)
    return lambda updates: agent.learn(updates=updates)


def skrl(cell: str) -> Callable[[int], Any]:
    """Return a function that makes updates of skrl's TD3_RNN."""
    import torch
    from skrl.agents.torch.td3 import TD3_CFG, TD3_RNN
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, Model
    from skrl.resources.noises.torch import GaussianNoise
    from torch import nn

    torch.set_num_threads(1)
    env = gym.make("Pendulum-v1")
    length = STEPS + BURN_IN
    observations = env.observation_space
    actions = env.action_space
    states = 2 if cell == "lstm" else 1

    class Network(DeterministicMixin, Model):
        def __init__(self, is_critic: bool):
            Model.__init__(self, observation_space=observations, action_space=actions, device="cpu")
            DeterministicMixin.__init__(self)
            kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell]
            self.is_critic = is_critic
            self.memory = kind(observations.shape[0], UNITS, batch_first=True)
            layers = [nn.Linear(UNITS + is_critic, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
            self.torso = nn.Sequential(*layers)

        def get_specification(self) -> dict:
            return {"rnn": {"sequence_length": length, "sizes": [(1, 1, UNITS)] * states}}

        def compute(self, inputs: dict, role: str) -> tuple:
            x = inputs["observations"]
            before = inputs["rnn"]
            steps = 1
            if len(x) > 1:
                steps = length
                before = [part.view(1, -1, length, UNITS)[:, :, 0].contiguous() for part in before]
            x, after = self.memory(x.view(-1, steps, x.shape[-1]), tuple(before) if states == 2 else before[0])
            x = x.reshape(-1, UNITS)
            value = self.torso(torch.cat([x, inputs["taken_actions"]], 1)) if self.is_critic else 0
            output = value if self.is_critic else 2 * torch.tanh(self.torso(x))
            return output, {"rnn": list(after) if states == 2 else [after]}

    options = TD3_CFG()
    options.batch_size = BATCH
    options.smooth_regularization_clip = 0.5
    options.learning_starts = 0
    options.exploration_noise = options.smooth_regularization_noise = GaussianNoise
    options.exploration_noise_kwargs = {"mean": 0, "std": 0.1, "device": "cpu"}
    options.smooth_regularization_noise_kwargs = {"mean": 0, "std": 0.2, "device": "cpu"}
    options.experiment.write_interval = options.experiment.checkpoint_interval = 0
    names = ("policy", "target_policy", "critic_1", "critic_2", "target_critic_1", "target_critic_2")
    agent = TD3_RNN(
        models={name: Network("critic" in name) for name in names},
        memory=RandomMemory(memory_size=2 * FILLED, num_envs=1, device="cpu"),
        cfg=options,
        observation_space=observations,
        state_space=None,
        action_space=actions,
        device="cpu",
    )
    agent.init()
    agent.training = True
    when = {"timestep": 0, "timesteps": 10**6}
    observation = torch.tensor(env.reset(seed=0)[0][None])
    for _ in range(FILLED):
        with torch.no_grad():
            action, _ = agent.act(observation, None, **when)
        following, reward, terminated, truncated, _ = env.step(action.numpy()[0])
        following = torch.tensor(following[None])
        agent.record_transition(
            observations=observation,
            states=None,
            actions=action,
            rewards=torch.tensor([[float(reward)]]),
            next_observations=following,
            next_states=None,
            terminated=torch.tensor([[terminated]]),
            truncated=torch.tensor([[truncated]]),
            infos={},
            **when,
        )
        observation = torch.tensor(env.reset()[0][None]) if terminated or truncated else following
    agent.enable_models_training_mode(True)
    return lambda updates: [agent.update(**when) for _ in range(updates)]


LIBRARIES = {"tfdpg": tfdpg, "skrl": skrl}


def measure(library: str, cell: str) -> float:
    """Measure the updates per second in this process: the best of three times 100, after 50 to warm up."""
    learn = LIBRARIES[library](cell)
    speeds = []
    learn(50)
    for _ in range(3):
        began = time.perf_counter()
        learn(100)
        speeds.append(100 / (time.perf_counter() - began))
    return max(speeds)


def main() -> None:
    """Measure both libraries in turn; print the speeds of each round and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", choices=("lstm", "gru", "rnn"), default="lstm")
    parser.add_argument("--rounds", type=pinned.count, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--child", choices=LIBRARIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(measure(args.child, args.cell))
        return
    speeds: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    for _ in range(args.rounds):
        for library, measured in speeds.items():
            words = ["--child", library, "--cell", args.cell]
            measured.append(pinned.in_pinned_process(__file__, [args.core], *words))
        print({library: round(measured[-1], 1) for library, measured in speeds.items()}, flush=True)
    ratio = np.divide(*(statistics.median(measured) for measured in speeds.values()))
    print(f"{args.cell}: tfdpg makes {ratio:.2f} times as many updates a second as skrl")


if __name__ == "__main__":
    main()
