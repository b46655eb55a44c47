"""Sets of options that were found in experiments. Each is a dict: `tfdpg.TD3(env, **tfdpg.recipes.normalized)`.

docs/recipes.md describes the experiments and the results of each recipe.
"""

from typing import Any

normalized: dict[str, Any] = {
    "norm": "batch",
    "target_networks": False,
    "beta_1": 0.5,
    "policy_delay": 3,
    "batch_size": 128,
    "start_steps": 5000,
}
"""TD3 with batch renormalisation, small minibatches and no target networks, following CrossQ (Bhatt et al. 2019). It
learns from fewer environment steps than the defaults."""

lean: dict[str, Any] = {
    "embedding_units": 128,
    "encoder_units": (128, 128),
    "batch_size": 128,
    "start_steps": 5000,
    "update_after": 5000,
    "update_every": 50,
    "keep_best_policy": False,
}
"""TD7 with small encoders and minibatches, which makes an update three times as fast, and an update for each step from
the beginning."""

embeddings: dict[str, Any] = {
    **lean,
    "norm": "batch",
    "target_networks": False,
    "replay": "uniform",
    "beta_1": 0.5,
    "policy_delay": 3,
    "q_lr": 1e-3,
    "critic_activation": "relu",
    "preactivation_weight": 1e-3,
}
"""`lean` with the critics of `normalized`, which also receive embeddings, and a policy with layer normalisation and
penalised preactivations."""

averaged: dict[str, Any] = {**embeddings, "average_policy": 0.05}
"""`embeddings` whose policy is evaluated and exported as an average over about the last 5 % of all updates. The
training is the same."""

RECIPES = {"normalized": normalized, "lean": lean, "embeddings": embeddings, "averaged": averaged}
"""The recipes by the names that `tfdpg train --recipe` accepts."""
AGENTS = {"normalized": "TD3", "lean": "TD7", "embeddings": "TD7", "averaged": "TD7"}
"""The agent of each recipe."""
