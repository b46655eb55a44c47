"""Ray: starting or joining a cluster, actors that restart, and the errors of lost processes."""

import contextlib
import ipaddress
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import grpc
import ray
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, NodeDiedError, ObjectLostError, RayError, RayTaskError

from tfdpg.distributed.compat import (
    address_of_this_machine,
    authentication_token,
    call_control_store,
    job_config,
    local_cluster_settings,
)
from tfdpg.imports import call_for, user_directories

PROCESS_LOST_ERRORS = (ActorUnavailableError, NodeDiedError, ObjectLostError)
"""The errors of a call whose process or node is gone; the call itself did not raise them."""
ADDRESS_TIMEOUT = 5.0
"""Seconds in which a cluster must answer before this process joins it."""
OBJECT_STORE_BYTES = 256 << 20
"""Bytes of shared memory of a local Ray cluster. The chunks in flight need a few MB."""
LOOPBACK = ("127.0.0.1", "::1")
"""The addresses at which a local Ray cluster may listen."""
SILENT_RAY: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
"""Arguments of `ray.init` that stop Ray from printing."""
ACTOR_ENV_VARS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment variables of the actors: one thread each, and no GPU."""


@contextlib.contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Connect to a Ray cluster, and disconnect at the end.

    An existing connection is used and stays open. A local cluster listens on this machine only. The handler of SIGTERM
    is the same inside the context, and after it, as before.

    Args:
        address: the address of the cluster; None starts one on this machine, which ends with the context.
        cpus: the number of CPUs that the actors need.
    """
    is_owner = not ray.is_initialized()
    if is_owner:
        with preserved_sigterm_handler():
            if address is None:
                start_local_ray(cpus)
            else:
                if security_warning := check_address(address):
                    warnings.warn(security_warning, stacklevel=2)
                # Ray Client adds no directory
                config = {} if address.startswith("ray://") else {"job_config": job_config()}
                ray.init(address, **config, **SILENT_RAY)
    try:
        found = ray.cluster_resources().get("CPU", 0)
        if found < cpus:
            warnings.warn(
                f"The Ray cluster has {found:g} CPUs, and {cpus} actors take one each: "
                f"{cpus - found:g} of them start only once it has more.",
                stacklevel=2,
            )
        yield
    finally:
        if is_owner:
            with preserved_sigterm_handler():
                ray.shutdown()


def start_local_ray(cpus: int) -> None:
    """Start a Ray cluster with `cpus` logical CPUs that listens on this machine only.

    Raises:
        RuntimeError: it listens at another address. It is stopped.
    """
    with local_cluster_settings():
        ray.init(
            "local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            job_config=job_config(),
            **SILENT_RAY,
        )
    listens_at = ray.util.get_node_ip_address()
    if listens_at not in LOOPBACK:
        ray.shutdown()
        raise RuntimeError(
            f"A local Ray cluster must listen at {' or '.join(LOOPBACK)} only. Received: Ray {ray.__version__} at "
            f"{listens_at}. Start a Ray cluster yourself, and pass its address as `ray_address`."
        )


