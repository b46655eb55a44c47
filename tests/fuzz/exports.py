"""Damaged exports: an error of tfdpg's that names the path, or the policy that was exported.

A SavedModel is a program, so none with changed bytes is given to TensorFlow. Where the sums were computed again
(`forge`), `tfdpg.json` and `policy.npz` were changed, or another model took this one's place: an error of tfdpg's, or a
policy that acts.
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
    """What a policy does, with TensorFlow and without."""
    policy.spec.observation_space.seed(0)
    observation = policy.spec.observation_space.sample()
    return policy(observation), policy.numpy()(observation)


@functools.cache
def original(model):
    return actions(tfdpg.load(version(model)))


def case(number, place, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
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
