"""The command `tfdpg compare`."""

import math
from collections.abc import Callable, Mapping, Sequence
from json import dumps, load
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import tyro

from tfdpg.arguments import positive_int, reject
from tfdpg.cli import run_paths
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.environments import check_trusted, make, without_wrappers

FEWEST = 5
"""The smallest number of episodes from which an interval is computed."""
ROUNDING = 1e-5
"""Returns that differ by less than this fraction are equal."""
STATUS = {"not worse": 0, "worse": 1, "cannot tell": 2}
"""The exit status of each verdict."""
OPINION = "The critics' values are opinions of the policies' own critics. They are no returns."


def compare(
    old: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OLD")],
    new: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")],
    /,
    env: str | None = None,
    episodes: int = 20,
    fail_below: float = 0.0,
    seed: int = 0,
    max_ep_len: int | None = None,
    log: Path | None = None,
    version: int | None = None,
    label: str | None = None,
    trusted: bool = False,
    json: bool = False,
) -> int:
    """Compare two policies in episodes with the same initial states, or on logged observations.

    The exit status is 0 if NEW is not worse, 1 if it is worse, and 2 if there are too few episodes to tell.

    Args:
        old: a run directory, whose latest checkpoint is taken, an exported model, or the URL of a served one, such as
            http://host:8501/v1/models/NAME.
        new: the other one.
        env: id of the environment; the default is the environment of the policies.
        episodes: number of episodes of each policy.
        fail_below: NEW is worse if its mean return minus that of OLD is below this number.
        seed: seed of the initial states.
        max_ep_len: truncate episodes after this many steps; the default is the environment's own limit.
        log: compare actions and the critics' values on the observations of these prediction logs instead, or on those
            of a directory that `tfdpg evaluate --record` wrote.
        version: of the prediction logs, use only the requests that this version of the model answered.
        label: of the prediction logs, use only the requests for this label, such as canary.
        trusted: import the modules and follow the links that the files name, and load exported models that contain
            unsafe operations.
        json: print one JSON object instead of text.
    """
    positive_int("episodes", episodes)
    if episodes < FEWEST:
        raise reject("episodes", f"at least {FEWEST}", episodes)
    if not math.isfinite(fail_below):
        raise reject("fail_below", "a finite number", fail_below)
    of_episodes = {"env": env is not None, "fail-below": fail_below != 0, "max-ep-len": max_ep_len is not None}
    for name in (name for name, is_given in of_episodes.items() if is_given and log is not None):
        raise ValueError(f"`--{name}` does nothing where `--log` compares without episodes.")
    if log is None and (version is not None or label is not None):
        raise ValueError("`--version` and `--label` select requests of the prediction logs of `--log`.")
    import_tensorflow()
    from tfdpg.cli import runs

    policies, environments = [], []
    for given in (old, new):
        if given.startswith(("http://", "https://")):
            policies.append(_served(given))
            continue
        run_paths.check_policy(Path(given))
        policy, environment, is_trusted = runs.load_policy(Path(given), None, trusted)
        policies.append(policy)
        environments.append((environment, is_trusted, Path(given)))
    if log is not None:
        found = on_log(policies, log, version, label)
        print(dumps(found) if json else _log_text(found))
        return 0
    environment = {"id": env, "kwargs": {}} if env is not None else _common(environments)
    comparison = in_episodes(
        policies, lambda: make(environment["id"], **environment["kwargs"]), episodes, seed, max_ep_len
    )
    verdict = comparison.verdict(fail_below)
    print(dumps(comparison.to_json() | {"verdict": verdict}) if json else comparison.text(verdict, fail_below))
    return STATUS[verdict]


def _common(environments: Sequence[tuple[dict[str, Any] | None, bool, Path]]) -> dict[str, Any]:
    """Return the environment of the policies, which must be trusted by one of them, and the same for both."""
    known = [(without_wrappers(each, file), trust, file) for each, trust, file in environments if each is not None]
    if not known:
        raise ValueError("The environment of the policies is not known: pass `--env`.")
    environment, is_trusted, place = max(known, key=lambda each: each[1])
    if any(each[0] != environment for each in known):
        ids = " and ".join(str(each[0] and each[0]["id"]) for each in known)
        raise ValueError(f"The policies are of different environments, or of different arguments: {ids}. Pass `--env`.")
    check_trusted(environment["id"], environment["kwargs"], is_trusted, place)
    return environment


