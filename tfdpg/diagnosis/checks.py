"""The checks of the diagnosis. Each receives the evidence, and returns a verdict or None.

The thresholds lie between what healthy runs and broken runs show; docs/diagnosis.md lists these numbers.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tfdpg.diagnosis import statistics
from tfdpg.diagnosis.evidence import Evidence, Replay, Trajectory
from tfdpg.findings import early_end
from tfdpg.training.network_inputs import NORMALIZER
from tfdpg.training.training_warnings import pluralize

LARGE_FEATURE = 100.0
"""A feature is large if its root mean square is above this. Healthy runs had 11 at most."""
NORMAL_SCALE = 10.0
"""Numbers whose root mean square is up to this need no normalisation."""
LARGE_REWARD = 100.0
"""Rewards are large if their mean size is above this."""
SMALL_REWARD = 0.01
"""Rewards are small if all sizes are below this: critics start with random values of about 0.1."""
LARGE_RETURN = 1e4
"""Values are large if the root mean square of the discounted returns is above this."""
LARGE_STEP = 0.1
"""The learning rate is too large if it is above this fraction of an initial weight. Healthy runs had 0.016 at most."""
SHORT_HORIZON = 10
"""A horizon of fewer steps is short."""
FEW_EPISODES = 3
"""The number of episodes of one length from which a time limit is suspected."""
MOST_UNEXPLAINED = 0.3
"""A feature is hard to predict if more of the variance of its change is unexplained."""
MEMORY_GAIN = 0.15
"""The observation before matters if it lowers the unexplained variance to this fraction. Healthy: 0.32 or more."""
MIN_ROWS = 1000
"""Regressions need this number of transitions."""
MAX_FEATURES = 500
"""Regressions take at most this number of features."""
NEIGHBOURS = 0.05
"""The largest fraction of the transitions that counts as the neighbourhood of one."""
SIGNIFICANT = 4.0
"""A slope counts if it is this number of standard errors from 0."""
MOST_AT_BOUNDS = 0.9
"""The share of action components at their bounds that is suspicious."""
MOST_OVERESTIMATION = 0.3
"""Overestimation counts if it is above this fraction of the root mean square of the returns. Healthy: 0.06."""
MOST_DISAGREEMENT = 0.5
"""Critics disagree if their mean distance is above this fraction of the standard deviation of the values."""
MOST_EDGE_MASS = 0.1
"""The probability on the edge atoms that is suspicious."""
MOST_DORMANT = 0.7
"""The share of dormant units in a layer that is suspicious. Healthy runs had 0.40 at most."""
LEAST_RANK = 2
"""An effective rank of the last hidden layer up to this is suspicious. Healthy runs had 26 or more."""
MOST_GROWTH = 20.0
"""Weights have grown too much if they are more than this many times as large as at the start. Healthy: 5.5."""
LARGE_GRADIENT = 1e5
"""The norm of a gradient that is suspicious. Healthy runs had 510 at most."""
FAR = 3.0
"""A state is far from the replay buffer beyond this multiple of the distances within the replay buffer."""

Severity = Literal["high", "medium", "low"]
SEVERITIES = ("high", "medium", "low")


class Verdict(NamedTuple):
    """A finding of the diagnosis.

    Attributes:
        check: the name of the check.
        severity: "high" if the run cannot learn what it should, "medium", or "low".
        what: what is wrong, in one sentence.
        evidence: the numbers that show it.
        remedy: what to try next.
    """

    check: str
    severity: Severity
    what: str
    evidence: str
    remedy: str


def number(value: float | None) -> str:
    """Format a number with three digits, or all of those before the point: 0.00162, 12.3, −1,288, 4.47e+06."""
    if value is None or not np.isfinite(value):
        return "unknown"
    size = abs(value)
    text = f"{size:,.0f}" if 1000 <= size < 1e6 else f"{size:.3g}"
    return f"−{text}" if value < 0 else text


Found = tuple[str, str, str] | None
"""The result of a check: what is wrong, the numbers that show it, and what to try next; None if nothing was found."""
Check = Callable[[Evidence], Verdict | None]
CHECKS: list[Check] = []
"""All checks: causes first, then what may follow from them. Verdicts of one severity keep this order."""


def check(name: str, severity: Severity) -> Callable[[Callable[[Evidence], Found]], Check]:
    """Register a check of the evidence, and let it return a verdict."""

    def register(function: Callable[[Evidence], Found]) -> Check:
        def checked(evidence: Evidence) -> Verdict | None:
            found = function(evidence)
            return None if found is None else Verdict(name, severity, *found)

        CHECKS.append(checked)
        return checked

    return register


def replay_check(
    name: str, severity: Severity, regression: bool = False
) -> Callable[[Callable[[Evidence, Replay], Found]], Check]:
    """Register a check that needs the replay buffer.

    Args:
        name: the name of the check.
        severity: the severity of its verdicts.
        regression: whether it needs enough transitions for a regression on vectors of a moderate size.
    """

    def register(function: Callable[[Evidence, Replay], Found]) -> Check:
        @check(name, severity)
        def checked(evidence: Evidence) -> Found:
            replay = evidence.replay
            if replay is None:
                return None
            rows, features = replay.observation.shape
            can_regress = rows >= MIN_ROWS and features <= MAX_FEATURES and not replay.has_images
            return function(evidence, replay) if can_regress or not regression else None

        return checked

    return register


@check("schedule", "high")
def schedule(evidence: Evidence) -> Found:
    """Find runs without updates, and runs whose actions are all or mostly random."""
    steps, start = evidence.env_steps, evidence.start_steps
    if steps and evidence.updates == 0:
        return (
            "The networks have never been updated.",
            f"There was no update in {pluralize(steps, 'environment step')}.",
            "Train longer, or let updates begin earlier"
            f"{_named(evidence, 'update_after', 'update_every', 'n_steps', 'replay_start')}.",
        )
    if steps and start >= steps:
        return (
            "All actions of the run were random, so the policy has never seen the results of its own actions.",
            f"The run has {pluralize(steps, 'environment step')}, and the first {start:,} are random (start_steps).",
            "Lower `start_steps`, or train longer. The `return` of the log is that of random actions.",
        )
    return None


@replay_check("time limit", "high")
def time_limit(evidence: Evidence, replay: Replay) -> Found:
    """Find time limits that are reported as terminal states: many terminations at exactly the greatest length."""
    if len(replay.lengths) == 0:
        return None
    longest = replay.lengths.max()
    at_limit = replay.lengths == longest
    nearly = (replay.lengths >= 0.9 * longest) & ~at_limit
    count = int(at_limit.sum())
    if longest < 2 or count < FEW_EPISODES or not replay.terminated[at_limit].all() or count < 2 * nearly.sum():
        return None
    which = "All" if at_limit.all() else f"{count:,} of"
    return (
        "A time limit is reported as terminated, so the agent learns that no rewards follow it.",
        f"{which} {len(at_limit):,} episodes in the replay buffer terminate after exactly {longest:,} steps, and none "
        "is truncated there.",
        "Return truncated=True in place of terminated=True at the limit (gymnasium.wrappers.TimeLimit does), and train "
        "a new agent, because the replay buffer keeps the wrong ends.",
    )


@check("early end", "medium")
def rewards_of_early_ends(evidence: Evidence) -> Found:
    """Find rewards for which failing early returns more than going on."""
    episodes = [*evidence.greedy, *evidence.exploring, *evidence.random]
    found = early_end([each.reward for each in episodes], [each.terminated for each in episodes], None)
    if found is None:
        return None
    what, _, proof = found.what.partition(". ")
    return f"{what}.", proof, found.remedy


@replay_check("observation scale", "high")
def observation_scale(evidence: Evidence, replay: Replay) -> Found:
    """Find large features that are not normalised."""
    if evidence.options.get("normalize_observations"):
        return None
    real = np.array([bool(name) for name in replay.names])
    sizes = np.where(real, np.sqrt(np.mean(replay.observation**2, axis=0)), 0)
    if not len(sizes) or sizes.max() <= LARGE_FEATURE:
        return None
    if evidence.input_scale is not None and evidence.input_scale <= LARGE_FEATURE:
        return None
    worst = int(sizes.argmax())
    normalize = "Pass `normalize_observations=True`"
    if evidence.has_custom_networks:
        normalize = f"Apply {NORMALIZER}"
    return (
        "Observations are not normalised, and their numbers are too large for the networks.",
        f"The root mean square of {replay.names[worst]} is {number(sizes[worst])}, and that of "
        f"{int((sizes > LARGE_FEATURE).sum())} of {int(real.sum())} features is above {LARGE_FEATURE:g}. Networks "
        "learn best from numbers near ±1.",
        f"{normalize}, or choose other units in the environment.",
    )


@replay_check("reward scale", "high")
def reward_scale(evidence: Evidence, replay: Replay) -> Found:
    """Find rewards and returns that are far too small or too large."""
    sizes = np.abs(replay.reward) * evidence.options.get("reward_scale", 1.0)
    returns = [statistics.discounted_returns(rewards, evidence.gamma) for rewards in replay.rewards]
    root = float(np.sqrt(np.mean(np.concatenate(returns) ** 2))) if returns else 0.0
    root *= evidence.options.get("reward_scale", 1.0)
    shown = f"their discounted returns have the root mean square {number(root)}"
    scale = f"Scale rewards to about 1 with {_reward_scaling(evidence)}: "
    if sizes.max() == 0:
        if evidence.options.get("her") is not None:  # transitions with new goals are rewarded
            return None
        return (
            "No action was ever rewarded.",
            f"The reward is 0 in all of {len(sizes):,} examined transitions.",
            "Reward progress towards the goal, in the environment or with `reward_shaper`, or explore more"
            f"{_named(evidence, 'act_noise', 'start_steps')}."
            + (" If each episode has a goal of its own, use `her`." if "her" in evidence.options else ""),
        )
    if sizes.max() < SMALL_REWARD:
        return (
            "Rewards are so small that the critics cannot tell good actions from bad ones.",
            f"No reward in the replay buffer is larger than {number(sizes.max())}, and {shown}; critics start "
            "with random values of about 0.1.",
            f"{scale}divide by {number(float(np.quantile(sizes[sizes > 0], 0.9)))}.",
        )
    if sizes.mean() > LARGE_REWARD or root > LARGE_RETURN:
        return (
            "Rewards are so large that the critics cannot reach the returns.",
            f"The mean size of the rewards in the replay buffer is {number(sizes.mean())}, and {shown}; critics "
            "start at about 0, and each update changes a weight by the learning rate at most.",
            f"{scale}divide by {number(float(sizes.mean()))}.",
        )
    return None


@check("learning rate", "high")
def learning_rate(evidence: Evidence) -> Found:
    """Find learning rates that change weights by much of their size in one update."""
    found = [(each.learning_rate / each.initial, each) for each in evidence.weights if each.learning_rate is not None]
    if not found or max(found, key=lambda pair: pair[0])[0] <= LARGE_STEP:
        return None
    share, worst = max(found, key=lambda pair: pair[0])
    grown = max(evidence.weights, key=lambda each: each.growth)
    return (
        "The learning rate is too large.",
        f"It is {number(worst.learning_rate or 0.0)} for {worst.network}, so one update can change a weight by "
        f"{share:.0%} of its initial size. The weights of {grown.network} are {grown.growth:.1f} times as large as at "
        "the start.",
        f"Lower {_learning_rates(evidence)} to between 1e-4 and 1e-3.",
    )


@replay_check("clipped actions", "high", regression=True)
def clipped_actions(evidence: Evidence, replay: Replay) -> Found:
    """Find actions that something outside the agent clips."""
    if evidence.has_discrete_actions:
        return None
    basis = statistics.smooth_basis(replay.observation)
    changes = statistics.standardized(replay.next_observation - replay.observation)
    dimensions = replay.action.shape[1]
    found = {}
    for i in range(dimensions):
        others = np.delete(replay.action, i, axis=1)
        if (clipping := statistics.find_clipping(basis, replay.action[:, i], others, changes)) is not None:
            found[i] = clipping
    if not found:
        return None
    first = min(found, key=lambda i: found[i].bound)
    clipping = found[first]
    beyond = float(np.mean(np.abs(replay.action[:, first]) > clipping.bound))
    return (
        "Something outside the agent clips its actions, so large actions have the same effect as smaller ones.",
        f"Component {first} of the actions has no effect on the next observation beyond {clipping.bound:.0%} of its "
        f"range (slope {number(clipping.outside)} there, {number(clipping.inside)} below); {beyond:.0%} "
        f"of the actions in the replay buffer are beyond. This holds for {len(found)} of {dimensions} components.",
        "Declare the bounds that the environment really has in its `action_space`, and remove the clipping: the agent "
        "keeps actions within the declared bounds.",
    )


@replay_check("missing observation", "high", regression=True)
def hidden_state(evidence: Evidence, replay: Replay) -> Found:
    """Find observations whose change the previous observation predicts much better: something is missing in them."""
    if evidence.is_recurrent:
        return None
    known = ~np.isnan(replay.previous_action).any(axis=1)
    if known.sum() < MIN_ROWS:
        return None
    now = np.concatenate([replay.observation, replay.action], axis=1)[known]
    before = np.concatenate([replay.previous, replay.previous_action], axis=1)[known]
    changes = (replay.next_observation - replay.observation)[known]
    alone = statistics.unexplained_share(now, changes)
    both = statistics.unexplained_share(np.concatenate([now, before], axis=1), changes)
    hidden = (alone > MOST_UNEXPLAINED) & (both < MEMORY_GAIN * alone)
    if not hidden.any():
        return None
    worst = int(np.argmax(np.where(hidden, alone - both, -1)))
    name = replay.names[worst] or f"feature {worst}"
    return (
        "The observation lacks something that the next observation depends on, such as a velocity.",
        f"Observation and action leave {alone[worst]:.0%} of the variance of the change of {name} unexplained; with "
        f"the observation before, {both[worst]:.1%} are left. This holds for {int(hidden.sum())} of {len(hidden)} "
        "features.",
        "Add what is missing to the observation, or stack frames (gymnasium.wrappers.FrameStackObservation)"
        + (', or use a recurrent policy (`recurrent="lstm"`).' if _can_be_recurrent(evidence) else "."),
    )


@replay_check("reward sign", "high")
def stored_sign(evidence: Evidence, replay: Replay) -> Found:
    """Find shaped rewards whose sign differs from that of the environment's rewards."""
    episodes = [*evidence.greedy, *evidence.exploring, *evidence.random]
    if not episodes or not evidence.has_shaper:
        return None
    stored = replay.reward
    earned = np.concatenate([episode.reward for episode in episodes])
    is_clear = all(np.abs(rewards.mean()) > 0.5 * rewards.std() for rewards in (stored, earned))
    if not is_clear or stored.mean() * earned.mean() >= 0:
        return None
    return (
        "The rewards that the agent learns from have the opposite sign of those of the environment.",
        f"Their mean is {number(float(stored.mean()))} in the replay buffer and {number(float(earned.mean()))} in the "
        "evaluation episodes.",
        "Correct the sign in `reward_shaper`, and train a new agent.",
    )


