"""`tfdpg serve` and `tfdpg labels`."""

import asyncio
import atexit
import gc
import importlib
import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import tyro

from tfdpg.arguments import reject
from tfdpg.cli import run_paths
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.files import is_version
from tfdpg.serve.limits import Limits


def serve(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    /,
    port: int = 8501,
    grpc_port: int = 8500,
    host: str = "127.0.0.1",
    max_request_mib: int = 32,
    max_response_mib: int = 32,
    max_rows: int = Limits.rows,
    max_connections: int = Limits.connections,
    timeout: float = Limits.timeout,
    trusted: bool = False,
) -> None:
    """Serve an exported model as TensorFlow Serving does, by REST and gRPC, for development and tests.

    The newest version is served, or those that have labels (`tfdpg labels`), and new ones as they come. Ctrl-C ends it.

    Args:
        path: a model directory, whose name is the model's.
        port: REST's; 0 takes a free one.
        grpc_port: gRPC's; 0 takes a free one.
        host: the address to listen on; 0.0.0.0 lets others in, and there is no password.
        max_request_mib: larger requests are refused.
        max_response_mib: requests whose response would be larger are refused before anything is computed.
        max_rows: requests with more rows are refused; a row is an observation, also one of a sequence.
        max_connections: of REST and of gRPC each; above it, REST closes the one that has been idle longest.
        timeout: seconds in which a request must arrive, its response be read, and the next request begin.
        trusted: load versions whatever their operations do.
    """
    for name, number in (("port", port), ("grpc_port", grpc_port)):
        if not 0 <= number < 2**16:
            raise reject(name, "in [0, 65535]", number)
    limits = _limits(max_request_mib, max_response_mib, max_rows, max_connections, timeout)
    _check_extra()
    run_paths.check_model(path)
    if (path / "saved_model.pb").exists():
        raise ValueError(f"{path} is a version's directory; serve the model's, {path.resolve().parent}")
    import_tensorflow()
    from tfdpg.serve.model_store import ModelStore
    from tfdpg.serve.server import SHUTDOWN_SECONDS, Ports, address, running_server

    model_store = ModelStore(path, trusted)
    # a thread cannot be stopped: one that still computes or reads files must not keep the process
    exit_timer = threading.Timer(SHUTDOWN_SECONDS, os._exit, [1])
    exit_timer.daemon = True

    def report(line: str) -> None:
        print(f"{model_store.name}: {line}", flush=True)

    async def serve_until_signal() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with running_server(model_store, host, Ports(port, grpc_port), limits, report) as ports:
            for version, reason in model_store.failed.items():
                report(f"version {version} is not served: {reason}")
            for version in model_store.served.models:
                report(f"version {version} is served")
            rest = address(host, ports.rest)
            grpc = address(host, ports.grpc)
            if limits.connections < max_connections:
                report(f"{limits.connections} connections of each protocol, not {max_connections}: see `ulimit -n`")
            report(f"REST at http://{rest}/v1/models/{model_store.name}, gRPC at {grpc}")
            await ended.wait()
            report("ends, once the requests under way are answered")
            exit_timer.start()

    # otherwise Python ends by looking through all objects of TensorFlow, for up to four seconds on a busy machine
    atexit.register(gc.freeze)
    try:
        asyncio.run(serve_until_signal())
    finally:
        exit_timer.cancel()


def _check_extra() -> None:
    try:
        importlib.import_module("aiohttp")
        importlib.import_module("grpc")
    except ImportError as error:
        raise ImportError(f"`tfdpg serve` needs {error.name}: pip install 'tfdpg[serve]'") from error


def _limits(max_request_mib: int, max_response_mib: int, max_rows: int, max_connections: int, timeout: float) -> Limits:
    for name, number in (("max_request_mib", max_request_mib), ("max_response_mib", max_response_mib)):
        if not 1 <= number < 2**11:
            raise reject(name, "an integer in [1, 2047]", number)
    for name, number in (("max_rows", max_rows), ("max_connections", max_connections)):
        if not 1 <= number < 2**31:
            raise reject(name, "a positive integer below 2**31", number)
    if not 0.001 <= timeout <= 86400:
        raise reject("timeout", "in [0.001, 86400] seconds", timeout)
    return Limits(
        request_bytes=max_request_mib << 20,
        response_bytes=max_response_mib << 20,
        rows=max_rows,
        connections=max_connections,
        timeout=timeout,
    ).within_descriptors()


def labels(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    labels: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="LABEL=VERSION...")],
    /,
    base_path: str | None = None,
) -> None:
    """Give versions of an exported model labels, in its `models.config`, which TensorFlow Serving and `serve` read.

    Args:
        path: a model directory, whose name is the model's.
        labels: the version of each label, as stable=3 canary=4.
        base_path: where the server finds the model directory; the default is /models/NAME.
    """
    run_paths.check_model(path)
    import_tensorflow()
    from tfdpg.export import write_labels

    given = {}
    for label in labels:
        name, _, version = label.partition("=")
        if not is_version(version):
            raise reject("labels", "as stable=3 canary=4", label)
        given[name] = int(version)
    written = write_labels(path, given, base_path)
    print(written.read_text(), end="")
    print(f"wrote {written}")
