"""TD7 whose target actions, behaviour or evaluation are of an average of the policy's weights, for an experiment.

docs/recipes-experiments.md has its results. It runs with the options of the recipe `embeddings`:

tfdpg train examples/results/averaged.py:AveragedTD7 --average-for evaluation --env Pusher-v5 ...
"""

import dataclasses
from typing import Annotated, Any, Literal

import tfdpg
from tfdpg.agents.options import TD7Options
from tfdpg.agents.td7 import act, declare
from tfdpg.components import Copy, PolicySpec, polyak
from tfdpg.options import Structural, takes_options
from tfdpg.ranges import Fraction


class AveragedTD7Options(TD7Options):
    """The options of `AveragedTD7`; the other defaults are those of the recipe `embeddings`."""

    average: Fraction = 0.985
    """part of the average that is kept at each update of the policy."""
    average_for: Annotated[Literal["target", "behaviour", "evaluation", "all"], Structural] = "all"
    """where the average takes the place of the policy."""

    embedding_units = 128
    encoder_units = (128, 128)
    batch_size = 128
    start_steps = 5000
    update_after = 5000
    update_every = 50
    keep_best_policy = False
    norm = "batch"
    target_networks = False
    replay = "uniform"
    beta_1 = 0.5
    policy_delay = 3
    q_lr = 1e-3
    critic_activation = "relu"
    preactivation_weight = 1e-3


def declare_averaged(spec: tfdpg.Spec, options: AveragedTD7Options) -> tfdpg.Declaration:
    """The components of TD7, and an average of the policy."""
    base = declare(spec, options)
    average = Copy("pi_average", "pi", polyak(options.average, options.policy_delay))
    averaged = PolicySpec("state_encoder_fixed", "pi_average", call=act)
    parts = {
        name: averaged if options.average_for in (name, "all") else getattr(base, name)
        for name in ("behaviour", "evaluation")
    }
    return dataclasses.replace(base, copies=[*base.copies, average], **parts)


class AveragedTD7(tfdpg.TD7):
    """TD7 with an average of the policy's weights."""

    @takes_options(AveragedTD7Options)
    def __init__(self, env: Any, options: AveragedTD7Options):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options)
        if options.average_for in ("target", "all"):
            self.pi_target = self.copies["pi_average"]

    declare = staticmethod(declare_averaged)
