"""The command `tfdpg check`."""

import sys
import warnings
from collections.abc import Sequence
from json import dumps
from typing import Annotated, NamedTuple

import tyro

from tfdpg import checking
from tfdpg.checking.conventions import plain
from tfdpg.checking.report import report
from tfdpg.environments import make_unchecked, parse_kwargs


def check(
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")],
    /,
    env_kwargs: tuple[str, ...] = (),
    steps: int | None = None,
    seed: int = 0,
    realtime: Annotated[float | None, tyro.conf.arg(metavar="HZ")] = None,
    json: bool = False,
) -> int:
    """Find problems of an environment, and report what an agent will see of it.

    One instance is made. It is reset and takes random steps: a real machine moves. The exit status is 1 if there are
    findings.

    Args:
        env: id of a registered Gymnasium environment, module:id or module:Class.
        env_kwargs: arguments of the environment, as name=value with Python literals.
        steps: number of random steps. None takes 1,000, or more to see an episode end; with --realtime, as many as ten
            seconds have.
        seed: seeds the resets and the actions.
        realtime: measure instead how well the environment keeps this number of steps per second, and whether learning
            makes one update per step on this machine. The environment takes no other step.
        json: print one JSON object with the keys environment, facts and findings instead of a report.
    """
    with warnings.catch_warnings(record=True) as caught:
        made = make_unchecked(env, **parse_kwargs(env_kwargs))
    for warning in caught:
        print(f"tfdpg: {plain(str(warning.message))}", file=sys.stderr)
    try:
        name, facts, findings = checking.examine(made, steps, seed, realtime, announces=True)
    finally:
        made.close()
    if json:
        print(dumps({"environment": name, "facts": _dicts(facts), "findings": _dicts(findings)}))
    else:
        print(report(name, facts, findings))
    return int(bool(findings))


def _dicts(items: Sequence[NamedTuple]) -> list[dict[str, str]]:
    return [item._asdict() for item in items]
