"""Mutations that the quick tests must notice: wrong signs, targets, discounts, clips, delays, weights, traces.

    python tests/mutations.py              # all of them, one after the other; exits with 1 if one lives
    python tests/mutations.py td3 retrace  # those whose name contains one of these words

Each is applied to a copy of the package; the tests named beside it are run there, and must fail. Without a mutation they
must pass, which is seen first.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TD3 = ("agents/test_td3.py", "agents/test_td3_options.py")
DDPG = ("agents/test_ddpg.py",)
D4PG = ("agents/test_d4pg.py",)
ACER = ("agents/test_acer_update.py",)
SCORES = ("test_scores.py",)


class Mutation(NamedTuple):
    """A text of a file of tfdpg that stands there once, what takes its place, and the tests that notice."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTATIONS = [
    Mutation(*fields)
    for fields in (
        # the target
        (
            "td3: online critics in the target",
            "agents/td3.py",
            "asked = ((q, self.bootstrap[name])",
            "asked = ((q, self.networks[name])",
            TD3,
        ),
        (
            "td3: online policy in the target",
            "agents/td3.py",
            'batch.ask_next(self.bootstrap["pi"])',
            "batch.ask_next(self.pi)",
            TD3,
        ),
        (
            "td3: the larger critic in the target",
            "networks/tensors.py",
            "return tf.reduce_min([flat_values",
            "return tf.reduce_max([flat_values",
            TD3,
        ),
        (
            "td3: no smoothing",
            "agents/td3.py",
            "smooth_action(action_t, noise, self.noise_clip",
            "smooth_action(action_t, 0 * noise, self.noise_clip",
            TD3,
        ),
        (
            "td3: smoothing in fractions of the range",
            "agents/td3.py",
            "options.target_noise, self.spec) * self.spec.half_range",
            "options.target_noise, self.spec)",
            TD3,
        ),
        (
            "td3: one noise for the whole batch",
            "agents/td3.py",
            "stateless_normal((self.elements, self.spec.act_dim), key)",
            "tf.repeat(stateless_normal((1, self.spec.act_dim), key), self.elements, axis=0)",
            TD3,
        ),
        (
            "td3: the same noise at each update",
            "agents/td3.py",
            "key = tf.stack([tf.constant(self.seed, tf.int64), counter])",
            "key = tf.stack([tf.constant(self.seed, tf.int64), 0 * counter])",
            TD3,
        ),
        (
            "ddpg: online critic in the target",
            "agents/ddpg.py",
            "batch.action, self.q1_target, action_t)",
            "batch.action, self.q1, action_t)",
            DDPG,
        ),
        (
            "ddpg: online policy in the target",
            "agents/ddpg.py",
            "action_t = batch.ask_next(self.pi_target)",
            "action_t = batch.ask_next(self.pi)",
            DDPG,
        ),
        (
            "d4pg: online critics in the target",
            "agents/d4pg.py",
            "asked = ((q, self.bootstrap[name])",
            "asked = ((q, self.networks[name])",
            D4PG,
        ),
        (
            "d4pg: online policy in the target",
            "agents/d4pg.py",
            'batch.ask_next(self.bootstrap["pi"])',
            "batch.ask_next(self.pi)",
            D4PG,
        ),
        (
            "d4pg: the critic with the larger mean",
            "agents/d4pg.py",
            "self.head.mean(output1) <= self",
            "self.head.mean(output1) >= self",
            D4PG,
        ),
        (
            "mixture: one key for both draws",
            "networks/distributions.py",
            "key + tf.constant([0, 2**40], tf.int64)",
            "key",
            D4PG,
        ),
        (
            "losses: the target has a gradient",
            "losses/td.py",
            "tf.stop_gradient(r_t + discount_t * value_t)",
            "r_t + discount_t * value_t",
            ("losses/test_td.py",),
        ),
        (
            "losses: the projection does not clip",
            "losses/distributional.py",
            "tf.clip_by_value(atoms_from, v_min, v_max) - v_min",
            "atoms_from - v_min",
            ("losses/test_distributional.py",),
        ),
        # ends and steps
        (
            "replay: ends bootstrap",
            "replay/transitions.py",
            "discount * ~terminated",
            "discount * (terminated | True)",
            ("replay/test_ring.py",),
        ),
        (
            "replay: an end within n steps bootstraps",
            "replay/transitions.py",
            "terminated = np.where(goes_on, ring.terminated[last], terminated)",
            "pass",
            ("replay/test_ring.py",),
        ),
        (
            "replay: one power of gamma too many",
            "replay/transitions.py",
            "reward = reward + discount * np.where",
            "reward = reward + discount * gamma * np.where",
            ("replay/test_ring.py",),
        ),
        (
            "replay: the discount of one step for n",
            "replay/transitions.py",
            "np.where(goes_on, discount * np.float32(gamma), discount)",
            "discount",
            ("replay/test_ring.py",),
        ),
        (
            "windows: terminated steps have a discount",
            "replay/windows.py",
            "np.where(ring.terminated[rows], 0.0, gamma)",
            "gamma",
            ("replay/test_windows.py",),
        ),
        (
            "sequences: ends bootstrap",
            "replay/sequences.py",
            "discount * ~ended",
            "discount",
            ("replay/test_sequences.py",),
        ),
        (
            "sequences: what stands before an episode is recalled in it",
            "replay/sequences.py",
            "np.where(ring.successor[predecessor] == rows, predecessor, NONE)",
            "predecessor",
            ("replay/test_sequences.py",),
        ),
        (
            "sequences: the state of the first step to learn from",
            "replay/sequences.py",
            "ring.rows[inside[..., 0], after:-1]",
            "ring.rows[slots, after:-1]",
            ("replay/test_sequences.py",),
        ),
        (
            "sequences: steps that were not taken are learnt from",
            "replay/sequences.py",
            "acted * weights[..., None]",
            "weights[..., None]",
            ("replay/test_sequences.py",),
        ),
        (
            "sequences: burn-in has a gradient",
            "networks/histories.py",
            "tf.stop_gradient(state), training",
            "state, training",
            ("agents/test_recurrent.py",),
        ),
        (
            "sequences: the policy forgets the state that was stored",
            "networks/histories.py",
            "return self.state if action is None else network.start(self.before)",
            "return network.start(self.before)",
            ("agents/test_recurrent.py",),
        ),
        (
            "sequences: steps that there were not count in the mean",
            "networks/histories.py",
            "tf.reduce_sum(self.weight * losses) / tf.reduce_sum(self.acted)",
            "tf.reduce_mean(self.weight * losses)",
            ("agents/test_recurrent_update.py",),
        ),
        (
            "sequences: targets bootstrap one row too early",
            "networks/histories.py",
            "rows[:, first + m : first + m + steps]",
            "rows[:, first + m - 1 : first + m - 1 + steps]",
            ("agents/test_recurrent_update.py",),
        ),
        (
            "sequences: rows that there are not are seen",
            "networks/histories.py",
            "real[..., layout.valid] > 0",
            "real[..., layout.valid] > -1",
            ("agents/test_recurrent.py",),
        ),
        (
            "sequences: the mean error alone is the priority",
            "replay/sequences.py",
            "ETA * sizes.max(axis=-1) + (1 - ETA) * mean",
            "mean",
            ("agents/test_recurrent_update.py",),
        ),
        (
            "memory: the gradient stops at masked steps",
            "networks/memory.py",
            "tf.where(valid[t], 0.0, old) + new",
            "new",
            ("networks/test_memory.py",),
        ),
        (
            "memory: masked steps are gone through",
            "networks/memory.py",
            "tf.where(valid[t], new, old)",
            "new",
            ("networks/test_memory.py",),
        ),
        # delay, clip, averaging
        (
            "td3: the policy moves at odd updates",
            "agents/td3.py",
            "counter % self.policy_delay == 0",
            "counter % self.policy_delay == 1",
            TD3,
        ),
        (
            "td3: targets move at each update",
            "agents/td3.py",
            "where_due(counter % self.target_update_every == 0, self.update_targets)",
            "where_due(counter >= 0, self.update_targets)",
            TD3,
        ),
        (
            "losses: smoothing noise is not clipped",
            "losses/td.py",
            "action + tf.clip_by_value(noise, -noise_clip, noise_clip)",
            "action + noise",
            ("losses/test_td.py",),
        ),
        (
            "losses: smoothed actions leave the box",
            "losses/td.py",
            "tf.clip_by_value(action + tf.clip_by_value(noise, -noise_clip, noise_clip), low, high)",
            "action + tf.clip_by_value(noise, -noise_clip, noise_clip)",
            ("losses/test_td.py",),
        ),
        (
            "polyak takes what it should keep",
            "training/gradients.py",
            "polyak * old + (1 - polyak) * new",
            "(1 - polyak) * old + polyak * new",
            (*TD3, *DDPG),
        ),
        (
            "d4pg: action gradients are not clipped",
            "losses/td.py",
            "limit / tf.maximum(norm, limit)",
            "limit / limit",
            ("losses/test_td.py", *D4PG),
        ),
        # weights and signs
        (
            "the critic's loss has no weight",
            "networks/tensors.py",
            "tf.reduce_mean(self.weight * losses)",
            "tf.reduce_mean(losses)",
            (*TD3, *D4PG),
        ),
        ("the policy goes down the critic", "training/gradients.py", "return -q\n", "return q\n", (*TD3, *DDPG)),
        (
            "d4pg: the policy goes down the critic",
            "training/gradients.py",
            "return -(tf.stop_gradient(q) + rise)",
            "return tf.stop_gradient(q) + rise",
            D4PG,
        ),
        (
            "prioritized: weights are not normalised",
            "replay/prioritized.py",
            "weights /= weights.max(axis=1, keepdims=True)",
            "pass",
            ("replay/test_prioritized.py",),
        ),
        (
            "prioritized: weights grow with the probability",
            "replay/prioritized.py",
            "(self._drawable * probability) ** -beta",
            "(self._drawable * probability) ** beta",
            ("replay/test_prioritized.py",),
        ),
        # ACER
        (
            "retrace: no traces",
            "losses/retrace.py",
            "decay = discount * c * ",
            "decay = 0 * discount * c * ",
            ("losses/test_retrace.py",),
        ),
        (
            "retrace: traces run over cuts",
            "agents/acer.py",
            "    c = c * batch.acted\n",
            "",
            ACER,
        ),
        (
            "retrace: the trace of the step itself",
            "agents/acer.py",
            "tf.concat([c[:, 1:], tf.zeros_like(c[:, :1])], axis=1)",
            "c",
            ACER,
        ),
        (
            "acer: importance weights are not truncated",
            "losses/acer.py",
            "tf.minimum(limit / probs, 1 / behaviour_probs)",
            "1 / behaviour_probs",
            ("losses/test_acer.py",),
        ),
        (
            "acer: no bias correction",
            "losses/acer.py",
            "weight * away + correction * away_prime",
            "weight * away",
            ("losses/test_acer.py",),
        ),
        (
            "acer: the trust region adds",
            "losses/acer.py",
            "g - tf.math.divide_no_nan(tf.nn.relu(excess), square) * k",
            "g + tf.math.divide_no_nan(tf.nn.relu(excess), square) * k",
            ("losses/test_acer.py",),
        ),
        (
            "acer: the divergence the other way round",
            "agents/acer.py",
            "k = self.family.kl_gradient(average, statistics)",
            "k = self.family.kl_gradient(statistics, average)",
            ACER,
        ),
        (
            "acer: the average policy is the policy",
            "agents/acer.py",
            'batch.ask(self.targets["pi"])',
            "batch.ask(self.pi)",
            ACER,
        ),
        (
            "acer: V learns from untruncated weights",
            "losses/acer.py",
            "tf.minimum(tf.ones_like(rho), rho) * (target - q) + v",
            "rho * (target - q) + v",
            ("losses/test_acer.py",),
        ),
        (
            "acer: what is no step is learnt",
            "networks/tensors.py",
            "tf.where(self.acted > 0, losses, 0.0)",
            "losses",
            ACER,
        ),
        (
            "acer: the average takes what it should keep",
            "agents/acer.py",
            "polyak_average(averaged, self.networks[name], self.alpha",
            "polyak_average(averaged, self.networks[name], 1 - self.alpha",
            ACER,
        ),
        # scores
        (
            "scores: a bootstrap over all tasks at once",
            "scores.py",
            "each == one for each in tasks",
            "True for each in tasks",
            SCORES,
        ),
        (
            "scores: a mean of all in place of the interquartile one",
            "scores.py",
            "cut = len(values) // 4",
            "cut = 0",
            SCORES,
        ),
        (
            "scores: the first tenth that does not count counts",
            "scores.py",
            "10 * x > 9 * steps",
            "10 * x >= 9 * steps",
            SCORES,
        ),
    )
]


def passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Whether some tests of a tree pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-n0",
        *(f"tests/{test}" for test in tests),
    ]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    status = subprocess.run(command, cwd=tree, env=environment, capture_output=True).returncode
    assert status in (0, 1), f"pytest ended with {status}: {' '.join(command)}"
    return status == 0


def main() -> int:
    """Tries the mutations that the command line names; returns the exit status."""
    words = sys.argv[1:]
    wanted = [mutation for mutation in MUTATIONS if not words or any(word in mutation.name for word in words)]
    alive = []
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for part in ("tfdpg", "tests"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        for tests in sorted({mutation.tests for mutation in wanted}):
            assert passes(tree, tests), f"{tests} fail without a mutation"
        for mutation in wanted:
            file = tree / "tfdpg" / mutation.file
            text = file.read_text()
            assert text.count(mutation.before) == 1, f"{mutation.name}: {mutation.before!r} must be in {file} once"
            file.write_text(text.replace(mutation.before, mutation.after))
            is_alive = passes(tree, mutation.tests)
            file.write_text(text)
            alive += [mutation.name] if is_alive else []
            print(f"{'ALIVE ' if is_alive else 'killed'} {mutation.name}", flush=True)
    print(f"{len(wanted) - len(alive)} of {len(wanted)} killed")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
