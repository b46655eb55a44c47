"""Clients of a served model, by REST and gRPC: TensorFlow Serving, or `tfdpg serve`."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from tfdpg.arguments import reject
from tfdpg.export.verify import Inputs, Run
from tfdpg.imports import require

VERSION = r"(/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?/?"
REST = re.compile(rf"https?://[^/]+(/[^/]+)*/v1/models/(?P<name>[^/:]+){VERSION}")
GRPC = re.compile(rf"grpc://(?P<address>[^/]+)/(?P<name>[^/:]+){VERSION}")
SECONDS = 60
"""The time that a request may take."""
REFUSED = "INVALID_ARGUMENT", "FAILED_PRECONDITION"
"""The gRPC statuses of a model that does not take the inputs, or does not have the signature."""


class RefusedError(ValueError):
    """The served model does not have the signature, or does not take its inputs."""


class Server(NamedTuple):
    """A served model.

    Attributes:
        run: computes its signatures.
        version: returns the number of the version that answers; None if the server does not say it.
        is_pinned: whether the URL names a version or a label.
    """

    run: Run
    version: Callable[[], int | None]
    is_pinned: bool


def check_url(url: str) -> re.Match[str]:
    """Return the parts of the URL of a served model.

    Raises:
        ValueError: it is not such a URL.
    """
    found = REST.fullmatch(url) or GRPC.fullmatch(url)
    if found is None:
        forms = "http://HOST:PORT/v1/models/NAME or grpc://HOST:PORT/NAME, with /versions/N or /labels/LABEL behind it"
        raise reject("server", f"{forms} to choose a version", url)
    return found


@contextmanager
def connect(url: str, signatures: Mapping[str, Any]) -> Iterator[Server]:
    """Connect to a served model.

    Args:
        url: its URL.
        signatures: the signatures as `tfdpg.json` describes them.

    Raises:
        ValueError: it is not the URL of a served model.
        ImportError: the libraries for gRPC are not installed.
        ConnectionError: from the functions of the server, which does not answer or does not serve this version.
        RefusedError: from its `run`.
    """
    found = check_url(url)
    if url.startswith("grpc://"):
        require(f"`--server {url}`", "serve", "grpc", "tensorflow_serving.apis")
        with _grpc(url, found) as server:
            yield server
    else:
        yield _rest(url.rstrip("/"), found, signatures)


def _rest(url: str, found: re.Match[str], signatures: Mapping[str, Any]) -> Server:
    def answer(request: Request) -> Any:
        try:
            with urlopen(request, timeout=SECONDS) as response:
                return json.load(response)
        except HTTPError as error:
            with error:
                message = f"status {error.code}: {_message(error.read())}"
            raise (RefusedError(message) if error.code == 400 else ConnectionError(message)) from error
        except (ValueError, HTTPException) as error:
            raise ConnectionError(f"the answer is not that of a served model ({type(error).__name__})") from error

    def run(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        body = {"signature_name": name, "inputs": {key: np.asarray(values).tolist() for key, values in inputs.items()}}
        response = answer(Request(f"{url}:predict", json.dumps(body).encode()))
        if not isinstance(response, dict) or "outputs" not in response:
            raise ConnectionError("the answer is not that of a served model, because it has no outputs")
        outputs = response["outputs"]
        if not isinstance(outputs, dict):  # a single output has no name
            (only,) = signatures[name]["outputs"]
            outputs = {only["name"]: outputs}
        return {key: np.asarray(values) for key, values in outputs.items()}

    def version() -> int | None:
        try:
            states = answer(Request(url))["model_version_status"]
            return max(int(one["version"]) for one in states if one["state"] == "AVAILABLE")
        except (LookupError, TypeError, ValueError):
            return None

    return Server(run, version, _is_pinned(found))


@contextmanager
def _grpc(url: str, found: re.Match[str]) -> Iterator[Server]:
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    answered = []

    def run(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        request: Any = predict_pb2.PredictRequest()  # pyright: ignore[reportAttributeAccessIssue]
        request.model_spec.name = found["name"]
        request.model_spec.signature_name = name
        if found["version"]:
            request.model_spec.version.value = int(found["version"])
        if found["label"]:
            request.model_spec.version_label = found["label"]
        for key, values in inputs.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
        try:
            response = predict(request, timeout=SECONDS)
        except grpc.RpcError as error:
            code = error.code().name  # pyright: ignore[reportAttributeAccessIssue]
            message = f"{code}: {error.details()}"  # pyright: ignore[reportAttributeAccessIssue]
            raise (RefusedError(message) if code in REFUSED else ConnectionError(message)) from error
        answered.append(response.model_spec.version.value)
        return {key: tf.make_ndarray(values) for key, values in response.outputs.items()}

    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with closing(grpc.insecure_channel(found["address"], unlimited)) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        yield Server(run, lambda: answered[-1] if answered else None, _is_pinned(found))


def _is_pinned(found: re.Match[str]) -> bool:
    return bool(found["version"] or found["label"])


def _message(body: bytes) -> str:
    """Return the message in the body of an error response."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
