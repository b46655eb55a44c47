"""Settings of options that were chosen by evidence, each a dict: `tfdpg.TD3(env, **tfdpg.recipes.normalized)`.

What each was chosen on, and what it reaches, is in docs/recipes.md.
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
"""TD3 with batch renormalisation and without target networks, after CrossQ (Bhatt et al. 2019), with small minibatches:
more return from each step than the defaults."""

RECIPES = {"normalized": normalized}
"""All of them, by the names that `tfdpg train --recipe` takes."""
