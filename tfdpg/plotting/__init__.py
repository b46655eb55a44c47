"""Learning curves of runs, and of files that other programs wrote: `tfdpg plot`.

A companion of the core. It reads `run.json`, `progress.csv` and `lateness.csv` of runs, and uses `agents.options`,
`options` and `training.options` to name the options in which runs differ. `curves` reads and groups runs, `tables`
knows the columns of other programs, `scores` normalises returns, and `figures` draws. `histograms` draws how late the
steps of real-time runs were.
"""
