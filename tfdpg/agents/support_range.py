"""The support of categorical critics: set from the observed returns, and checked during training."""

import warnings
from collections.abc import Mapping
from typing import Any

from tfdpg.agents.agent import Agent
from tfdpg.networks import Categorical, head_of

PERIOD = 5000
"""The number of updates between two looks at the returns, which take 0.05 s for 100,000 of them."""
MOST_EDGE_MASS = 0.1
"""The probability on the edge atoms above which there is a warning. An untrained critic with 51 atoms has up to 0.07,
for example at the final observations of truncated episodes, which are never trained on."""
FIRST_UPDATES = 200
"""No warning before this update: targets still contain much of the initial, uniform distribution."""


def choose_support(agent: Agent, minibatches: Any) -> None:
    """Before the first update, set the support to the range of the observed returns.

    Args:
        agent: an agent with categorical critics.
        minibatches: its source of minibatches (`tfdpg.training.learning.learner.Minibatches`).
    """
    if agent.updates == 0 and _is_unknown(agent):
        _set_support(agent, *_return_range(minibatches))


def follow_returns(agent: Agent, minibatches: Any) -> None:
    """Let the support follow the returns.

    It is [−R, R], where R is the largest absolute return in the replay buffer, and is widened once in `PERIOD` updates
    if R has grown. Critics keep their probabilities, so this is equivalent to scaling rewards by 1 / R on a fixed
    support (SimbaV2, Lee et al. 2025).

    Args:
        agent: an agent with categorical critics.
        minibatches: its source of minibatches (`tfdpg.training.learning.learner.Minibatches`).
    """
    updates = agent.updates
    before = agent.host_state["support_period"]
    agent.host_state["support_period"] = updates // PERIOD
    v_min, v_max = _support(agent)
    if updates == 0 and _is_unknown(agent):
        v_min, v_max = _return_range(minibatches)
    elif before < updates // PERIOD:
        v_max = max(v_max, *map(abs, minibatches.return_range()))
    else:
        return
    v_max = max(-v_min, v_max)
    _set_support(agent, -v_max, v_max)


def warn_of_edges(agent: Agent, logs: Mapping[str, float]) -> None:
    """Warn when much of the projected targets' probability lies on the edges of a support that is too small.

    Args:
        agent: an agent with categorical critics.
        logs: the logs of an update phase. There is one warning for each support.
    """
    edge_mass, *support = (logs[name] for name in Categorical.metrics_of_update)
    if agent.updates < FIRST_UPDATES or edge_mass <= MOST_EDGE_MASS:
        return
    if support != agent.host_state["edges_warned"]:
        agent.host_state["edges_warned"] = support
        values = ", ".join(f"{metric.name} is {logs[metric.name]:g}" for metric in agent.metrics if metric.spread)
        warnings.warn(
            f"{edge_mass:.1%} of the projected targets' probability lies on the edge atoms of the support "
            f"[{support[0]:g}, {support[1]:g}] ({values} on average), so returns beyond it cannot be told apart. "
            "Create a new agent with a wider `v_min` and `v_max`; loading cannot change them.",
            stacklevel=2,
        )


def _heads(agent: Agent) -> list[Categorical]:
    heads = [head_of(network) for network in (agent.networks | agent.copies).values()]
    return [head for head in heads if isinstance(head, Categorical)]


def _support(agent: Agent) -> tuple[float, float]:
    v_min, v_max = _heads(agent)[0].atoms.numpy()[[0, -1]].tolist()
    return v_min, v_max


def _is_unknown(agent: Agent) -> bool:
    """Return whether the support is still the one with which the critics were built."""
    head = _heads(agent)[0]
    return _support(agent) == (head.v_min, head.v_max)


def _set_support(agent: Agent, v_min: float, v_max: float) -> None:
    for head in _heads(agent):
        head.set_range(v_min, v_max)


def _return_range(minibatches: Any) -> tuple[float, float]:
    try:
        return minibatches.return_range()
    except ValueError as error:
        raise ValueError(f"{error} Pass `v_min` and `v_max` to the agent to learn without it.") from error
