"""Sets of options that were chosen from experiments. Each is a dict: `tfdpg.TD3(env, **tfdpg.recipes.normalized)`.

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

RECIPES = {"normalized": normalized}
"""The recipes by the names that `tfdpg train --recipe` accepts."""
