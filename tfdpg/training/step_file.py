"""A count of environment steps that outlives the process, to tell what a killed one lost."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdpg import files


class StepFile(keras.callbacks.Callback):
    """Keeps the agent's environment steps in a file of eight bytes, written with each learning round.

    The file is mapped to memory: writing to it costs nothing, and the system keeps it when the process is killed.

    Args:
        filename: the file.
    """

    def __init__(self, filename: str | Path):
        super().__init__()
        self.filename = Path(filename)

    @property
    def _agent(self) -> Any:
        return self.model

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the file, in place of one that is there: writing into that one could change a copy of the run."""
        with files.writing(self.filename), files.replacing(self.filename) as file:
            file.write(np.int64(self._agent.env_steps).tobytes())
            file.flush()
            self._steps = np.memmap(file, np.int64, "r+", shape=(1,))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the steps."""
        self._steps[0] = self._agent.env_steps


def read_step_file(filename: Path) -> int:
    """What `StepFile` wrote; 0 where it wrote nothing, or was cut."""
    return int(sum(np.fromfile(filename, np.int64, count=1))) if filename.exists() else 0
