"""Train on disks that are too small, which the calling shell has mounted in a private namespace. Print JSON."""

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path

from tfdpg.agents import load_agent
from tfdpg.cli import main
from tfdpg.export import load, versions

TRAIN = "train ddpg --env Pendulum-v1 --hidden-units 64 64 --epochs 40 --steps-per-epoch 500 --start-steps 100"
TRAIN += " --update-after 200 --update-every 200 --gradient-steps 1 --validation-episodes 1 --max-ep-len 20 --verbose 0"
TRAIN += " --jit-compile False --write-interval 10"


def trained(disk: Path) -> dict:
    run = disk / "run"
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = main([*TRAIN.split(), "--run-dir", str(run)])
    run /= "seed-0"
    steps = [load_agent(run / "checkpoints" / str(steps)).env_steps for steps in versions(run / "checkpoints")]
    for version in versions(run / "best"):
        load(run / "best" / str(version))
    left = [str(path) for path in disk.rglob(".tfdpg-scratch*")]
    return {"status": status, "said": said.getvalue(), "steps": steps, "best": versions(run / "best"), "left": left}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([trained(Path(disk)) for disk in sys.argv[1:]]))
