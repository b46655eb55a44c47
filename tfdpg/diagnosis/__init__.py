"""What is wrong with a training run, how it shows, and what to try next: `Agent.diagnose` and `tfdpg diagnose`.

A companion of the core. From an agent it uses its networks, copies, optimizers, metrics and replay buffer, and its
evaluation; from the core `spec`, `acting.encoder`, `networks.head_of`, `replay.ReplayBuffer`, `streams`,
`training.evaluation.run_episodes` and `training.network_inputs`. `report` makes the diagnosis, `evidence` measures,
and `checks` concludes. `drift` compares logged observations with training data, for `tfdpg drift`, and
uses `exported.statistics`.
"""
