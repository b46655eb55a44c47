"""A count of environment steps that outlives the process, to tell what a killed one lost."""

from pathlib import Path
from typing import Any

import keras
import numpy as np


class ArrivedSteps(keras.callbacks.Callback):
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
        """Makes the file."""
        self._steps = np.memmap(self.filename, np.int64, "w+", shape=(1,))
        self._steps[0] = self._agent.env_steps

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the steps."""
        self._steps[0] = self._agent.env_steps


def arrived_steps(filename: Path) -> int:
    """What `ArrivedSteps` wrote; 0 where it wrote nothing, or was cut."""
    return int(sum(np.fromfile(filename, np.int64, count=1))) if filename.exists() else 0