class Comparison(NamedTuple):
    """Two policies in the same episodes.

    Attributes:
        values: for each result, its values in the episodes of both policies, `[2, episodes]`.
        distances: the largest difference between the actions of the two policies on the observations of the first,
            `[act_dim]`; for a Discrete space, the share of observations with different actions, `[1]`.
        observations: the number of these observations.
        is_discrete: whether the action space is Discrete.
    """

    values: dict[str, np.ndarray]
    distances: np.ndarray
    observations: int
    is_discrete: bool

    def verdict(self, fail_below: float) -> str:
        """Say whether the second policy is worse, from the interval of the difference of returns."""
        _, low, high = difference(self.values["return"])
        fail_below -= ROUNDING * float(np.abs(self.values["return"]).max())
        return "not worse" if low >= fail_below else "worse" if high < fail_below else "cannot tell"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        old, new = ({name: float(each[i].mean()) for name, each in self.values.items()} for i in (0, 1))
        differences = {name: difference(each) for name, each in self.values.items()}
        name = "different" if self.is_discrete else "largest_differences"
        actions = {name: self.distances.tolist(), "observations": self.observations}
        episodes = len(self.values["return"][0])
        return {"episodes": episodes, "old": old, "new": new, "differences": differences, "actions": actions}

    def text(self, verdict: str, fail_below: float) -> str:
        """Return a table, the differences of actions, and the verdict."""
        rows = [("", "old", "new", "new − old, 95 % interval")]
        for name, each in self.values.items():
            mean, low, high = difference(each)
            olds, news = each.mean(axis=1)
            rows.append((name.replace("_", " "), f"{olds:.4g}", f"{news:.4g}", f"{mean:.4g} ({low:.4g} to {high:.4g})"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{part:{width}}" for part, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        distances = ", ".join(f"{each:.3g}" for each in self.distances)
        what = "share of different actions" if self.is_discrete else "largest differences of actions"
        lines.append(f"{what}: {distances} (in {self.observations:,} observations of old)")
        episodes = len(self.values["return"][0])
        said = {
            "not worse": "new is not worse",
            "worse": "new is worse",
            "cannot tell": f"{episodes} episodes are too few to tell: pass more (--episodes)",
        }
        return "\n".join([*lines, f"{said[verdict]} (difference of returns, --fail-below {fail_below:g})"])


def difference(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of the paired differences of values `[2, n]`, and the ends of its 95 % interval (Student's t)."""
    paired = values[1] - values[0]
    n = len(paired)
    half = t_quantile(n - 1) * paired.std(ddof=1) / math.sqrt(n)
    mean = paired.mean()
    return float(mean), float(mean - half), float(mean + half)


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, for at least 4 degrees of freedom, to 0.2 %.

    Source: Abramowitz, Stegun 1964, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def in_episodes(
    policies: Sequence[Any], make_env: Callable[[], Any], episodes: int, seed: int, max_ep_len: int | None
) -> Comparison:
    """Run both policies in episodes with the same initial states.

    Args:
        policies: two policies.
        make_env: makes the environment.
        episodes: the number of episodes of each.
        seed: the seed of the initial states.
        max_ep_len: truncate episodes after this many steps.
    """
    from tfdpg.training.evaluation import run_episodes

    runs = []
    watcher: Any = None
    for i in (0, 1):
        env = make_env()
        try:
            if i == 0:
                policy = watcher = _Watcher(policies, env)
            else:
                policy = policies[1]
            runs.append(list(run_episodes(policy, env, episodes, seed=seed, max_ep_len=max_ep_len)))
        finally:
            env.close()
    named: list[list[dict[str, float]]] = [
        [
            {"return": each.episode_return, "length": each.length}
            | {"terminated": each.terminated, "truncated": each.truncated}
            | ({} if each.success is None else {"success": each.success})
            | {f"info {name}": value for name, value in each.info.items()}
            for each in run
        ]
        for run in runs
    ]
    common = [name for name in named[0][0] if all(name in each for run in named for each in run)]
    values = {name: np.array([[float(each[name]) for each in run] for run in named]) for name in common}
    return Comparison(values, watcher.distances, watcher.observations, watcher.spec.actions is not None)


class _Watcher:
    """Acts as the first of two policies, and asks the second one for its actions on the same observations."""

    def __init__(self, policies: Sequence[Any], env: Any):
        from tfdpg.training.evaluation import prepare_policy

        (self._first, first), (self._second, second) = (prepare_policy(each, env) for each in policies)
        self._memories = [each for each in (first, second) if each is not None]
        self.spec = self._first.spec
        self.distances = np.zeros(1 if self.spec.actions is not None else self.spec.act_dim)
        self.observations = 0

    def __call__(self, observation: Any) -> np.ndarray:
        """Return the actions of the first policy."""
        action, other = self._first(observation), self._second(observation)
        rows = len(action)
        apart = np.abs(np.asarray(action, np.float64) - other).reshape(rows, -1)
        if self.spec.actions is None:
            self.distances = np.maximum(self.distances, apart.max(axis=0))
        else:
            differing = self.distances * self.observations + np.count_nonzero(apart)
            self.distances = differing / (self.observations + rows)
        self.observations += rows
        return action

    def received(self, reward: np.ndarray) -> None:
        """Pass the rewards on."""
        for each in self._memories:
            each.received(reward)

    def end(self, ended: np.ndarray) -> None:
        """Pass the ends of episodes on."""
        for each in self._memories:
            each.end(ended)


def _served(url: str) -> Callable[[Any], np.ndarray]:
    """Return the policy of a served model as a function from an observation to an action."""

    def plain(observation: Any) -> Any:
        if isinstance(observation, Mapping):
            return {name: plain(part) for name, part in observation.items()}
        return np.asarray(observation).tolist()

    def act(observation: Any) -> np.ndarray:
        body = dumps({"instances": [plain(observation)]}).encode()
        with urlopen(Request(f"{url.rstrip('/')}:predict", body), timeout=60) as response:
            return np.asarray(load(response)["predictions"][0], np.float32)

    return act


def on_log(policies: Sequence[Any], log: Path, version: int | None = None, label: str | None = None) -> dict[str, Any]:
    """Compare the actions of two exported policies, and what their critics think of both, on logged observations.

    Args:
        policies: two exported policies.
        log: prediction logs or recorded steps.
        version: see `read_steps`.
        label: see `read_steps`.

    Raises:
        ValueError: a policy is recurrent or not exported, or the log cannot be used.
    """
    from tfdpg.cli.logs import read_steps
    from tfdpg.exported.policy import Policy

    if not all(isinstance(each, Policy) and each.recurrent_spec is None for each in policies):
        raise ValueError("`--log` compares exported policies that are not recurrent.")
    spec = policies[0].spec
    parts = read_steps([log], spec, version, label).observations
    observations = parts if spec.is_dict else parts["x"]
    actions = [each(observations) for each in policies]
    apart = np.abs(np.asarray(actions[1], np.float64) - actions[0]).reshape(len(actions[0]), -1)
    values = {
        f"{name} of {whose}": [float(np.mean(critic.value(name, observations, action))) for action in actions]
        for whose, critic in zip(("old", "new"), policies, strict=True)
        for name in critic.critics
    }
    actions = {"largest_differences": apart.max(axis=0).tolist(), "mean_differences": apart.mean(axis=0).tolist()}
    return {"observations": len(apart), "actions": actions, "values": values, "note": OPINION}


def _log_text(found: Mapping[str, Any]) -> str:
    lines = [f"{found['observations']:,} logged observations"]
    for name, numbers in found["actions"].items():
        lines.append(f"{name.replace('_', ' ')} of actions: {', '.join(f'{each:.3g}' for each in numbers)}")
    for name, (old, new) in found["values"].items():
        lines.append(f"{name}: {old:.4g} for the actions of old, {new:.4g} for those of new")
    return "\n".join([*lines, found["note"]])
