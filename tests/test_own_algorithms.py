"""Faults that users' own algorithms meet because tfdpg knows names by literal. Each mended fault fails its `xfail`."""

import copy
import dataclasses
import functools
import re
from typing import Any

import keras
import matplotlib.figure
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter
from tests.training.test_callbacks import scalars
from tests.training.test_diagnosis import BROKEN, GAMMA
from tfdpg import cli
from tfdpg.agents.declarations import actor_critic
from tfdpg.agents.options import OffPolicyOptions, TD3Options
from tfdpg.components import Component, polyak, run_if
from tfdpg.diagnosis import checks
from tfdpg.diagnosis.evidence import collect
from tfdpg.files import read_numbers
from tfdpg.networks import critic_network, flat_values, policy_network, smallest
from tfdpg.options import takes_options
from tfdpg.ranges import NonNegative
from tfdpg.training.callbacks import ProgressLogger

METRICS = tfdpg.Metric("loss_q"), tfdpg.Metric("q1", spread=True), tfdpg.Metric("td_error", priority=True)


class Renamed(tfdpg.Agent):
    """A twin-critic algorithm with a delayed policy update, whose metrics have names of its own."""

    @takes_options(TD3Options)
    def __init__(self, env: Any, options: TD3Options):
        super().__init__(env, options, self.declare)

    @staticmethod
    def declare(spec, options):
        metrics = [
            tfdpg.Metric("cost", loss=True),
            tfdpg.Metric("actor_cost", "cost of the actor", delayed=True, loss=True),
            tfdpg.Metric("first_value", spread=True),
            tfdpg.Metric("second_value", spread=True, shown=False),
            tfdpg.Metric("surprise", priority=True),
        ]
        return dataclasses.replace(actor_critic(spec, options, polyak(options.polyak)), metrics=metrics)

    def update(self, batch, counter):
        critics = [self.networks["q1"], self.networks["q2"]]
        action = batch.ask_next(self.targets["pi"])
        target = batch.reward + batch.discount * smallest(
            [batch.ask_next(self.targets[q], action) for q in ("q1", "q2")]
        )
        with self.minimize("q1", "q2") as step:
            values = [flat_values(batch.ask(critic, batch.action)) for critic in critics]
            losses = [keras.ops.square(target - value) for value in values]
            step(*[batch.mean(loss) for loss in losses])
        cost = run_if(counter % 2 == 0, lambda: self.update_policy(batch), self.batch_elements)
        self.update_copies(counter)
        measured = {"cost": sum(losses), "actor_cost": cost, "surprise": keras.ops.abs(target - values[0])}
        return measured | {"first_value": values[0], "second_value": values[1]}

    def update_policy(self, batch):
        with self.minimize("pi") as step:
            cost = -flat_values(batch.ask(self.networks["q1"], batch.ask(self.networks["pi"])))
            step(batch.average(cost))
        return cost


class OneCriticOptions(OffPolicyOptions, without=("critics", "q2")):
    """The options of an agent with one critic; its update does not read all of them."""

    critics = 1

    loss_weight: NonNegative = 1.0
    """weight of the loss."""


class OneCritic(tfdpg.Agent):
    """An agent whose critic learns, and whose policy does not."""

    @takes_options(OneCriticOptions)
    def __init__(self, env: Any, options: Any):
        super().__init__(env, options, self.declare)

    @staticmethod
    def declare(spec, options):
        declaration = actor_critic(spec, options, polyak(options.polyak))
        only = {"q1": declaration.optimizers["q1"]}
        return dataclasses.replace(declaration, optimizers=only, metrics=METRICS)

    def update(self, batch, counter):
        target = batch.reward + batch.discount * batch.ask_next(self.targets["q1"], batch.ask_next(self.targets["pi"]))
        with self.minimize("q1") as step:
            value = batch.ask(self.networks["q1"], batch.action)
            loss = self.options.loss_weight * keras.ops.square(target - value)
            step(batch.mean(loss))
        self.update_copies(counter)
        return {"loss_q": loss, "q1": value, "td_error": keras.ops.abs(target - value)}


class FixedPolicyOptions(OneCriticOptions, without=("her", "her_ratio")):
    """These options say which ones have no effect, and why."""

    unused = dict.fromkeys(("action_l2", "bc_weight"), "the policy does not learn")