@replay_check("horizon", "high")
def horizon(evidence: Evidence, replay: Replay) -> Found:
    """Find a γ whose horizon is shorter than the time over which rewards are related."""
    if len(replay.rewards) == 0 or evidence.gamma >= 1 - 1 / SHORT_HORIZON:
        return None
    steps = 1 / (1 - evidence.gamma)
    length = float(np.mean([len(rewards) for rewards in replay.rewards]))
    related = statistics.correlation_time(replay.rewards)
    if length < 10 * steps or related <= steps:
        return None
    return (
        "γ is so small that the agent does not see the consequences of its actions.",
        f"With gamma={evidence.gamma:g}, it looks about {number(steps)} steps ahead. Episodes have "
        f"{length:,.0f} steps, and rewards within an episode stay correlated for {related:,} steps.",
        "Raise `gamma`: 1 / (1 − gamma) should be about as many steps as an action has consequences (0.99 is 100).",
    )


@replay_check("reward sign", "medium", regression=True)
def action_reward(evidence: Evidence, replay: Replay) -> Found:
    """Find rewards that pay for large actions, which a cost with the wrong sign does."""
    if evidence.has_discrete_actions:
        return None
    size = np.sum(replay.action**2, axis=1)
    following = np.concatenate([replay.action, statistics.standardized(replay.next_observation)], axis=1)
    coefficients = replay.observation.shape[1] + following.shape[1] + 1
    if statistics.local_rows(coefficients) > NEIGHBOURS * len(size):
        return None
    _, ratio = statistics.local_slope(replay.observation, replay.action, size, replay.reward)
    if ratio < SIGNIFICANT:
        return None
    slope, ratio = statistics.local_slope(replay.observation, following, size, replay.reward)
    if ratio < SIGNIFICANT:
        return None
    return (
        "The reward pays for large actions, as if a cost had the wrong sign.",
        f"Among similar transitions, the reward rises by {number(slope)} per squared action (in units of the action "
        f"scale; {ratio:.0f} standard errors above 0). Costs of actions lower rewards. The policy returns "
        f"{_returns(evidence.greedy)}, random actions return {_returns(evidence.random)}.",
        "Check the signs of all terms of the reward. Watch the policy (`tfdpg evaluate RUN --render`): if its return "
        "is good and its behaviour is not, the reward is wrong.",
    )


