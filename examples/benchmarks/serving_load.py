"""Measure requests per second and latencies of `tfdpg serve` while the model is replaced repeatedly.

python examples/benchmarks/serving_load.py --seconds 10

Two exports with different answers take turns as the newest version, and older versions are removed. Every answer must
be the complete answer of one of the two exports. gRPC answers name their version, so they must be those of that
version. The clients run in one process and the server in another, and both share the available cores.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

import tfdpg
from tfdpg import export

MODEL = Path(__file__).parents[2] / "exported_models/td3-halfcheetah"


class Result(NamedTuple):
    """The result of some seconds of requests."""

    protocol: str
    batch: int
    clients: int
    per_second: float
    p50: float
    p99: float
    swaps: int
    lost: int
    wrong: int

    def row(self):
        """Format the row of the table, with times in milliseconds."""
        times = f"{self.per_second:,.0f} | {self.p50 * 1e3:.1f} | {self.p99 * 1e3:.1f}"
        return (
            f"| {self.protocol} | {self.batch} | {self.clients} | {times} | {self.swaps} | {self.lost} | {self.wrong} |"
        )


HEAD = "| protocol | batch | clients | requests/s | p50, ms | p99, ms | swaps | lost | wrong |\n" + "|---" * 9 + "|"


class Server:
    """`tfdpg serve` in a separate process."""

    def __init__(self, directory):
        self.directory = directory
        self.served = 0
        command = [sys.executable, "-m", "tfdpg", "serve", str(directory), "--port", "0", "--grpc-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        lines = iter(self.process.stdout.readline, "")
        where = next((line for line in lines if "REST at" in line), "")
        self.url, self.address = re.search(r"REST at (\S+), gRPC at (\S+)", where).groups()
        if not any(line.endswith("ready\n") for line in lines):
            raise RuntimeError("The server ended before the model was loaded")
        self.reader = threading.Thread(target=self._read, args=(lines,))
        self.reader.start()

    def _read(self, lines):
        for line in lines:
            self.served += line.endswith("is served\n")

    def end(self):
        """Terminate the server; raise an error if its exit status is not 0."""
        self.process.terminate()
        status = self.process.wait(60)
        self.reader.join()
        self.process.stdout.close()
        if status:
            raise RuntimeError(f"The server ended with {status}")


class Models:
    """Two exports that take turns in a model directory."""

    def __init__(self, model, directory):
        first = export.latest_version(model)
        self.policies = [tfdpg.load(first)]
        agent = tfdpg.TD3(self.policies[0].spec, seed=1)
        self.policies.append(tfdpg.load(agent.export(directory / "other")))
        self.directory = directory / "model"
        self.spec = agent.spec
        self.swap()

    def swap(self):
        """Replace the newest version by the other export."""
        newest = max(export.versions(self.directory), default=0)
        export.copy(self.policies[newest % 2].directory, self.directory)
        export.keep_newest(self.directory, 1)

    def answers(self, x):
        """Return the answers of versions with odd numbers, and those of versions with even numbers."""
        return [policy(x) for policy in self.policies]


class Rest:
    """A REST client that sends observations in the columnar format."""

    name = "REST"

    def __init__(self, server, x):
        self.url = f"{server.url}:predict"
        self.body = json.dumps({"inputs": x.tolist()}).encode()

    @contextlib.asynccontextmanager
    async def connected(self):
        """Gives what asks once, and returns the answer."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def send():
                async with session.post(self.url, data=self.body) as response:
                    response.raise_for_status()
                    return await response.read()

            yield send

    def is_right(self, answer, expected):
        """Return whether an answer is that of one of the versions."""
        found = np.array(json.loads(answer)["outputs"], np.float32)
        return any(found.shape == each.shape and np.allclose(found, each, rtol=1e-4, atol=1e-5) for each in expected)


class Grpc:
    """A gRPC client."""

    name = "gRPC"

    def __init__(self, server, x):
        self.address = server.address
        self.request = predict_pb2.PredictRequest()
        self.request.model_spec.name = server.directory.name
        self.request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))

    @contextlib.asynccontextmanager
    async def connected(self):
        """Gives what asks once, and returns the answer."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            yield lambda: stub.Predict(self.request)

    def is_right(self, answer, expected):
        """Return whether an answer is that of its version."""
        found = tf.make_ndarray(answer.outputs["pi"])
        wanted = expected[1 - answer.model_spec.version.value % 2]
        return found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-4, atol=1e-5)


async def _load(client, clients, seconds, swap, every):
    """Return latencies, answers and errors of n clients, each of which sends one request after the other."""
    times = []
    answers = []
    errors = []
    over = asyncio.Event()

    async def run_client(send):
        while not over.is_set():
            start = time.perf_counter()
            try:
                answers.append(await send())
                times.append(time.perf_counter() - start)
            except Exception as error:
                errors.append(error)

    async def swap_on():
        while not over.is_set():
            await asyncio.to_thread(swap)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), every)

    async with client.connected() as send:
        await send()
        begun = time.perf_counter()
        client_tasks = [asyncio.create_task(run_client(send)) for _ in range(clients)]
        swapping = asyncio.create_task(swap_on())
        await asyncio.sleep(seconds)
        over.set()
        await asyncio.gather(swapping, *client_tasks)
        return times, answers, errors, time.perf_counter() - begun


def measure(server, models, kind, batch, clients, seconds, every):
    """Measure a row of the table."""
    x = np.random.default_rng(0).standard_normal((batch, *models.spec.observation_space.shape)).astype(np.float32)
    client = kind(server, x)
    expected = models.answers(x)
    before = server.served
    times, answers, errors, took = asyncio.run(_load(client, clients, seconds, models.swap, every))
    for error in errors[:3]:
        print(f"lost: {error!r}", file=sys.stderr)
    wrong = sum(not client.is_right(answer, expected) for answer in answers)
    p50, p99 = np.percentile(times, [50, 99])
    swaps = server.served - before
    return Result(kind.name, batch, clients, len(times) / took, p50, p99, swaps, len(errors), wrong)


def results(model, batches, clients, seconds, every):
    """Yield the result of each combination of protocol, batch size and number of clients."""
    with tempfile.TemporaryDirectory() as directory:
        models = Models(model, Path(directory))
        server = Server(models.directory)
        try:
            for kind in (Rest, Grpc):
                for batch in batches:
                    for count in clients:
                        yield measure(server, models, kind, batch, count, seconds, every)
        finally:
            server.end()


def parser():
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--model", type=Path, default=MODEL, help="an exported model")
    found.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="numbers of observations in a request")
    found.add_argument("--clients", type=int, nargs="+", default=[1, 32], help="numbers of simultaneous clients")
    found.add_argument("--seconds", type=float, default=10, help="seconds of requests for each row")
    found.add_argument("--every", type=float, default=2, help="seconds between two versions")
    return found


def main():
    """Print the table; return exit status 1 if a request was lost or an answer was not that of a version."""
    arguments = parser().parse_args()
    failed = 0
    print(HEAD)
    for result in results(*(getattr(arguments, name) for name in ("model", "batches", "clients", "seconds", "every"))):
        print(result.row(), flush=True)
        failed += result.lost + result.wrong
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