class FixedPolicy(OneCritic):
    """The same agent with these options."""

    @takes_options(FixedPolicyOptions)
    def __init__(self, env: Any, options: Any):
        tfdpg.Agent.__init__(self, env, options, self.declare)


class OwnNetworks(OneCritic):
    """The same agent with networks that its options do not describe."""

    @staticmethod
    def declare(spec, options):
        fixed = OneCriticOptions(hidden_units=(4,))
        build = {"pi": policy_network(fixed), "q1": critic_network(fixed, "q1")}
        components = [Component(name, each) for name, each in build.items()]
        return dataclasses.replace(OneCritic.declare(spec, options), components=components)


def test_metrics_may_have_any_names(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"agent": "renamed", "env": "Counter"}')

    def train(agent, epochs, **options):
        callbacks = [
            keras.callbacks.EarlyStopping("actor_cost", patience=9),
            ProgressLogger(str(run / "progress.csv"), append=True),
            tfdpg.callbacks.EpochLogger(run / "progress.txt", append=True),
            tfdpg.callbacks.ScalarWriter(run / "tensorboard"),
            tfdpg.callbacks.Checkpoint(run / "checkpoints"),
        ]
        options |= {"steps_per_epoch": 20, "validation_env": Counter(), "validation_episodes": 1}
        return fit_briefly(agent, Counter(), epochs=epochs, callbacks=callbacks, **options).history

    agent = Renamed(Counter(), **SMALL | EAGER | {"replay": "prioritized"})
    history = train(agent, 2, verbose=2)
    assert len(history["cost"]) == 2 and np.isfinite([*history["cost"], *history["actor_cost"]]).all()
    np.testing.assert_allclose(history["loss"], np.add(history["cost"], history["actor_cost"]))
    assert "first_value_std" in history and "second_value_max" in history and "surprise_std" not in history
    shown = re.findall(r" · ([a-z]\w+)", capsys.readouterr().out.splitlines()[1])
    returns = ["return", "episode_length", "terminated"]
    assert shown == ["env_steps", *returns, "cost", "actor_cost", "first_value", "val_return", "val_terminated"]
    assert (
        agent.data.minibatch_builder.sampler.sample(agent.updates, 1)[1].min() < 1
    )  # importance weights of the TD errors

    assert {"diagnosis/actor_cost", "diagnosis/surprise"} <= {tag for _, tag in scalars(run / "tensorboard", ".tfdpg")}
    columns = (run / "progress.txt").read_text().splitlines()[0].split("\t")
    assert columns[12:] == [
        *("AverageFirstValueVals", "StdFirstValueVals", "MaxFirstValueVals", "MinFirstValueVals"),
        *("AverageSecondValueVals", "StdSecondValueVals", "MaxSecondValueVals", "MinSecondValueVals"),
        *("ActorCost", "Cost", "Time"),
    ]
    loaded = tfdpg.load_agent(run / "checkpoints/40", Counter(), agent_class=Renamed)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=20, verbose=0)
    train(loaded, 1, verbose=0)
    for continued, resumed in zip(agent.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(continued, resumed)
    costs = read_numbers(run / "progress.csv")["actor_cost"]
    assert costs[:2] == history["actor_cost"] and len(costs) == 3 and np.isfinite(costs).all()

    diagnosis = loaded.diagnose(Counter(), episodes=2, history=read_numbers(run / "progress.csv"))
    assert list(diagnosis.evidence.greedy[0].values) == ["q1", "q2"]
    assert {layer.network for layer in diagnosis.evidence.layers} == {"policy", "q1", "q2"}
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
        assert cli.main(["plot", str(run), "--y", "actor_cost", "--out", str(tmp_path / "curves.png")]) == 0
    assert drawn[0].axes[0].get_ylabel() == "cost of the actor"


@pytest.mark.parametrize(
    "make, advised", [(functools.partial(tfdpg.TD3, critics=10), False), (tfdpg.TD3, False), (tfdpg.DDPG, True)]
)
def test_two_critics_are_advised_to_agents_with_one(make, advised):
    agent = make(Counter(), **SMALL | EAGER)
    evidence = collect(agent, Counter(), 1, 0, 10, {})
    overestimating = dataclasses.replace(BROKEN["overestimation"], options={"gamma": GAMMA}, critics=evidence.critics)
    verdict = checks.value_error(overestimating)
    assert ("two critics" in verdict.remedy) == advised


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {}])
def test_an_option_that_an_own_algorithm_never_reads_is_refused_when_its_update_is_traced(options, tmp_path):
    agent = OneCritic(Counter(), **SMALL, **options, action_l2=1.0, loss_weight=2.0)
    assert "action_l2=1.0" in repr(agent.options) and agent.options.values()["action_l2"] == 1
    message = r"^`action_l2` does nothing in OneCritic, which never reads it\. Received: action_l2=1\.0$"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=30)
    assert len(agent.replay) >= 20
    assert agent.updates == (2 if agent.options.run_eagerly else 0)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", agent_class=OneCritic, action_l2=0.0)
    again.data.grow(10_000)
    assert again.learn(updates=1)["loss_q"] > 0
    with pytest.raises(ValueError, match="`action_l2` does nothing in OneCritic"):
        copy.deepcopy(agent).learn(updates=1)


