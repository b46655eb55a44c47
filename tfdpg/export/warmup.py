"""Requests that TensorFlow Serving replays when it loads a model, so that the first client does not wait.

They are `PredictionLog`s, protocol buffers of the package tensorflow-serving-api. `field` and `fields` encode and
decode the few kinds of fields that they contain, so that the package is not needed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.compat.tensorflow import tensor_from_bytes

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"


def write_warmup(directory: Path, model: str, cases: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> None:
    """Write requests into a SavedModel.

    Args:
        directory: the SavedModel.
        model: the name under which the model will be served.
        cases: for each signature the inputs of its requests.
    """
    path = directory / WARMUP_FILE
    path.parent.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, requests in cases.items():
            for inputs in requests:
                writer.write(prediction_log(model, signature, inputs))


def read_warmup(directory: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """Read what `write_warmup` wrote: for each signature the inputs of its requests."""
    cases: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
    records: Any = tf.data.TFRecordDataset(str(directory / WARMUP_FILE)).as_numpy_iterator()
    for record in records:
        request = fields(fields(fields(record)[6][0])[1][0])
        entries = map(fields, request[2])
        signature = fields(request[1][0])[3][0].decode()
        cases[signature].append({entry[1][0].decode(): tensor_from_bytes(entry[2][0]) for entry in entries})
    return dict(cases)


def prediction_log(model: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encode a request as a `PredictionLog`.

        PredictionLog {PredictLog predict_log = 6}
        PredictLog {PredictRequest request = 1}
        PredictRequest {ModelSpec model_spec = 1; map<string, TensorProto> inputs = 2}
        ModelSpec {string name = 1; string signature_name = 3}

    Args:
        model: the name under which the model will be served.
        signature: the signature that the request calls.
        inputs: its inputs.
    """
    request = field(1, field(1, model.encode()) + field(3, signature.encode()))
    for name, values in inputs.items():
        request += field(2, field(1, name.encode()) + field(2, tf.make_tensor_proto(values).SerializeToString()))
    return field(6, field(1, request))


def field(number: int, content: bytes) -> bytes:
    """Encode a field that contains a string or a message: its number (below 16) and type, its length, its content."""
    length = bytearray()
    rest = len(content)
    while rest > 127:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([number << 3 | 2, *length, rest]) + content


def fields(message: bytes) -> dict[int, list[bytes]]:
    """Decode the fields of a protocol buffer by their numbers, in their order; variable-length integers are skipped.

    Raises:
        ValueError: the message is damaged.
    """
    found: dict[int, list[bytes]] = {}
    place = 0
    while place < len(message):
        key, place = _integer(message, place)
        match key & 7:
            case 0:
                _, place = _integer(message, place)
                continue
            case 1:
                size = 8
            case 2:
                size, place = _integer(message, place)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"it is no PredictionLog: it contains a field of type {kind}")
        if place + size > len(message):
            raise ValueError("it is no PredictionLog: it ends within a field")
        found.setdefault(key >> 3, []).append(message[place : place + size])
        place += size
    return found


def _integer(message: bytes, place: int) -> tuple[int, int]:
    """Decode a variable-length integer, and return it with the position after it."""
    number = shift = 0
    for end in range(place, len(message)):
        number = number | (message[end] & 127) << shift
        shift = shift + 7
        if message[end] < 128:
            return number, end + 1
    raise ValueError("it is no PredictionLog: it ends within a field")
