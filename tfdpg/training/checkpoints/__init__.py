"""Checkpoints of agents, and files of weights."""
