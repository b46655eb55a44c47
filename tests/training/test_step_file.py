from tests.agents.roster import AGENTS, fit_briefly
from tests.environments import Counter
from tfdpg.training.callbacks import StepFile, read_step_file


def test_the_file_holds_the_steps(tmp_path):
    assert read_step_file(tmp_path / "env_steps") == 0
    agent = AGENTS["DDPG"](Counter(), update_after=1000)
    for steps in (20, 40):
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, callbacks=[StepFile(tmp_path / "env_steps")])
        assert read_step_file(tmp_path / "env_steps") == steps == agent.env_steps
    assert (tmp_path / "env_steps").stat().st_size == 8
