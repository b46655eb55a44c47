"""Asks a server by gRPC; needs tensorflow-serving-api and grpcio, and nothing of tfdpg.

python examples/serving/grpc_client.py localhost:8500 td3-halfcheetah
"""

import argparse

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc


def request(model, signature, version=None, label=None, **inputs):
    """A `PredictRequest` for a signature of a model, of its newest version if nothing else is said."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    if label is not None:
        message.model_spec.version_label = label
    for name, values in inputs.items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return message


def predict(stub, model, signature, version=None, label=None, **inputs):
    """The outputs of a signature by name, and the version that computed them."""
    response = stub.Predict(request(model, signature, version, label, **inputs), timeout=10)
    outputs = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
    return outputs, response.model_spec.version.value


def widths(stub, model):
    """The widths of an observation and of an action, from the signature of the critic."""
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    message.model_spec.name = model
    signatures = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(message, timeout=10).metadata["signature_def"].Unpack(signatures)
    inputs = signatures.signature_def["q1"].inputs
    return inputs["x"].tensor_shape.dim[-1].size, inputs["a"].tensor_shape.dim[-1].size


def main():
    """Prints actions for two observations, and what the critics think of them."""
    arguments = parser().parse_args()
    with grpc.insecure_channel(arguments.address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        x = np.zeros((2, widths(stub, arguments.model)[0]), np.float32)
        where = {"version": arguments.version, "label": arguments.label}
        outputs, version = predict(stub, arguments.model, "pi", x=x, **where)
        print(f"version {version} acts: {outputs['pi'].tolist()}")
        for name in ("q1", "q2"):
            values, _ = predict(stub, arguments.model, name, x=x, a=outputs["pi"], **where)
            print(f"{name}: {values[name].tolist()}")


def parser():
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("address", help="host:port of gRPC")
    found.add_argument("model", help="the model's name")
    found.add_argument("--version", type=int, help="the version to ask")
    found.add_argument("--label", help="the label to ask, such as stable")
    return found


if __name__ == "__main__":
    main()