@contextlib.contextmanager
def preserved_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM at the end. Only the main thread can do this; in others, nothing happens.

    `ray.init` installs a Python handler that calls `sys.exit`, and a C++ handler that aborts the process three seconds
    later. After `ray.shutdown` the system's own handler, which Python does not know, kills the process at once.
    """
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, former or signal.SIG_DFL)


def check_joinable(address: str | None) -> None:
    """Raise `ConnectionError` if `connected` would have to join a cluster at `address` and could not."""
    if address is not None and not ray.is_initialized():
        check_address(address)


def check_address(address: str) -> str | None:
    """Check that there is a Ray cluster at an address, and that it accepts this process.

    Ray itself would try to connect for 20 seconds or longer, and then report only that it failed.

    Args:
        address: `host:port`, or "auto" for the cluster that this machine belongs to.

    Returns:
        A warning if anyone who can reach the cluster's port can join it and run code; otherwise None.

    Raises:
        ConnectionError: there is no cluster, or it refuses this process's token.
    """
    if address == "local":
        return None
    found = address
    if address == "auto":
        try:
            found = address_of_this_machine() or address
        except ConnectionError as error:
            raise ConnectionError(
                "No Ray is running on this machine. `ray_address` must be the host:port of a Ray cluster, or 'auto' if "
                "this machine belongs to one (`--ray-address` on the command line). Received: 'auto'. Start one with "
                "`ray start`, or omit `ray_address`: tfdpg then starts one that ends with the training run."
            ) from error
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConnectionError(
            f"`ray_address` must be host:port, or 'auto' (`--ray-address` on the command line). Received: {address!r}"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ADDRESS_TIMEOUT) as connection:
            peer = connection.getpeername()[0]
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        raise _no_ray_error(address, found, error) from error
    if found.startswith("ray://") or os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return None
    return _check_authentication(address, found, peer)


def _check_authentication(address: str, found: str, peer: str) -> str | None:
    """Return a warning if a cluster has no authentication; raise `ConnectionError` if it refuses this process."""
    refused = call_control_store(found, ADDRESS_TIMEOUT)
    if refused is None:
        if ipaddress.ip_address(peer).is_loopback:
            return None
        return (
            f"The Ray cluster at {found} has no token authentication: anyone who can reach its port can run code on "
            "its machines. Start it with RAY_AUTH_MODE=token (see docs/cluster.md)."
        )
    if refused.code() is grpc.StatusCode.UNAUTHENTICATED:
        _check_token(address, found)
    elif refused.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) or "http2 header" in (
        refused.details() or ""
    ):
        raise _no_ray_error(address, found, refused.details())
    return None


def _no_ray_error(address: str, found: str, reason: Any) -> ConnectionError:
    where = repr(address) if found == address else f"{address!r}, which is {found}"
    return ConnectionError(f"`ray_address` must be the address of a Ray cluster. Received: {where} ({reason})")


def _check_token(address: str, found: str) -> None:
    """Raise `ConnectionError` if a cluster that requires a token refuses the one that Ray would send."""
    is_known, token = authentication_token()
    if not is_known:
        return
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode is None and not (address == "auto" and token):
        received = "RAY_AUTH_MODE is not set, so no token is sent"
    elif mode is not None and mode.lower() != "token":
        received = f"RAY_AUTH_MODE={mode}, so no token is sent"
    elif not token:
        received = "no token"
    else:
        refused = call_control_store(found, ADDRESS_TIMEOUT, token)
        if refused is None or refused.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return
        received = "another token"
    raise ConnectionError(
        f"The Ray cluster at {found} accepts only its own authentication token. Set RAY_AUTH_MODE=token, and copy the "
        f"token that the cluster was started with to ~/.ray/auth_token (or to RAY_AUTH_TOKEN). Received: {received}."
    )


def start_ray_actor(actor_class: type, *arguments: Any, max_restarts: int = -1) -> Any:
    """Start an actor that restarts whenever its process or node dies. Calls that were lost are not repeated."""
    remote: Any = ray.remote(
        num_cpus=1,
        max_restarts=max_restarts,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": ACTOR_ENV_VARS},
    )(actor_class)
    return remote.remote(*map(_Argument, arguments))


class _Argument:
    """Pickles an argument, which a process unpickles with the directories of users' modules of this process."""

    def __init__(self, value: Any):
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        content = cloudpickle.dumps(self._value)  # pyright: ignore[reportPrivateImportUsage]
        return call_for, (user_directories(), cloudpickle.loads, content)


def is_process_lost(error: Exception) -> bool:
    """Return whether a call failed because a process or node is gone: its own, or one that it called in turn."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, PROCESS_LOST_ERRORS)


def unwrap_ray_error(error: Exception, process_name: str) -> Exception:
    """Return the original error of a call in another process. Its notes say where it was raised.

    Args:
        error: the error that Ray raised.
        process_name: the name of the process, for the notes.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    cause: Any = getattr(error, "cause", None)
    if not isinstance(cause, Exception) or isinstance(cause, RayError):
        missing = re.search(r"No module named '([^']+)'", text)
        last = text.splitlines()[-1].strip() if text else type(error).__name__
        cause = ModuleNotFoundError(missing[0], name=missing[1]) if missing else RuntimeError(last)
    place = re.search(r"\(pid=(\d+), ip=([^,)]+)", text)
    where = f", in process {place[1]} on the machine {place[2]}" if place else ""
    notes = [f"It was raised in {process_name}{where}."]
    if isinstance(cause, ImportError):
        notes.append("Install the missing module on that machine too, or add it to PYTHONPATH before `ray start`.")
    for note in (*notes, *getattr(error, "__notes__", ()), f"Traceback of that process:\n{text}"):
        cause.add_note(note)
    return cause


@contextlib.contextmanager
def unwrapped_ray_errors() -> Iterator[None]:
    """Replace an error of Ray by the original error of the call."""
    try:
        yield
    except RayError as error:
        raise unwrap_ray_error(error, "a Ray process") from None