@check("no exploration", "medium")
def exploration(evidence: Evidence) -> Found:
    """Find runs without exploration."""
    noise = evidence.options.get("act_noise")
    if evidence.options.get("random_eps"):
        return None
    random = evidence.start_steps / max(evidence.env_steps, 1)
    if not evidence.env_steps or noise is None or np.any(np.asarray(noise, np.float64) > 0) or random >= 0.01:
        return None
    same = ""
    if evidence.greedy and [each.total for each in evidence.greedy] == [each.total for each in evidence.exploring]:
        same = " Exploring and greedy episodes have exactly the same returns."
    return (
        "The agent does not explore: it only ever sees the actions that its policy prefers.",
        f"act_noise is 0, and {random:.1%} of the actions were random (start_steps={evidence.start_steps:,}).{same}",
        "Set `act_noise` to 0.1 or more, and begin with random actions (`start_steps`).",
    )


@check("return", "medium")
def no_improvement(evidence: Evidence) -> Found:
    """Find policies that are not better than random actions."""
    if evidence.updates == 0 or len(evidence.greedy) < 2 or len(evidence.random) < 2:
        return None
    greedy = statistics.mean_interval([each.total for each in evidence.greedy])
    random = statistics.mean_interval([each.total for each in evidence.random])
    error = float(np.hypot(greedy.error, random.error))
    if greedy.mean > random.mean + 2 * error:
        return None
    is_worse = greedy.mean < random.mean - 3 * error
    return (
        f"The policy is {'worse' if is_worse else 'not better'} than random actions.",
        f"It returns {_returns(evidence.greedy)}, random actions return {_returns(evidence.random)}.",
        "See the other findings. Without any, train longer (after fewer than 10,000 updates), or check the sign of "
        "the reward and the exploration.",
    )


