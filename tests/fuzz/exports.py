"""Damaged exports: an error of tfdpg's that names the path, or the policy that was exported.

A SavedModel is a program, so none with changed bytes is given to TensorFlow. Where the sums were computed again
(`forge`), `tfdpg.json` and `policy.npz` were changed, or the model of a relative took this one's place: an error of
tfdpg's, or a policy that acts.
"""

import functools
import shutil
from pathlib import Path

import numpy as np

import tfdpg
from tests.fuzz.damage import damage, forge, picked
from tests.fuzz.outcome import check_ours, within_bounds

SHIPPED = Path(__file__).parents[2] / "exported_models"
MODELS = ["ddpg-pendulum", "d4pg-categorical-pendulum", "td3-lstm-pendulum", "acer-cartpole", "acer-pendulum"]
LARGEST = 10**5
"""The numbers of an observation that is still tried."""


def version(model):
    return SHIPPED / model / "1"


def actions(policy, number=0):
    """What a policy does, with TensorFlow and without."""
    policy.spec.observation_space.seed(number)
    observation = policy.spec.observation_space.sample()
    return policy(observation), policy.numpy()(observation)


@functools.cache
def original(model):
    return actions(tfdpg.load(version(model)))


def case(number, directory, done):
    """Runs a case in an empty directory; says in `done` what it does; gives its outcome."""
    rng, model = np.random.default_rng([2, number]), MODELS[number // 10 % len(MODELS)]
    directory = shutil.copytree(version(model), directory / "model" / "1")
    relatives = [functools.partial(version, other) for other in MODELS if other != model]
    is_forged = rng.random() < 0.5
    done += [model, "forged" if is_forged else "damaged"]
    if not is_forged:
        done += damage(rng, directory, relatives)
    elif rng.random() < 0.2:
        source = picked(rng, relatives)()
        done.append(f"the model of {source}")
        shutil.copy(source / "saved_model.pb", directory)
        shutil.copytree(source / "variables", directory / "variables", dirs_exist_ok=True)
        done += forge(rng, directory, "tfdpg.json", relatives)
    else:
        done += forge(rng, directory, "tfdpg.json", relatives)
    with within_bounds():
        try:
            policy = tfdpg.load(directory.parent)
            if max(policy.spec.widths) > LARGEST:
                return "large"
            found = actions(policy)
        except Exception as error:
            check_ours(error, directory)
            return "refused"
    if is_forged:
        return "loaded"
    for one, other in zip(found, original(model), strict=True):
        np.testing.assert_array_equal(one, other)
    return "equal"
