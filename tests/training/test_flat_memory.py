"""A training run of a million steps ends with no more memory than it had when its replay buffer was full."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import keras, tfdpg
from tfdpg.training.callbacks import Checkpoint, ExportBest, ProgressLogger, ScalarWriter

run, sizes = Path(sys.argv[1]), []
note = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
)
agent = tfdpg.TD3("Pendulum-v1", hidden_units=(16, 16), batch_size=32, replay_size=100_000, gradient_steps=5)
writers = [ProgressLogger(str(run / "progress.csv")), ScalarWriter(run / "tensorboard")]
# each epoch is better than the one before, if steps are what counts
savers = [ExportBest(run / "best", monitor="env_steps"), Checkpoint(run / "checkpoints")]
agent.fit(
    "Pendulum-v1",
    epochs=int(sys.argv[2]),
    steps_per_epoch=10_000,
    validation_env="Pendulum-v1",
    validation_episodes=2,
    callbacks=[*writers, *savers, note],
    verbose=0,
)
print(json.dumps({"sizes": sizes, "steps": agent.env_steps, "updates": agent.updates}))
"""


@pytest.mark.hours
def test_with_updates_evaluation_exports_checkpoints_and_events(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), "100"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    sizes = measured["sizes"]
    assert measured["steps"] == 1_000_000 and measured["updates"] > 90_000
    assert max(sizes[-10:]) < 1.02 * max(sizes[15:25]), [round(size / 1e6) for size in sizes]