@check("saturated actions", "medium")
def saturation(evidence: Evidence) -> Found:
    """Find policies that are stuck at the bounds of the actions."""
    if not evidence.greedy or evidence.has_discrete_actions or evidence.has_rounded_actions:
        return None
    action = np.concatenate([each.action for each in evidence.greedy])
    share = float(np.mean(np.abs(action) > 0.99))
    is_constant = bool((action.std(axis=0) < 0.01).all())
    if share <= MOST_AT_BOUNDS or not (is_constant or no_improvement(evidence)):
        return None
    constant = " It takes the same action in every state." if is_constant else ""
    return (
        "The policy's actions are stuck at their bounds, where tanh is flat and almost no gradient passes.",
        f"{share:.0%} of the components of its actions are within 1 % of a bound.{constant}",
        f"{_normalization(evidence)}cale rewards with {_reward_scaling(evidence)}, or lower "
        f"{_learning_rates(evidence)}, and train a new agent.",
    )


@check("overestimation", "medium")
def value_error(evidence: Evidence) -> Found:
    """Find critics whose values are far above the returns."""
    if evidence.has_shaper or not evidence.updates or not evidence.greedy:
        return None
    found = []
    for name in evidence.greedy[0].values:
        errors, squares = [], []
        for each in evidence.greedy:
            error = statistics.overestimation(each.values[name], each.reward, evidence.gamma, each.terminated)
            if error is not None:
                errors.append(error)
                last = 0.0 if each.terminated else each.values[name][-1]
                squares.append(np.mean(statistics.discounted_returns(each.reward, evidence.gamma, last) ** 2))
        if len(errors) > 1:
            found.append((name, statistics.mean_interval(errors), float(np.sqrt(np.mean(squares)))))
    bad = [(name, error, size) for name, error, size in found if error.mean > MOST_OVERESTIMATION * size]
    bad = [each for each in bad if each[1].mean > 3 * each[1].error]
    if not bad:
        return None
    shown = ", ".join(f"{name} by {number(error.mean)} ± {number(error.error)}" for name, error, _ in found)
    more = "L"
    if evidence.critics < 2 and not evidence.has_discrete_actions:
        has_option = "critics" in evidence.options and not evidence.has_custom_networks
        more = f"Use two critics ({'`critics=2`' if has_option else 'as TD3 and TD7 do'}), or l"
    return (
        f"{' and '.join(name for name, _, _ in bad)} overestimate{'s' if len(bad) == 1 else ''} the returns.",
        f"Above the discounted returns of evaluation episodes: {shown} (mean and standard error over episodes). The "
        f"root mean square of these returns is {number(bad[0][2])}.",
        f"{more}ower {_learning_rates(evidence)}. After few updates, values may only be on their way from 0: "
        "train longer.",
    )


