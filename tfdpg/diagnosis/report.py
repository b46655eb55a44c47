"""The diagnosis of training runs: what is wrong with a run, how it shows, and what to try next."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdpg.agents.agent import Agent
from tfdpg.arguments import natural, positive_int
from tfdpg.diagnosis import statistics
from tfdpg.diagnosis.checks import Verdict, number, verdicts
from tfdpg.diagnosis.evidence import Evidence, collect
from tfdpg.environments import opened
from tfdpg.training.training_warnings import pluralize

__all__ = ["Diagnosis", "Verdict", "diagnose"]

POLICIES = ("greedy", "exploring", "random")
"""The policies whose evaluation episodes the diagnosis compares."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a training run. Printing it shows the verdicts, the worst first.

    Attributes:
        title: the agent, its environment and its seed.
        verdicts: what is wrong, the worst first; empty if nothing was found.
        evidence: what the checks received.
    """

    title: str
    verdicts: Sequence[Verdict]
    evidence: Evidence

    def __str__(self) -> str:
        evidence = self.evidence
        lines = [
            self.title,
            f"{pluralize(evidence.env_steps, 'environment step')}, {pluralize(evidence.updates, 'update')}",
            "",
        ]
        for name, numbers in self.returns().items():
            lines.append(f"{name:10}{number(numbers['mean'])} ± {number(numbers['error'])}")
        lines[-1] += f"  (return of {pluralize(len(evidence.greedy), 'episode')} each, mean ± standard error)"
        count = len(self.verdicts)
        lines += ["", f"{count} finding{'s, the worst first' if count > 1 else ''}" if count else "nothing found"]
        for place, verdict in enumerate(self.verdicts, 1):
            lines += [
                f"{place}. {verdict.check} ({verdict.severity}): {verdict.what}",
                f"   Evidence: {verdict.evidence}",
                f"   Try: {verdict.remedy}",
            ]
        return "\n".join(lines)

    def returns(self) -> dict[str, dict[str, float | None]]:
        """Return the `mean` return of the `greedy`, the `exploring` and the `random` policy, and its standard `error`.

        The error of a single episode is None.
        """
        found = {}
        for name in POLICIES:
            mean, error = statistics.mean_interval([each.total for each in getattr(self.evidence, name)])
            found[name] = {"mean": mean, "error": error if error < float("inf") else None}
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON values: `title`, `env_steps`, `updates`, `returns` and `findings`."""
        return {
            "title": self.title,
            "env_steps": self.evidence.env_steps,
            "updates": self.evidence.updates,
            "returns": self.returns(),
            "findings": [verdict._asdict() for verdict in self.verdicts],
        }

    def plot(self, file: str | Path) -> None:
        """Draw the evidence.

        Args:
            file: the image to write: .png, .svg, .pdf, ...

        Raises:
            ImportError: Matplotlib is not installed.
            ValueError: the name of the file does not end in the name of an image format.
        """
        from tfdpg.diagnosis import picture

        picture.check(file)
        picture.draw(self.title, self.evidence).savefig(file, dpi=150)


def diagnose(
    agent: Agent,
    env: Any,
    episodes: int = 10,
    seed: int | None = None,
    max_ep_len: int | None = None,
    history: Mapping[str, Sequence[float]] | None = None,
) -> Diagnosis:
    """See `Agent.diagnose`."""
    positive_int("episodes", episodes)
    chosen_seed = agent.seed if seed is None else natural("seed", seed)
    curves = history if history is not None else getattr(agent.history, "history", {})
    with opened(env) as env:
        evidence = collect(agent, env, episodes, chosen_seed, max_ep_len, curves)
    where = " ".join(str((agent.environment or {}).get("id") or agent.spec).split())
    return Diagnosis(f"{type(agent).__name__} on {where}, seed {agent.seed}", verdicts(evidence), evidence)