@pytest.mark.parametrize(
    "kind, options, method, name",
    [
        (tfdpg.TD3, {"run_eagerly": True, "policy_delay": 3, "bc_weight": 0.4}, "policy_loss", "bc_weight"),
        (tfdpg.TD3, {"policy_gradient": "min"}, "policy_loss", "policy_gradient"),
        (tfdpg.DDPG, {"run_eagerly": True, "action_l2": 1.0}, "policy_loss", "action_l2"),
        (tfdpg.D4PG, {"run_eagerly": True, "clip_action_gradient": 1.0}, "policy_loss", "clip_action_gradient"),
        (tfdpg.TD3, {"run_eagerly": True, "target_noise": 0.3}, "target_action", "target_noise"),
    ],
)
def test_an_inherited_option_that_a_subclass_no_longer_uses_is_refused(kind, options, method, name):
    methods = {
        "policy_loss": lambda agent, batch: batch.ask(agent.pi)[:, 0],
        "target_action": lambda agent, batch, counter: batch.ask_next(agent.pi_target),
    }
    own = type("Own", (kind,), {method: methods[method]})
    original, changed = (algorithm(Counter(), **SMALL, **options) for algorithm in (kind, own))
    for agent in (original, changed):
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    updates = options.get("policy_delay", 2)
    assert original.learn(updates=updates)
    with pytest.raises(ValueError, match=rf"`{name}` does nothing in Own, which never reads it"):
        changed.learn(updates=updates)


@pytest.mark.parametrize("method", ["critic_loss", "policy_loss"])
def test_a_loss_without_an_axis_of_transitions_is_refused(method):
    def mean(agent, batch, *others):
        return keras.ops.mean(getattr(tfdpg.TD3, method)(agent, batch, *others))

    agent = type("Own", (tfdpg.TD3,), {method: mean})(Counter(), **SMALL, **EAGER, policy_delay=1)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)
    message = r"one value for each of the 8 elements of the minibatch.*Received: the shape \(\)"
    with pytest.raises(ValueError, match=message):
        agent.learn(updates=1)


@pytest.mark.parametrize("chosen", [5, [0, 2], [-1]])
def test_critics_are_chosen_by_their_numbers(chosen):
    critics = tfdpg.TD3(Counter(), **SMALL, **EAGER).critics
    with pytest.raises(IndexError, match="by a slice or by numbers from 0 to 1. Received: "):
        critics[chosen]
    assert critics[[1, 0]].indices == [1, 0] and critics[1:].names == ("q2",)


def test_an_option_that_an_own_algorithm_declares_unused_is_refused_at_once_with_the_reason():
    message = r"`action_l2` does nothing where the policy does not learn\. Received: action_l2=1\.0"
    with pytest.raises(ValueError, match=message):
        FixedPolicy(Counter(), **SMALL, action_l2=1.0)
    with pytest.raises(ValueError, match="`bc_weight` does nothing where the policy does not"):
        FixedPolicyOptions(bc_weight=1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'her'"):
        FixedPolicy(Counter(), her="future")
    assert FixedPolicy(Counter(), **SMALL).options.her is None


def test_options_of_built_in_networks_that_an_own_algorithm_does_not_build_are_refused_at_once():
    with pytest.raises(ValueError, match="`hidden_units` does nothing in OwnNetworks, which builds no network"):
        OwnNetworks(Counter(), **SMALL)


def test_a_class_of_options_names_only_options_that_exist():
    for body, arguments in (({"unused": {"nope": "no"}}, {}), ({}, {"without": ("nope",)})):
        with pytest.raises(TypeError, match="has no option 'nope'"):
            type("Wrong", (OneCriticOptions,), body, **arguments)