@check("edge atoms", "medium")
def edge_atoms(evidence: Evidence) -> Found:
    """Find categorical critics whose support is too narrow."""
    worst = max(evidence.edges.items(), key=lambda item: sum(item[1][:2]), default=None)
    if not evidence.updates or worst is None or sum(worst[1][:2]) <= MOST_EDGE_MASS:
        return None
    name, (first, last, v_min, v_max) = worst
    return (
        "The support of the distributional critic is too narrow for the returns.",
        f"{name} puts {first:.1%} of the probability on the first atom and {last:.1%} on the last one, of "
        f"[{number(v_min)}, {number(v_max)}].",
        'Make a new agent with a wider `v_min` and `v_max`, or with `v_range="running"`.',
    )


@check("critic disagreement", "medium")
def disagreement(evidence: Evidence) -> Found:
    """Find critics that disagree."""
    if not evidence.updates or not evidence.greedy or len(evidence.greedy[0].values) < 2:
        return None
    names = evidence.greedy[0].values
    values = [np.concatenate([each.values[name] for each in evidence.greedy]) for name in names]
    distance = float(np.mean([np.abs(one - other) for one, other in itertools.combinations(values, 2)]))
    spread = float(np.std(np.mean(values, axis=0)))
    if distance <= MOST_DISAGREEMENT * spread:
        return None
    return (
        f"The {'two ' if len(values) == 2 else ''}critics disagree more than the values of different states do.",
        f"Their mean distance is {number(distance)}; the standard deviation of the values is {number(spread)}.",
        f"Train longer, lower {_learning_rates(evidence)}, or scale rewards to about 1 with "
        f"{_reward_scaling(evidence)}.",
    )


