"""What a cell of a notebook shows, in a notebook that is executed without a browser."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT

CELLS = {
    "agent": "import gymnasium as gym, tfdpg\n"
    "from tests.agents.roster import EAGER, SMALL\n"
    "from tests.environments import Counter\n"
    "import tfdpg.training.callbacks.progress as progress\n"
    "progress.INTERVAL = 0\n"
    "agent = tfdpg.TD3(Counter(), **SMALL, **EAGER)\n"
    "options = {'steps_per_epoch': 50, 'validation_env': Counter(), 'validation_episodes': 1}",
    "bar": "history = agent.fit(Counter(), epochs=3, **options)",
    "interrupted": "class Interrupt(tfdpg.callbacks.StopAtReturn):\n"
    "    def on_train_batch_end(self, batch, logs=None):\n"
    "        raise KeyboardInterrupt\n"
    "agent.fit(Counter(), epochs=2, callbacks=[Interrupt(0)], **options)",
    "lines": "history = agent.fit(Counter(), epochs=3, verbose=2, **options)",
    "check": "tfdpg.check(gym.make('Pendulum-v1'));",
    "summary": "agent.summary()",
    "export": "agent.export('exported')",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS.values()])
        resources = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
        NotebookClient(notebook, timeout=300, resources=resources, allow_errors=True).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.slow
def test_a_bar_is_one_output_and_epochs_are_rows_of_a_table(outputs):
    bars = [output.data["text/plain"] for output in outputs["bar"] if output.output_type == "display_data"]
    assert len(bars) == 1 and bars[0].startswith("Epoch 3/3 · 50/50 ━━━━━━━━━━━━━━━━━━━━ ")
    header, *rows = printed(outputs["bar"]).splitlines()
    assert header.split() == "epoch time env_steps return episode_length loss_q loss_pi q1 val_return".split()
    assert [row.split()[0] for row in rows] == ["1/3", "2/3", "3/3"]
    assert [row.split()[2] for row in rows] == ["50", "100", "150"]
    ends = {row.index(cell) + len(cell) for row in rows for cell in row.split()[2:3]}
    assert ends == {header.index("env_steps") + len("env_steps")}
    assert max(map(len, [bars[0], header, *rows])) <= 100


@pytest.mark.slow
def test_an_interrupted_bar_shows_where_training_stopped(outputs):
    bars = [output.data["text/plain"] for output in outputs["interrupted"] if output.output_type == "display_data"]
    assert len(bars) == 1 and bars[0].startswith("Epoch 1/2 · ")


@pytest.mark.slow
def test_a_line_for_each_epoch(outputs):
    assert {output.output_type for output in outputs["lines"]} == {"stream"}
    lines = printed(outputs["lines"]).splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]


@pytest.mark.slow
def test_reports_are_plain_text(outputs):
    assert printed(outputs["check"]).endswith("no findings\n")
    assert not [output for output in outputs["check"] if output.output_type == "execute_result"]
    assert 'Model: "pi"' in printed(outputs["summary"])
    assert [output.output_type for output in outputs["export"]] == ["execute_result"]


@pytest.mark.slow
def test_there_are_no_control_characters_and_nothing_on_standard_error(outputs):
    for cell in outputs.values():
        assert not {"\r", "\b", "\x1b"} & set(printed(cell))
        assert "stderr" not in {output.get("name") for output in cell}
