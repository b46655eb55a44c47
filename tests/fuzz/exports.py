"""Damaged exports: loading raises an error of tfdpg that names the path, or returns the exported policy.

A SavedModel is a program, so TensorFlow never loads one with changed bytes. If the checksums are valid (`forge`), but
`tfdpg.json` or `policy.npz` was changed or the SavedModel replaced by another one, loading raises an error of tfdpg or
returns a policy that acts.
"""

import functools
import shutil
from pathlib import Path

import numpy as np

import tfdpg
from tests.fuzz.damage import check_ours, damage, forge, picked

MODELS = ["ddpg-pendulum", "d4pg-categorical-pendulum", "td3-lstm-pendulum", "acer-cartpole", "acer-pendulum"]


def version(model):
    return Path(__file__).parents[2] / "exported_models" / model / "1"


def actions(policy):
    """Return the actions of a policy, with TensorFlow and without."""
    policy.spec.observation_space.seed(0)
    observation = policy.spec.observation_space.sample()
    return policy(observation), policy.numpy()(observation)


@functools.cache
def original(model):
    return actions(tfdpg.load(version(model)))


def case(number, place, done):
    """Run a case in an empty directory, append to `done` what it does, and return its outcome."""
    rng = np.random.default_rng([2, number])
    model = MODELS[number // 10 % len(MODELS)]
    directory = shutil.copytree(version(model), place / "model" / "1")
    relatives = [functools.partial(version, other) for other in MODELS if other != model]
    is_forged = rng.random() < 0.5
    done += [model, "forged" if is_forged else "damaged"]
    if is_forged and rng.random() < 0.2:
        source = picked(rng, relatives)()
        done.append(f"the model of {source}")
        shutil.copy(source / "saved_model.pb", directory)
        shutil.copytree(source / "variables", directory / "variables", dirs_exist_ok=True)
    done += forge(rng, directory, relatives, "tfdpg.json") if is_forged else damage(rng, directory, relatives)
    policy = None
    try:
        policy = tfdpg.load(directory.parent)
        if max(policy.spec.widths) > 10**5:
            return "large"
        found = actions(policy)
    except Exception as error:
        assert is_forged or policy is None, "damaged files were given to TensorFlow"
        check_ours(error, directory)
        return "refused"
    if is_forged:
        return "loaded"
    for one, other in zip(found, original(model), strict=True):
        np.testing.assert_array_equal(one, other)
    return "equal"