@check("dead units", "medium")
def capacity(evidence: Evidence) -> Found:
    """Find layers with many dormant units, and features of low rank."""
    dormant = max(evidence.layers, key=lambda layer: layer.dormant, default=None)
    low = [layer for layer in evidence.layers if layer.is_last and layer.units >= 8 and layer.rank <= LEAST_RANK]
    if dormant is None or (dormant.dormant <= MOST_DORMANT and not low):
        return None
    numbers = [f"{dormant.dormant:.0%} of {dormant.units} units in a layer of {dormant.network} are dormant"]
    numbers += [f"the last hidden layer of {layer.network} has the effective rank {layer.rank}" for layer in low]
    return (
        "Networks have lost much of their capacity.",
        f"{'; '.join(numbers)} (on observations of the replay buffer).",
        f"Lower {_learning_rates(evidence)}, or scale observations and rewards"
        + (', or use `norm="layer"`' if _can_have_norm(evidence) else "")
        + ". Dead units do not recover: train a new agent.",
    )


@check("norms", "medium")
def norms(evidence: Evidence) -> Found:
    """Find weights and gradients that have exploded."""
    grown = max(evidence.weights, key=lambda each: each.growth, default=None)
    steep = max(evidence.weights, key=lambda each: each.gradient or 0.0, default=None)
    if grown is None or steep is None:
        return None
    gradient = steep.gradient or 0.0
    if grown.growth <= MOST_GROWTH and gradient <= LARGE_GRADIENT:
        return None
    return (
        "Weights or gradients have become very large.",
        f"The weights of {grown.network} are {grown.growth:.1f} times as large as at the start. The norm of the "
        f"gradient of {steep.network} is {number(gradient)} (root mean square of the latest updates).",
        f"Scale rewards and observations, clip gradients{_named(evidence, 'clip_norm')}, or lower "
        f"{_learning_rates(evidence)}.",
    )


