"""Every agent, small, ready for the tests that all of them must pass."""

import tfdpg

SMALL = {
    "hidden_units": (8, 8),
    "batch_size": 8,
    "start_steps": 10,
    "update_after": 10,
    "update_every": 5,
    "replay_size": 500,
    "jit_compile": False,
}

AGENTS = {
    "DDPG": lambda env, **changes: tfdpg.DDPG(env, **SMALL | changes),
    "D4PG": lambda env, **changes: tfdpg.D4PG(env, **SMALL | changes),
    "TD3": lambda env, **changes: tfdpg.TD3(env, **SMALL | changes),
}
