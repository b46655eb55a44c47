"""Log requests and responses as `PredictionLog`s, as TensorFlow Serving does; `prediction_logs` reads them."""
# pyright: reportAttributeAccessIssue=false
# Protocol buffer modules create their classes when they are imported.

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfdpg import files
from tfdpg.serve import tensors


class RequestLog:
    """A new TFRecord file of the requests that are answered. It may be used from any thread.

    If the file cannot be written, such as on a full disk, requests are still answered. They are no longer logged then.

    Args:
        directory: the directory, which is made if it does not exist. The names of files begin with the time in UTC, so
            that they are in chronological order.
        report: receives a line if the file cannot be written.

    Attributes:
        path: the file.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, directory: Path, report: Callable[[str], None]):
        directory.mkdir(parents=True, exist_ok=True)
        start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for number in itertools.count():  # two servers may log to one directory
            self.path = directory / f"{start}-{number}.tfrecord"
            with contextlib.suppress(FileExistsError):
                self.path.touch(exist_ok=False)
                break
        self._writer: tf.io.TFRecordWriter | None = tf.io.TFRecordWriter(str(self.path))
        self._lock = threading.Lock()
        self._report = report

    def write(self, request: Any, response: Any) -> None:
        """Append a record, and hand it to the operating system.

        Args:
            request: the `PredictRequest`.
            response: the `PredictResponse`. Its `model_spec` has the version that answered.
        """
        log = prediction_log_pb2.PredictionLog()
        log.log_metadata.model_spec.CopyFrom(response.model_spec)
        log.log_metadata.sampling_config.sampling_rate = 1.0
        log.log_metadata.timestamp_secs = int(time.time())
        log.predict_log.request.CopyFrom(request)
        log.predict_log.response.CopyFrom(response)
        record = log.SerializeToString()
        with self._lock:
            if self._writer is None:
                return
            try:
                with files.writing(self.path):
                    self._writer.write(record)
                    self._writer.flush()
            except (OSError, tf.errors.OpError) as error:
                self._writer = None
                self._report(f"requests are no longer logged: {error}")

    def write_arrays(
        self,
        requested: Mapping[str, Any],
        version: int,
        signature: str,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Append a record of a request that was not a `PredictRequest`.

        Args:
            requested: the `name`, the `version` and the `label` that the client requested.
            version: the version that answered.
            signature: the signature.
            inputs: its inputs.
            outputs: its outputs.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.name = requested["name"]
        request.model_spec.signature_name = signature
        if requested["label"]:
            request.model_spec.version_label = requested["label"]
        elif requested["version"] is not None:
            request.model_spec.version.value = requested["version"]
        response = predict_pb2.PredictResponse()
        response.model_spec.name = requested["name"]
        response.model_spec.version.value = version
        response.model_spec.signature_name = signature
        for message, arrays in ((request.inputs, inputs), (response.outputs, outputs)):
            for name, values in arrays.items():
                message[name].CopyFrom(tensors.to_proto(values))
        self.write(request, response)
