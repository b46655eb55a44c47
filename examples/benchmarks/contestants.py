"""TD3 in tfdpg and other libraries, with the same networks, batch size and schedule, for `throughput.py`.

Each function builds an agent, and returns a function that trains it for a number of further environment steps.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

RANDOM_STEPS = 500
"""Steps with random actions, before the first update."""

Train = Callable[[int], None]


def tfdpg(env_id: str, hidden: int, batch: int, update_every: int) -> Train:
    """Build the agent of tfdpg, which trains with its progress bar and a CSVLogger."""
    import gymnasium as gym
    import keras

    import tfdpg

    env = gym.make(env_id)
    schedule = {"start_steps": RANDOM_STEPS, "update_after": RANDOM_STEPS, "update_every": update_every}
    agent = tfdpg.TD3(env, hidden_units=(hidden, hidden), batch_size=batch, **schedule)
    logger = keras.callbacks.CSVLogger(str(Path(tempfile.mkdtemp()) / "progress.csv"), append=True)

    def train(steps: int) -> None:
        agent.fit(env, epochs=1, steps_per_epoch=steps, callbacks=[logger])

    return train


def sbx(env_id: str, hidden: int, batch: int, update_every: int) -> Train:
    """Build the agent of SBX (JAX)."""
    import sbx

    return _baselines(sbx.TD3, env_id, hidden, batch, update_every, {})


def sb3(env_id: str, hidden: int, batch: int, update_every: int) -> Train:
    """Build the agent of Stable-Baselines3 (torch)."""
    import stable_baselines3

    return _baselines(stable_baselines3.TD3, env_id, hidden, batch, update_every, {"device": "cpu"})


def _baselines(algorithm: type, env_id: str, hidden: int, batch: int, update_every: int, options: dict) -> Train:
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    env = gym.make(env_id)
    size = env.action_space.shape[0]
    model = algorithm(
        "MlpPolicy",
        env,
        batch_size=batch,
        learning_starts=RANDOM_STEPS,
        train_freq=update_every,
        gradient_steps=update_every,
        action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)),
        policy_kwargs={"net_arch": [hidden, hidden]},
        **options,
    )
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def skrl(env_id: str, hidden: int, batch: int, update_every: int) -> Train:
    """Build the agent of skrl (torch), which makes an update after each step."""
    import gymnasium as gym
    import torch
    from skrl.agents.torch.td3 import TD3, TD3_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, Model
    from skrl.resources.noises.torch import GaussianNoise
    from skrl.trainers.torch import SequentialTrainer

    if update_every != 1:
        raise ValueError("skrl updates after each step.")

    class Network(DeterministicMixin, Model):
        def __init__(self, inputs: int, outputs: int, last: list):
            Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
            DeterministicMixin.__init__(self)
            relu = torch.nn.ReLU
            linear = torch.nn.Linear
            self.net = torch.nn.Sequential(
                linear(inputs, hidden), relu(), linear(hidden, hidden), relu(), linear(hidden, outputs), *last
            )

        def compute(self, inputs: dict, role: str = "") -> tuple:
            x = inputs["observations"]
            return self.net(x if "policy" in role else torch.cat([x, inputs["taken_actions"]], dim=1)), {}

    env = wrap_env(gym.make(env_id), verbose=False)
    obs = env.observation_space.shape[0]
    act = env.action_space.shape[0]
    models = {name: Network(obs, act, [torch.nn.Tanh()]) for name in ("policy", "target_policy")}
    models |= {f"{kind}critic_{i}": Network(obs + act, 1, []) for kind in ("", "target_") for i in (1, 2)}
    options = TD3_CFG(
        batch_size=batch,
        random_timesteps=RANDOM_STEPS,
        learning_starts=RANDOM_STEPS,
        exploration_noise=GaussianNoise,
        exploration_noise_kwargs={"mean": 0.0, "std": 0.1, "device": "cpu"},
        smooth_regularization_noise=GaussianNoise,
        smooth_regularization_noise_kwargs={"mean": 0.0, "std": 0.2, "device": "cpu"},
    )
    options.experiment.write_interval = options.experiment.checkpoint_interval = 0
    agent = TD3(
        models=models,
        memory=RandomMemory(memory_size=1_000_000, device="cpu", replacement=True),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=options,
    )

    def train(steps: int) -> None:
        trainer = {"timesteps": steps, "headless": True, "close_environment_at_exit": False}
        SequentialTrainer(env=env, agents=agent, cfg=trainer).train()
        options.random_timesteps = options.learning_starts = 0  # skrl counts the steps of each call from 0

    return train
