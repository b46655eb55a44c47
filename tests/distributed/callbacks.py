"""Callbacks that wait for workers, which do not all start at once."""

import time

import keras

from tests.distributed.environments import read_reports


class StopAfterReports(keras.callbacks.Callback):
    """Stops training after a number of processes have written their reports."""

    def __init__(self, directory, processes):
        super().__init__()
        self.directory = directory
        self.processes = processes

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = len(read_reports(self.directory)) >= self.processes
        time.sleep(0.05)
