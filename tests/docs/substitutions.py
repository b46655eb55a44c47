"""Substitutions in the code of the pages that make training short when the tests run it.

The pages are not changed; each text below is replaced wherever it appears in a Python block.
"""

import importlib.util
import shutil

import gymnasium as gym
import numpy as np
import tensorflow as tf

import tfdpg
from tests.agents.roster import ACER, SMALL
from tests.docs.pages import ROOT
from tests.training.serving_logs import Client, write

PYTHON = {
    # small networks and replay buffers, and updates from the first steps
    "TD3(env, seed=0": "TD3(env, seed=0, **SMALL",
    "TD3(env)": "TD3(env, **SMALL)",
    "TD3(env, recorders=": "TD3(env, **SMALL, recorders=",
    'TD3(gym.make("HalfCheetah-v5"), seed=0)': 'TD3(gym.make("HalfCheetah-v5"), seed=0, **SMALL)',
    "TD3(tfdpg.Spec.of(env), ": "TD3(tfdpg.Spec.of(env), **SMALL, ",
    "ACER(env, seed=0)": "ACER(env, seed=0, **ACER)",
    "    start_steps=100,\n    update_after=100,": "    start_steps=10, update_after=10, jit_compile=False,",
    "    hidden_units=(400, 300),\n    batch_size=256,": "    hidden_units=(8,), batch_size=8,",
    "    batch_size=64,\n    replay_size=100_000,": "    batch_size=8, replay_size=500,",
    "    start_steps=0,\n    update_after=100,": "    start_steps=0, update_after=10, jit_compile=False,",
    "    update_after=1000,": "    update_after=10, jit_compile=False,",
    # an agent that `prepare` saves
    'load_agent("runs/td3-Pendulum-v1/seed-0/checkpoints/20000")': 'load_agent("saved")',
    # one short epoch
    "    epochs=75,": "    epochs=1,",
    "    epochs=20,\n    steps_per_epoch=1000,": "    epochs=1, steps_per_epoch=60,",
    "    epochs=50,\n    steps_per_epoch=1000,": "    epochs=1, steps_per_epoch=60,",
    "    minutes=30,": "    minutes=0.05, steps_per_epoch=60, validation_episodes=1,",
    "    epochs=10,\n    steps_per_epoch=1000,": "    epochs=1, steps_per_epoch=60,",
    "TD3(tank, seed=0, start_steps=500, update_after=500, update_every=1)": "TD3(tank, **SMALL)",
    "TD3(tank, seed=0)": "TD3(tank, **SMALL)",
    'load_agent("runs/tank/10000")': 'load_agent("runs/tank/60")',
    "fit(tank, epochs=20, ": "fit(tank, epochs=2, steps_per_epoch=60, ",
    "fit(tank, epochs=5, ": "fit(tank, epochs=1, steps_per_epoch=60, max_ep_len=20, ",
    "joystick), epochs=5, ": "joystick), epochs=1, steps_per_epoch=60, ",
    "    epochs=5,": "    epochs=1, steps_per_epoch=60,",
    "fit(env, epochs=75, ": "fit(env, epochs=1, steps_per_epoch=60, validation_episodes=1, ",
    "fit(env, epochs=5)": "fit(env, epochs=1, steps_per_epoch=60)",
    "epochs=5, steps_per_epoch=4000": "epochs=1, steps_per_epoch=10",
    "epochs=10, steps_per_epoch=10_000": "epochs=1, steps_per_epoch=60, validation_episodes=1",
    "steps_per_epoch=4000,": "steps_per_epoch=60,",
    # short episodes
    'gym.make("HalfCheetah-v5")': 'gym.make("HalfCheetah-v5", max_episode_steps=20)',
    'gym.make("Pendulum-v1")': 'gym.make("Pendulum-v1", max_episode_steps=20)',
    # one short trial
    "epochs=8, steps_per_epoch=1000, start_steps=1000, trials=20": "epochs=1, steps_per_epoch=60, trials=1, confirm=0",
    # a loop that ends
    "while True:": "for _ in range(60):",
    # one worker
    "    actors=8,": "    actors=1, chunk=10, epochs=1, steps_per_epoch=60, validation_episodes=1,",
}
"""Texts in Python blocks and their replacements."""

