"""The tutorials are notebooks: their cells run from top to bottom, and they are committed with their outputs."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "docs/tutorials").glob("*.ipynb"))}
SHORTER = {
    "hidden_units=(64, 64), start_steps=1000": "hidden_units=(8,), start_steps=100, update_after=100",
    "hidden_units=(32, 32), start_steps=1000": "hidden_units=(8,), start_steps=100, update_after=100",
    "steps_per_epoch=1000": "steps_per_epoch=100",
    "epochs=12,": "epochs=2,",
}
"""Texts in the cells and what replaces them, so that training is short."""


def code(notebook):
    return [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_cells_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    for cell in notebook.cells:
        for text, replacement in SHORTER.items():
            cell.source = cell.source.replace(text, replacement)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    if name == "from-training-to-production":
        printed = "".join(each.get("text", "") for cell in notebook.cells for each in cell.get("outputs", []))
        differences = [float(line.split(": ")[1]) for line in printed.splitlines() if "largest difference" in line]
        assert len(differences) == 6 and max(differences) < 1e-4


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_outputs_are_those_of_a_run_without_errors(name):
    cells = code(NOTEBOOKS[name])
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and all(output.output_type in ("stream", "display_data") for output in outputs)
    text = NOTEBOOKS[name].read_text()
    assert len(text) < 400_000 and str(Path.home()) not in text and "/tmp/" not in text


def test_every_replacement_is_used():
    sources = "\n".join(cell.source for notebook in NOTEBOOKS.values() for cell in code(notebook))
    assert len(NOTEBOOKS) == 3 and [text for text in SHORTER if text not in sources] == []
