"""Reference inputs and outputs in an export, with which `tfdpg verify` checks where the policy is deployed."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import RecurrentSpec
from tfdpg.acting.stored import DAMAGE
from tfdpg.export.signatures import Signature, count, example_rewards
from tfdpg.export.verify import STEPS, Inputs, Reference, Run, as_run, run_steps
from tfdpg.exported import ExportError, Policy

REFERENCES = "references.npz"
"""The file in an export. Its arrays are `observations/NAME`, `inputs/SIGNATURE/NAME`, `outputs/SIGNATURE/NAME`,
`rewards` of the episodes of a recurrent policy, and `in_half_precision`."""


class Call(NamedTuple):
    """A call of a signature. For `pi` of a recurrent policy, all arrays are `[episodes, steps, ...]`.

    Attributes:
        inputs: the inputs by name. For `pi` of a recurrent policy, only the observations.
        outputs: the outputs by name that the agent's networks compute.
    """

    inputs: Inputs
    outputs: Inputs


class References(NamedTuple):
    """The content of the file.

    Attributes:
        calls: a call of each signature.
        rewards: the rewards of the episodes of a recurrent policy, `[episodes, steps]`; None for other policies.
        in_half_precision: whether some of the networks compute in half precision.
        observations: the number of observations.
    """

    calls: dict[str, Call]
    rewards: np.ndarray | None
    in_half_precision: bool
    observations: int


def write_references(
    path: Path,
    signatures: Mapping[str, Signature],
    references: Mapping[str, Reference],
    examples: Inputs,
    recurrent_spec: RecurrentSpec | None,
    in_half_precision: bool,
) -> None:
    """Write inputs of all signatures, and the outputs that the agent's networks compute from them.

    Args:
        path: the file.
        signatures: the signatures by name.
        references: compute the expected outputs of the signatures.
        examples: raw observations by input name, at least five. For a recurrent policy, they become episodes of five
            steps, which begin in the initial state, and the sequences of its critics.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.
        in_half_precision: whether some of the networks compute in half precision.
    """
    examples = {name: values[: len(values) // STEPS * STEPS] for name, values in examples.items()}
    episodes = {name: in_episodes(values) for name, values in examples.items()}
    arrays: dict[str, Any] = {f"observations/{name}": values for name, values in examples.items()}
    arrays["in_half_precision"] = np.array(in_half_precision)
    if recurrent_spec is None:
        outputs = {"pi": references["pi"](examples)}
        action = outputs["pi"]["pi"]
    else:
        arrays["rewards"] = in_episodes(example_rewards(examples, 1))
        outputs = {"pi": stepped(recurrent_spec, as_run(references), episodes, arrays["rewards"])}
        pi = outputs["pi"]["pi"]
        action = pi.reshape(-1, *pi.shape[2:])
    for name, signature in signatures.items():
        if name != "pi":
            observations, a = (episodes, in_episodes(action)) if signature.axes == 2 else (examples, action)
            others = {"a": a, **signature.examples(observations)}
            others = {key: np.asarray(others[key]) for key in signature.inputs}
            outputs[name] = references[name]({**observations, **others})
            arrays |= {f"inputs/{name}/{key}": values for key, values in others.items()}
        arrays |= {f"outputs/{name}/{key}": values for key, values in outputs[name].items()}
    np.savez(path, **arrays)


def read_references(policy: Policy) -> References:
    """Read what `write_references` wrote into the directory of an export, in whatever format the export is.

    Raises:
        ExportError: the export has no such file, or the file is damaged. The message names it.
    """
    path = policy.directory / REFERENCES
    if REFERENCES not in policy.metadata["files"]:
        raise ExportError(
            f"{path} is missing: the export has no reference outputs, because an older version of tfdpg wrote it. "
            "Export the policy again."
        )
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = dict(file)
        if wrong := [name for name, values in arrays.items() if values.dtype.kind not in "biuf"]:
            raise ValueError(f"`{wrong[0]}` must consist of numbers")
        return _parsed(policy, arrays)
    except KeyError as error:
        raise ExportError(f"{path} is damaged: it has no array {error}") from error
    except (*DAMAGE, IndexError, OSError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ExportError(f"{path} is damaged: {error}") from error


def _parsed(policy: Policy, arrays: Mapping[str, np.ndarray]) -> References:
    leaves = {leaf.name: arrays[f"observations/{leaf.name}"] for leaf in policy.spec.leaves}
    ranks = {leaf.name: len(leaf.shape) for leaf in policy.spec.leaves}
    calls = {}
    for name, facts in policy.metadata["signatures"].items():
        inputs, outputs = (
            {key.removeprefix(start): values for key, values in arrays.items() if key.startswith(start)}
            for start in (f"inputs/{name}/", f"outputs/{name}/")
        )
        if not outputs:
            raise ValueError(f"there are no outputs of the signature {name!r}")
        is_stepped = name == "pi" and policy.recurrent_spec is not None
        for one in facts["inputs"]:
            if one["name"] in leaves:
                over_time = is_stepped or len(one["shape"]) == ranks[one["name"]] + 2
                observations = leaves[one["name"]]
                inputs[one["name"]] = in_episodes(observations) if over_time else observations
            elif not is_stepped and one["name"] not in inputs:
                raise ValueError(f"there is no input {one['name']!r} of the signature {name!r}")
        calls[name] = Call(inputs, outputs)
    if not count(leaves):
        raise ValueError("there are no observations")
    rewards = None if policy.recurrent_spec is None else arrays["rewards"]
    return References(calls, rewards, bool(arrays["in_half_precision"]), int(count(leaves)))


def in_episodes(values: np.ndarray) -> np.ndarray:
    """Reshape `[n, ...]` to `[episodes, STEPS, ...]`."""
    return values.reshape(-1, STEPS, *values.shape[1:])


def stepped(
    recurrent_spec: RecurrentSpec, run: Run, observations: Inputs, rewards: np.ndarray
) -> dict[str, np.ndarray]:
    """Step through episodes from the initial state, and return the outputs of `pi`, `[episodes, steps, ...]` by name.

    Args:
        recurrent_spec: describes the recurrent state.
        run: computes `initial_state` and `pi`.
        observations: raw observations by input name, `[episodes, steps, ...]`.
        rewards: the rewards of the steps, `[episodes, steps]`.
    """
    steps = run_steps(recurrent_spec, run, observations, rewards)
    return {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
