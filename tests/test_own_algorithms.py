"""Faults that users' own algorithms meet because tfdpg knows names by literal. Each mended fault fails its `xfail`."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import tfdpg
from examples import conservative_td3
from examples.conservative_td3 import ConservativeTD3
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tests.training.test_diagnosis import BROKEN, GAMMA
from tfdpg.training.diagnosis import checks
from tfdpg.training.diagnosis.evidence import collect


class RenamedLoss(ConservativeTD3):  # type: ignore[misc]
    """The loss of its policy, which is measured in every second update, has another name than `loss_pi`."""

    def update(self, batch: Any, counter: Any) -> dict[str, Any]:
        measured = super().update(batch, counter)
        measured["loss_actor"] = measured.pop("loss_pi")
        return measured


@pytest.mark.xfail(strict=True, raises=FloatingPointError, reason="Only a delayed metric named loss_pi may be missing.")
def test_a_delayed_loss_may_have_any_name(monkeypatch):
    names = [name.replace("loss_pi", "loss_actor") for name in conservative_td3.METRICS]
    monkeypatch.setattr(conservative_td3, "METRICS", tuple(names))
    agent = RenamedLoss(Counter(), **SMALL | EAGER)
    history = fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=30)
    assert np.isfinite(history.history["loss_actor"]).all()


def ten_critics(env, **options):
    return tfdpg.TD3(env, critics=10, **options)


def test_each_critic_of_an_export_has_a_signature(tmp_path):
    agent = ten_critics(Counter(), **SMALL | EAGER)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    observation, action = np.ones(2, np.float32), np.ones(1, np.float32)
    expected = agent.networks["q3"]([observation[None], action[None]])
    np.testing.assert_allclose(policy.q3(observation, action), np.ravel(expected), rtol=1e-5)
    assert policy.critics == tuple(f"q{i}" for i in range(1, 11)) == agent.critics.names
    assert policy.metadata["critics"] == 10 and "q10" in dir(policy) and not hasattr(policy, "q11")
    pi, *values = policy.pi_and_q(observation)
    np.testing.assert_allclose(values, [policy.value(name, observation, pi) for name in policy.critics], rtol=1e-5)
    with pytest.raises(ValueError, match="`critic` must be one of q1, .*Received: critic='v'"):
        policy.value("v", observation, action)


@pytest.mark.parametrize("make, advised", [(ten_critics, False), (tfdpg.TD3, False), (tfdpg.DDPG, True)])
def test_two_critics_are_advised_to_agents_with_one(make, advised):
    agent = make(Counter(), **SMALL | EAGER)
    evidence = collect(agent, Counter(), 1, 0, 10, {})
    overestimating = dataclasses.replace(BROKEN["overestimation"], options={"gamma": GAMMA}, critics=evidence.critics)
    verdict = checks.value_error(overestimating)
    assert ("two critics" in verdict.remedy) == advised


@pytest.mark.xfail(strict=True, reason="An own algorithm inherits options that it does not use, such as action_l2.")
def test_an_inherited_option_that_an_own_algorithm_does_not_use_is_refused():
    with pytest.raises((TypeError, ValueError), match="action_l2"):
        ConservativeTD3(Counter(), **SMALL | EAGER, action_l2=1.0)
