"""The commands `tfdpg serve` and `tfdpg labels`."""

import asyncio
import atexit
import gc
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tfdpg.arguments import reject
from tfdpg.cli import run_paths
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.exported import versions
from tfdpg.files import check_kind, is_version
from tfdpg.imports import require
from tfdpg.serve.limits import Limits

if TYPE_CHECKING:
    from tfdpg.serve.service import Service


def serve(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    /,
    port: int = 8501,
    grpc_port: int = 8500,
    host: str = "127.0.0.1",
    max_request_mib: int = 32,
    max_response_mib: int = 32,
    max_rows: int = Limits.rows,
    timeout: float = Limits.timeout,
    log: Path | None = None,
    trusted: bool = False,
) -> None:
    """Serve an exported model with TensorFlow Serving's REST and gRPC protocols, for development and tests.

    The server serves the newest version, or the versions that have labels (see `tfdpg labels`), and loads new ones when
    they appear. Its addresses are printed at once, and "ready" when the model is loaded. Ctrl-C ends it.

    Args:
        path: a model directory. Its name is the name of the model.
        port: the port for REST; 0 uses a free one.
        grpc_port: the port for gRPC; 0 uses a free one.
        host: the address to listen on. 0.0.0.0 accepts other machines; there is no password.
        max_request_mib: refuse larger requests.
        max_response_mib: refuse requests with a larger response before anything is computed.
        max_rows: refuse requests with more rows. A row is one observation, also within a sequence.
        timeout: seconds in which a request must arrive, its response must be read, and the next request must begin.
        log: a directory, to which each start of the server adds a file with the answered requests. Policies are trained
            on such prediction logs, compared on them, and checked for drift.
        trusted: also load versions whose operations have side effects.
    """
    for name, value, low, high, expected in (
        ("port", port, 0, 65535, "in [0, 65535]"),
        ("grpc_port", grpc_port, 0, 65535, "in [0, 65535]"),
        ("max_request_mib", max_request_mib, 1, 2047, "an integer in [1, 2047]"),
        ("max_response_mib", max_response_mib, 1, 2047, "an integer in [1, 2047]"),
        ("max_rows", max_rows, 1, 2**31 - 1, "a positive integer below 2**31"),
        ("timeout", timeout, 0.001, 86400, "in [0.001, 86400] seconds"),
    ):
        if not low <= value <= high:
            raise reject(name, expected, value)
    limits = Limits(
        request_bytes=max_request_mib << 20,
        response_bytes=max_response_mib << 20,
        rows=max_rows,
        timeout=timeout,
    )
    require("`tfdpg serve`", "serve", "aiohttp", "grpc")
    run_paths.check_model(path)
    if (path / "saved_model.pb").exists():
        raise ValueError(f"{path} is a version's directory; serve the model's, {path.resolve().parent}")
    if log is not None:
        check_kind("log", log, "directory")
    from tfdpg.serve.server import SHUTDOWN_SECONDS
    from tfdpg.serve.service import LoadingStore, Service

    name = path.resolve().name

    def report(line: str) -> None:
        print(f"{name}: {line}", flush=True)

    service = Service(LoadingStore(name, max(versions(path))), limits, report)
    # a thread cannot be stopped: one that still computes or reads files must not keep the process
    exit_timer = threading.Timer(SHUTDOWN_SECONDS, os._exit, [1])
    exit_timer.daemon = True

    # otherwise Python's last garbage collection visits all objects of TensorFlow, which takes up to four seconds
    atexit.register(gc.freeze)
    try:
        was_loaded = asyncio.run(_serve(service, path, trusted, host, (port, grpc_port), log, exit_timer))
    finally:
        exit_timer.cancel()
    if not was_loaded:
        os._exit(0)  # Python cannot end while a thread imports TensorFlow


async def _serve(
    service: "Service",
    path: Path,
    trusted: bool,
    host: str,
    ports: tuple[int, int],
    log: Path | None,
    exit_timer: threading.Timer,
) -> bool:
    """Serve a model until a signal comes. Return whether it was loaded by then.

    The addresses are printed before TensorFlow is imported, which takes seconds.
    """
    from tfdpg.serve.server import Ports, address, running_server
    from tfdpg.serve.service import start_loading

    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    async with running_server(service, host, Ports(*ports)) as used:
        url = f"http://{address(host, used.rest)}/v1/models/{service.store.name}"
        service.report(f"REST at {url}, gRPC at {address(host, used.grpc)}")
        service.report("loading")
        loading = asyncio.wrap_future(start_loading(path, trusted, service.metrics))
        waiting = asyncio.create_task(signalled.wait())
        await asyncio.wait([loading, waiting], return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            model_store = loading.result()
            if log is not None:
                from tfdpg.serve.request_log import RequestLog

                service.request_log = RequestLog(log, service.report)
            service.store = model_store
            for version, reason in model_store.failed.items():
                service.report(f"version {version} is not served: {reason}")
            for version in model_store.served.models:
                service.report(f"version {version} is served")
            service.report("ready")
        await waiting
        service.report("ends, once the requests under way are answered")
        exit_timer.start()
    return loading.done()


def labels(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    labels: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="LABEL=VERSION...")],
    /,
    base_path: str | None = None,
) -> None:
    """Label versions of an exported model in its `models.config`, which TensorFlow Serving and `tfdpg serve` read.

    Without labels, the versions are listed with those that they have.

    Args:
        path: a model directory. Its name is the name of the model.
        labels: the version of each label, for example stable=3 canary=4.
        base_path: where the server finds the model directory; the default is /models/NAME.
    """
    run_paths.check_model(path)
    import_tensorflow()
    from tfdpg.export import read_labels, write_labels

    if not labels:
        known = read_labels(path)
        for version in versions(path):
            print("  ".join([str(version), *(label for label, of in known.items() if of == version)]))
        if not known:
            print("No version has a label, so the newest one is served.")
        return
    given = {}
    for label in labels:
        name, _, version = label.partition("=")
        if not is_version(version):
            raise reject("labels", "as stable=3 canary=4", label)
        given[name] = int(version)
    written = write_labels(path, given, base_path)
    print(written.read_text(), end="")
    print(f"wrote {written}")
