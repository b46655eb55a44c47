"""The loop, evaluation, callbacks, checkpoints. It knows what an agent promises, never an agent class."""
