"""TD7 whose weights decay, or whose learning rates fall at the end, for an experiment.

docs/recipes-experiments.md has its results. It runs with the options of the recipe `embeddings`:

tfdpg train examples/results/decayed.py:DecayedTD7 --weight-decay 0.01 --env Pusher-v5 ...
"""

import dataclasses
from typing import Any

import keras

import tfdpg
from tfdpg.agents.options import TD7Options
from tfdpg.agents.td7 import declare
from tfdpg.components import OptimizerSpec
from tfdpg.options import takes_options
from tfdpg.ranges import Natural, NonNegative


class DecayedTD7Options(TD7Options):
    """The options of `DecayedTD7`; the other defaults are those of the recipe `embeddings`."""

    weight_decay: NonNegative = 0.0
    """λ of AdamW: each step subtracts λ times the learning rate from a kernel, relative to its value."""
    falling_updates: Natural = 0
    """number of updates after which learning rates are a fifth of what they are at first; 0 keeps them. They fall in
    four equal steps, the first after three fifths of these updates."""

    vars().update(tfdpg.recipes.embeddings)


def declare_decayed(spec: tfdpg.Spec, options: DecayedTD7Options) -> tfdpg.Declaration:
    """The components of TD7, with other optimizers."""
    base = declare(spec, options)
    return dataclasses.replace(
        base,
        optimizers={
            name: _decayed(each, options, options.policy_delay if name == "pi" else 1)
            for name, each in base.optimizers.items()
        },
    )


def _decayed(spec: OptimizerSpec, options: DecayedTD7Options, period: int) -> OptimizerSpec:
    def make(name: str) -> keras.optimizers.Optimizer:
        optimizer: Any = spec.make(name)
        rate: Any = float(optimizer.learning_rate)
        if options.falling_updates:
            steps = options.falling_updates // period
            rate = keras.optimizers.schedules.PiecewiseConstantDecay(
                [steps * tenths // 10 for tenths in (6, 7, 8, 9)], [rate * fifths / 5 for fifths in (5, 4, 3, 2, 1)]
            )
        config = optimizer.get_config() | {"learning_rate": rate, "weight_decay": options.weight_decay or None}
        decayed = type(optimizer).from_config(config)
        if options.weight_decay:
            decayed.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return decayed

    return dataclasses.replace(spec, make=make)


class DecayedTD7(tfdpg.TD7):
    """TD7 with other optimizers."""

    @takes_options(DecayedTD7Options)
    def __init__(self, env: Any, options: DecayedTD7Options):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options)

    declare = staticmethod(declare_decayed)