NOT_RUN = {
    "dm_control/": "needs the extra dm-control",
    "LunarLander": "needs the extra box2d",
    "--ray-address": "needs a cluster",
    "--resume runs/td3-Pendulum-v1/seed-0 --epochs 20": "resumes the run of an earlier block",
    "--checkpoint latest --episodes 20": "exports the run of an earlier block",
    "runs/tune-": "uses the trials of an earlier block",
    "serve exported_models": "runs until it is ended",
    "--server": "needs a server",
    "drift exported_models": "compares the log of a server",
    "--from exported_models/td3-pendulum": "uses the export of an earlier block",
    "--demonstrations recordings": "uses the recordings of an earlier block",
    "diagnose runs": "diagnoses the run of another page",
    "evaluate runs/tank": "evaluates the run of a plant that is not there",
    "--resume runs/tank": "resumes the run of an earlier block",
    "plot runs/tank": "plots the run of an earlier block",
    "plant:Plant": "needs a machine",
    "sb3/progress.csv": "plots a file of another program",
}
"""Texts of commands that are parsed but not run, with the reason."""
if importlib.util.find_spec("gymnasium_robotics") is None:
    NOT_RUN["gymnasium_robotics:"] = "needs the extra robotics"

FLAGS = {
    "ddpg": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5",
    "td3": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5",
    "d4pg": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5",
    "td7": "--hidden-units 8 --encoder-units 8 --embedding-units 8 --batch-size 8 --start-steps 10 --update-after 10",
    "examples.sac:SAC": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --update-every 5",
    "examples.redq:REDQ": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10 --gradient-steps 2",
    "examples.conservative_td3:ConservativeTD3": "--hidden-units 8 --batch-size 8 --start-steps 10 --update-after 10",
    "acer": "--hidden-units 8 --batch-size 8 --n-steps 5 --replay-start 10",
    "all": "--replay-size 500 --jit-compile False --epochs 1 --steps-per-epoch 60 --validation-episodes 1 "
    "--max-ep-len 20 --seeds 0 --verbose 0",
    "tune": "--hidden-units 8 --batch-size 16 --start-steps 10 --update-after 10 --update-every 5 --replay-size 500 "
    "--jit-compile False --epochs 1 --steps-per-epoch 60 --validation-episodes 1 --max-ep-len 20 --trials 1 "
    "--confirm 0",
    "--networks": "--batch-size 8 --start-steps 10 --update-after 10 --update-every 5",
    "--actors": "--actors 1 --chunk 10",
    "evaluate": "--max-ep-len 20",
}
"""Flags that are appended to a command before it is run; they override earlier flags of the same name."""


def prepare(page, directory):
    """Create the files that a page uses in `directory`, and return the names that its code uses."""
    for files in ("exported_models", "examples/results"):
        shutil.copytree(ROOT / files, directory / files)
    names = {"__name__": "__main__", "SMALL": SMALL, "ACER": ACER}
    if page == "docs/serving.md":
        env = gym.make("HalfCheetah-v5")
        cartpole = gym.make("CartPole-v1")
        tfdpg.ACER(cartpole, **ACER).export(directory / "exported_models/acer-cartpole")
        tfdpg.TD3("Pendulum-v1", recurrent="lstm", **SMALL).export(directory / "exported_models/td3-lstm-pendulum")
        observation = env.reset(seed=0)[0]
        action = env.action_space.sample()
        names |= {"directory": str(directory / "exported_models/td3-halfcheetah/1")}
        names |= {"observations": np.stack([observation, observation])}
        names |= {"observation": observation, "action": action, "cartpole_observation": cartpole.reset(seed=0)[0]}
        names |= {"pendulum_observation": gym.make("Pendulum-v1").reset(seed=0)[0]}
    if page == "docs/offline-rl.md":
        env = gym.make("Pendulum-v1")
        agent = tfdpg.TD3("Pendulum-v1", **SMALL)
        signatures = tf.saved_model.load(str(agent.export(directory / "served"))).signatures
        clients = [Client(env, "robot-1"), Client(gym.make("Pendulum-v1"), "robot-2")]
        write(directory / "serving_logs", [client.step(signatures) for _ in range(4) for client in clients])
    if page == "docs/deployment.md":
        agent = tfdpg.TD3("Pendulum-v1", **SMALL)
        agent.save(directory / "saved")
        versions = [agent.export(directory / "exported_models/td3-pendulum") for _ in range(2)]
        signatures = tf.saved_model.load(str(versions[0])).signatures
        client = Client(gym.make("Pendulum-v1"), "pendulum-1")
        write(directory / "serving_logs.tfrecord", [client.step(signatures) for _ in range(200)])
        np.save(directory / "rewards.npy", [reward for _, _, reward, *_ in client.took])
    if page == "docs/formats.md":
        env = gym.make("HalfCheetah-v5")
        observations = np.stack([env.reset(seed=seed)[0] for seed in range(2)])  # float64
        names |= {"agent": tfdpg.TD3(env, **SMALL), "observations": observations}
    return names
