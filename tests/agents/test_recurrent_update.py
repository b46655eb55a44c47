"""Updates of recurrent agents compared with a reference that processes episodes step by step."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.step_by_step import LENGTH, Distributions, StepByStep, Values, collect, make

ALL = ("observation", "action", "reward")
PRIORITIZED = {"replay": "prioritized", "alpha": 1.0, "beta": 0.5}
CASES = {
    "td3-lstm": (tfdpg.TD3, {"recurrent": "lstm", "recurrent_units": 3, "n_step": 3} | PRIORITIZED),
    "ddpg-gru": (
        tfdpg.DDPG,
        {
            "recurrent": "gru",
            "recurrent_units": 3,
            "normalize_observations": True,
            "n_step": 2,
            "bc_weight": 0.3,
            "run_eagerly": True,
        },
    ),
    "td3-two-rnns": (
        tfdpg.TD3,
        {"recurrent": "rnn", "recurrent_units": (3, 2), "stored_state": False, "remembers": ALL, "policy_delay": 1},
    ),
    "d4pg-lstm": (
        tfdpg.D4PG,
        {"recurrent": "lstm", "recurrent_units": 2, "remembers": ("observation", "reward"), "n_step": 3}
        | {"v_min": -3, "v_max": 3, "atoms": 7, "target_update_every": 1, "alpha": 1.0},
    ),
}


QUICK = ("ddpg-gru",)
PARAMS = [pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, case in CASES.items()]


@pytest.mark.parametrize("kind, options", PARAMS)
def test_updates_equal_those_of_the_step_by_step_reference(kind, options):
    agent = make(kind, **options)
    reference = StepByStep(
        agent, *collect(agent), Distributions(np.linspace(-3, 3, 7)) if kind is tfdpg.D4PG else Values()
    )
    for counter in (1, 2):
        slots, weights = agent.data.minibatch_builder.sampler.sample(agent.updates, 1)
        weights = np.ones(len(slots[0])) if weights is None else weights[0]
        noise = np.zeros((len(slots[0]), LENGTH, 2))
        if kind is tfdpg.TD3:
            smoothing = agent.smoothing_noise(tf.constant(counter, tf.int64)).numpy()
            clip = agent.options.noise_clip * agent.spec.action_scale
            noise = np.clip(smoothing, -clip, clip).reshape(noise.shape)
        logs = agent.learn(updates=1)
        priorities, loss_q, loss_pi = reference.update(slots[0], weights, noise, counter)
        for nets, networks in ((reference.online, agent.networks), (reference.target, agent.targets)):
            for name, network in networks.items():
                for weight, expected in zip(network.trainable_variables, nets[name].weights, strict=True):
                    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5, err_msg=f"{name} {weight.path}")
        assert (logs["loss_q"], logs.get("loss_pi", 0)) == pytest.approx((loss_q, loss_pi or 0), rel=1e-4)
        if agent.data.minibatch_builder.sampler.uses_td_errors:
            kept = agent.data.minibatch_builder.sampler.state()["priorities"][slots[0]]
            last = dict(zip(slots[0], priorities, strict=True))  # a row may be sampled twice
            np.testing.assert_allclose(kept, [last[slot] for slot in slots[0]], rtol=1e-4)
    lengths = [len(reference.episodes[number].actions) - t for number, t in map(reference.rows.__getitem__, slots[0])]
    assert min(lengths) < LENGTH < max(lengths)
