"""What must work with every supported version of TensorFlow: `.ci/run` tries it with the oldest one."""

import csv
import shutil

import gymnasium as gym
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.serve.conftest import serving
from tfdpg import cli, export

FLAGS = (
    "--env Pendulum-v1 --steps-per-epoch 150 --validation-episodes 1 --verbose 0 --hidden-units 16 16 --batch-size 16 "
    "--start-steps 50 --update-after 50 --update-every 10"
).split()


@brief
@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", pytest.param("d4pg", marks=pytest.mark.hours)])
def test_training_resuming_exporting_and_serving(name, tmp_path):
    whole, resumed = (tmp_path / directory / "seed-0" for directory in ("whole", "resumed"))
    assert cli.main(["train", name, *FLAGS, "--epochs", "2", "--run-dir", str(whole.parent)]) == 0
    assert cli.main(["train", name, *FLAGS, "--epochs", "1", "--run-dir", str(resumed.parent)]) == 0
    assert cli.main(["train", "--resume", str(resumed), "--epochs", "2"]) == 0
    agent, other = (tfdpg.load_agent(run / "checkpoints/300") for run in (whole, resumed))
    assert (agent.env_steps, agent.updates) == (other.env_steps, other.updates) == (300, 250)
    for network in agent.networks:
        for weights, others in zip(*(each.networks[network].get_weights() for each in (agent, other)), strict=True):
            np.testing.assert_array_equal(weights, others)
    tables = [csv.DictReader((run / "progress.csv").read_text().splitlines()) for run in (whole, resumed)]
    losses = [[row["loss_q"] for row in table] for table in tables]
    assert losses[0] == losses[1] and np.isfinite(np.float64(losses[0])).all()

    x = np.array([gym.make("Pendulum-v1").reset(seed=seed)[0] for seed in range(3)])
    policy = tfdpg.load(resumed / "export")
    actions = policy(x)
    np.testing.assert_allclose(actions, agent.predict(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.numpy()(x), actions, rtol=1e-4, atol=1e-5)
    with serving(resumed / "export") as client:
        for critic in ("q1", "q2"):
            status, answer = client.post({"signature_name": critic, "inputs": {"x": x.tolist(), "a": actions.tolist()}})
            assert status == 200
            np.testing.assert_allclose(answer["outputs"], getattr(policy, critic)(x, actions), rtol=1e-4, atol=1e-4)
        status, answer = client.post({"instances": [{"x": row} for row in x.tolist()]})
        assert status == 200
        np.testing.assert_allclose(answer["predictions"], actions, rtol=1e-4, atol=1e-5)
    copied = shutil.copytree(export.latest_version(resumed / "export"), tmp_path / "copy/1")
    np.testing.assert_array_equal(tfdpg.load(copied)(x), actions)
