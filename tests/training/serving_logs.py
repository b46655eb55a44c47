"""Clients of a served policy, whose requests and responses are logged as TensorFlow Serving does it."""

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2


def log_of(signatures, name, inputs, client="", as_numbers=False):
    """A request with its response, as `PredictionLog`, and the response's arrays; what a server computes and logs."""
    log = prediction_log_pb2.PredictionLog()
    log.log_metadata.model_spec.name = "model"
    log.log_metadata.timestamp_secs = 1_800_000_000
    log.log_metadata.sampling_config.sampling_rate = 1.0
    request = log.predict_log.request
    response = log.predict_log.response
    request.model_spec.name = "model"
    request.model_spec.signature_name = name
    request.model_spec.version.value = 3
    request.client_id = client.encode()
    for key, values in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
    outputs = signatures[name or "serving_default"](**{key: tf.constant(values) for key, values in inputs.items()})
    for key, tensor in outputs.items():
        response.outputs[key].CopyFrom(tf.make_tensor_proto(tensor))
        if as_numbers:  # the server's own form
            response.outputs[key].tensor_content = b""
            response.outputs[key].float_val[:] = tensor.numpy().reshape(-1).tolist()
    return log, {key: tensor.numpy() for key, tensor in outputs.items()}


class Client:
    """Steps an environment with what a server says; `took` are its transitions, of which the log has a part."""

    def __init__(self, env, name=""):
        self.env = env
        self.name = name
        self.took = []
        self.observation, _ = env.reset(seed=0)

    def step(self, signatures, **options):
        parts = self.observation if isinstance(self.observation, dict) else {"x": self.observation}
        dtypes = {key: np.int32 if key == "phase" else np.float32 for key in parts}
        inputs = {key: np.asarray(part, dtypes[key])[None] for key, part in parts.items()}
        log, outputs = log_of(signatures, "pi", inputs, self.name, **options)
        action = outputs["pi"][0]
        following, reward, terminated, truncated, _ = self.env.step(action)
        self.took.append((self.observation, action, reward, terminated, truncated, following))
        self.observation = self.env.reset()[0] if terminated or truncated else following
        return log


def write(path, logs):
    """Writes logs as a server's collector does."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    return path
