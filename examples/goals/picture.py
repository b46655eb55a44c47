"""Draw the learning curves of docs/goals.md from the files in this directory.

python examples/goals/picture.py

The first line of each file is the command that made it, in a virtual environment with the extra [robotics].
"""

from pathlib import Path

from examples.results.table import save, with_legend
from tfdpg.plotting import curves, figures

GOALS = Path(__file__).parent


def main() -> None:
    """Write goals.svg."""
    named: dict[str, list[curves.LearningCurve]] = {}
    for file in sorted(GOALS.glob("*.csv")):
        run = curves.read(file, "env_steps", "val_success_rate", 1)
        named.setdefault(run.settings["env"].removeprefix("gymnasium_robotics:"), []).append(run)
    figure = figures.draw(named, "env_steps", "val_success_rate", "TD3 with hindsight experience replay")
    figure.axes[0].set_xscale("log")
    note = "Mean and 95 % confidence interval over three seeds for FetchReach; one seed for the others."
    save(with_legend(figure, note), GOALS / "goals.svg", "")


if __name__ == "__main__":
    main()
