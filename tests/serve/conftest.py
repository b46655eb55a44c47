"""A server in a thread, with real sockets and models that the tests export."""

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
import warnings

import pytest

import tfdpg
from tests.agents.roster import D4PG, SMALL
from tfdpg.serve import server
from tfdpg.serve.limits import Limits
from tfdpg.serve.model_store import ModelStore
from tfdpg.serve.service import Service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

LIMITS = Limits(request_bytes=1 << 20)


class Client:
    """A client that does not use tfdpg."""

    def __init__(self, name, ports, reported):
        self.name = name
        self.ports = ports
        self.reported = reported
        self.url = f"http://127.0.0.1:{ports.rest}/v1/models/{name}"
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}")
        self.predict = prediction_service_pb2_grpc.PredictionServiceStub(self.channel).Predict

    def post(self, content, where="", method="POST", headers=None):
        """Return the status and the JSON of the response; `content` is an object, or the bytes of a body."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self._answer(urllib.request.Request(f"{self.url}{where}:predict", body, headers or {}, method=method))

    def get(self, where=""):
        return self._answer(urllib.request.Request(f"{self.url}{where}"))

    def _answer(self, request):
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@contextlib.contextmanager
def serving(models, limits=LIMITS, request_log=None):
    """Serve a model directory, or a model store that has loaded one, and yield a client."""
    model_store = models if isinstance(models, ModelStore) else ModelStore(models)
    reported = []
    started = threading.Event()
    ended = asyncio.Event()
    found = []
    loops = []

    async def serve():
        loops.append(asyncio.get_running_loop())
        service = Service(model_store, limits, reported.append, request_log=request_log)
        async with server.running_server(service, "127.0.0.1", server.Ports(0, 0)) as ports:
            found.append(ports)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(60)
        client = Client(model_store.name, found[0], reported)
        with client.channel:
            yield client
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A model directory."""
    directory = tmp_path_factory.mktemp("models")
    tfdpg.D4PG("Pendulum-v1", **SMALL | D4PG).export(directory / "d4pg")
    return directory


@pytest.fixture(scope="session")
def loaded(models):
    """A model store that has loaded D4PG, for tests of the server."""
    return ModelStore(models / "d4pg")


@pytest.fixture(scope="session")
def d4pg(loaded):
    with serving(loaded) as client:
        yield client