@replay_check("replay buffer", "medium")
def replay_buffer(evidence: Evidence, replay: Replay) -> Found:
    """Find replay buffers that hold little of the run."""
    held = replay.size / max(replay.added, 1)
    if held >= 0.1 or replay.capacity >= 10_000:
        return None
    return (
        "The replay buffer is so small that the agent forgets most of what it has seen.",
        f"It holds the newest {held:.0%} of the observations: {replay.size:,} of {replay.added:,}, from "
        f"{len(replay.lengths):,} complete episodes.",
        "Raise `replay_size`.",
    )


@replay_check("coverage", "medium", regression=True)
def coverage(evidence: Evidence, replay: Replay) -> Found:
    """Find policies that visit what the replay buffer does not hold."""
    if not evidence.greedy:
        return None
    share = far_share(replay, [each.observation[0] for each in evidence.greedy])
    if share is None or share <= 0.5:
        return None
    return (
        "The policy visits states that the replay buffer hardly contains.",
        f"{share:.0%} of the states of evaluation episodes are more than {FAR:g} times as far from the nearest stored "
        "state as 99 % of the stored states are from each other.",
        f"Explore more{_named(evidence, 'act_noise')}, train longer, and check that the environment of the evaluation "
        "is that of the training.",
    )


def far_share(replay: Replay, visited: Sequence[np.ndarray]) -> float | None:
    """Return the share of visited states that are far from the replay buffer; None if features differ."""
    states = np.concatenate(visited).astype(np.float64)
    if states.shape[1] != replay.observation.shape[1]:  # discrete parts are one-hot in the replay buffer
        return None
    states = states[:: max(1, len(states) // 2000)]
    rows = len(replay.observation)
    together = statistics.standardized(np.concatenate([replay.observation, states]))
    stored, visited_states = together[:rows], together[rows:]
    _, within = statistics.nearest(stored[::2], stored[1::2], 1)
    _, distance = statistics.nearest(stored, visited_states, 1)
    return float(np.mean(distance > FAR * np.quantile(within, 0.99)))


@check("exploration noise", "low")
def noise_effect(evidence: Evidence) -> Found:
    """Compare the returns of the exploring and of the greedy policy, if these have the same weights."""
    policies = (evidence.greedy, evidence.exploring, evidence.random)
    evaluates_another = any(evidence.options.get(name) for name in ("average_policy", "keep_best_policy"))
    if evidence.updates == 0 or evaluates_another or min(map(len, policies)) < 3:
        return None
    greedy, exploring, random = (statistics.mean_interval([each.total for each in policy]) for policy in policies)
    difference = greedy.mean - exploring.mean
    error = float(np.hypot(greedy.error, exploring.error))
    gained = abs(max(greedy.mean, exploring.mean) - random.mean)
    if abs(difference) <= 3 * error or abs(difference) <= 0.5 * gained:
        return None
    returns = f"The greedy policy returns {_returns(evidence.greedy)}, with exploration {_returns(evidence.exploring)}."
    if difference > 0:
        return (
            "The exploration noise destroys most of what the policy achieves, so good episodes are rarely stored.",
            returns,
            "Lower `act_noise`, or let it decrease (`act_noise_schedule`)."
            if "act_noise" in evidence.options
            else "Train longer, or lower the entropy of the policy (`ent_coef`).",
        )
    return (
        "The policy is better with exploration noise than without it.",
        returns,
        "Evaluate with `stochastic=True` to see what the agent has learnt, and train longer: the greedy policy may be "
        "stuck at a bound or in a state.",
    )


@check("spread", "low")
def spread(evidence: Evidence) -> Found:
    """Compare the improvement over the run with the spread between evaluations."""
    returns = evidence.curves.get("val_return", np.zeros(0))
    returns = returns[np.isfinite(returns)]
    if len(returns) < 4:
        return None
    last = returns[-max(3, len(returns) // 3) :]
    random = [each.total for each in evidence.random]
    start = min(returns[0], float(np.mean(random))) if random else returns[0]
    improvement, deviation = float(last.mean() - start), float(last.std(ddof=1))
    if improvement > 2 * deviation:
        return None
    return (
        "The improvement is not larger than the fluctuation between evaluations.",
        f"The last {len(last)} evaluations return {number(float(last.mean()))} on average, "
        f"{number(improvement)} above the start, with a standard deviation of {number(deviation)} between "
        f"them. The best evaluation, {number(float(returns.max()))}, is the best of {len(returns)}.",
        "Do not claim an improvement from one evaluation: train three seeds, and evaluate more episodes.",
    )


def _named(evidence: Evidence, *names: str) -> str:
    """Return those of some options that the agent has, in parentheses; "" if it has none."""
    found = [f"`{name}`" for name in names if name in evidence.options]
    return f" ({', '.join(found)})" if found else ""


def _learning_rates(evidence: Evidence) -> str:
    """Return the options that set the learning rates."""
    rates = [name for name in evidence.options if name == "lr" or name.endswith("_lr")]
    used = [f"`{name}`" for name in rates if evidence.options.get(f"{name.removesuffix('lr')}optimizer") is None]
    return " and ".join(filter(None, [", ".join(used[:-1]), *used[-1:]])) or "the learning rates"


def _reward_scaling(evidence: Evidence) -> str:
    """Return what can scale rewards."""
    if evidence.options.get("her") is not None:
        return "the environment's `compute_reward`"
    return "`reward_shaper`" + (" or `reward_scale`" if "reward_scale" in evidence.options else "")


def _normalization(evidence: Evidence) -> str:
    """Return the advice to normalise observations, if they are not, and the first letter of what follows."""
    scale = evidence.input_scale
    if evidence.options.get("normalize_observations") or (scale is not None and scale <= NORMAL_SCALE):
        return "S"
    if evidence.has_custom_networks:
        return f"Apply {NORMALIZER}, s"
    return "Normalise observations (`normalize_observations=True`), s"


def _can_be_recurrent(evidence: Evidence) -> bool:
    """Return whether the agent would accept the option `recurrent`."""
    options = evidence.options
    has_torso = options.get("torso") == "two_branch"
    return "recurrent" in options and not evidence.has_custom_networks and not has_torso and options.get("her") is None


def _can_have_norm(evidence: Evidence) -> bool:
    """Return whether the option `norm` can be set."""
    return evidence.options.get("norm", "") is None and not evidence.has_custom_networks


def _returns(episodes: Sequence[Trajectory]) -> str:
    """Return the mean and the standard error of the returns of episodes as text."""
    if not episodes:
        return "unknown"
    mean, error = statistics.mean_interval([each.total for each in episodes])
    return f"{number(mean)} ± {number(error)}"


def verdicts(evidence: Evidence) -> list[Verdict]:
    """Return the verdicts of all checks, the worst first."""
    found = filter(None, (each(evidence) for each in CHECKS))
    return sorted(found, key=lambda verdict: SEVERITIES.index(verdict.severity))
