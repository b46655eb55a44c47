from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tfdpg.training.checkpoint import CheckpointError


@pytest.fixture
def agent():
    env = Counter()
    agent = tfdpg.TD3(env, **SMALL)
    agent.fit(env, epochs=1, steps_per_epoch=30, verbose=0)
    return agent


@pytest.mark.parametrize("file", ["agent.json", "variables.npz", "replay.npz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(agent, tmp_path, file, share):
    agent.save(tmp_path / "agent")
    path = tmp_path / "agent" / file
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=f"{tmp_path}/agent is damaged"):
        tfdpg.load_agent(tmp_path / "agent")


@pytest.mark.parametrize("file", ["variables.npz", "replay.npz"])
def test_a_missing_file_and_a_flipped_byte_are_named(agent, tmp_path, file):
    agent.save(tmp_path / "agent")
    path = tmp_path / "agent" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        tfdpg.load_agent(tmp_path / "agent")
    path.unlink()
    with pytest.raises(CheckpointError, match=file):
        tfdpg.load_agent(tmp_path / "agent")


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="No saved agent"):
        tfdpg.load_agent(tmp_path)


def test_other_spaces_are_refused(agent, tmp_path):
    agent.save(tmp_path / "agent")
    with pytest.raises(ValueError, match="observation_space of `env`"):
        tfdpg.load_agent(tmp_path / "agent", gym.make("Pendulum-v1"))


def test_a_failed_save_keeps_the_old_one(agent, tmp_path, monkeypatch):
    agent.save(tmp_path / "agent")
    steps = agent.env_steps
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
    monkeypatch.setattr(np, "savez", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        agent.save(tmp_path / "agent")
    monkeypatch.undo()
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == steps
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_an_interrupted_replacement_puts_the_old_one_back(agent, tmp_path, monkeypatch):
    agent.save(tmp_path / "agent")
    steps = agent.env_steps
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
    rename = Path.rename

    def interrupted(self, target):
        if Path(target) == tmp_path / "agent" and self.name != "agent":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.save(tmp_path / "agent")
    monkeypatch.undo()
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == steps
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_arguments_that_json_cannot_hold(tmp_path):
    agent = tfdpg.TD3(gym.make("tfdpg-test/Counter-v0", length=np.int64(3)), **SMALL)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").environment is None
    with pytest.raises(ValueError, match="`activation`"):
        tfdpg.TD3(Counter(), activation=np.tanh)


def test_a_dict_observation_keeps_its_order(tmp_path):
    space = spaces.Dict(velocity=spaces.Box(-1, 1, (2,)), angle=spaces.Box(-1, 1, (3,)))
    agent = tfdpg.TD3(tfdpg.Spec(space, Counter.action_space), **SMALL)
    agent.save(tmp_path / "agent")
    observation = space.sample()
    np.testing.assert_array_equal(agent(observation), tfdpg.load_agent(tmp_path / "agent")(observation))


def test_overwriting(agent, tmp_path):
    agent.save(tmp_path / "agent")
    agent.fit(Counter(), epochs=1, steps_per_epoch=10, verbose=0)
    with pytest.raises(FileExistsError):
        agent.save(tmp_path / "agent", overwrite=False)
    agent.save(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent").env_steps == 40
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1").write_text("precious")
    with pytest.raises(FileExistsError, match="not a saved agent"):
        agent.save(tmp_path / "thesis")
    assert (tmp_path / "thesis/chapter1").read_text() == "precious"


def test_everything_comes_back(agent, tmp_path):
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert again.collector.state() == agent.collector.state()
    for name, optimizer in agent.optimizers.items():
        for a, b in zip(optimizer.variables, again.optimizers[name].variables, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(agent.replay.successor[:30], again.replay.successor[:30])
    observation = np.ones(2, np.float32)
    np.testing.assert_array_equal(agent.act(observation), again.act(observation))


def test_weights_files_of_other_networks(agent, tmp_path):
    agent.save_weights(tmp_path / "a.weights.h5")
    deeper = tfdpg.TD3(Counter(), **SMALL | {"hidden_units": (8,)})
    with pytest.raises(ValueError, match="must hold the weights of"):
        deeper.load_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ValueError, match=".weights.h5"):
        agent.save_weights(tmp_path / "weights.npz")
