"""Whether there is a Ray cluster at an address, and whether it accepts this process. Checked before Ray connects.

Ray itself would try for 20 seconds or longer, and then say that it failed to connect. Private to Ray, and written
against Ray 2.60: `services.canonicalize_bootstrap_address` (which cluster "auto" means), `AuthenticationTokenLoader`
(which token Ray would send) and the method `GetClusterId` of its control store, which a cluster with token
authentication answers only with its token. Where one of these is missing, Ray finds out for itself.
"""

import contextlib
import importlib
import ipaddress
import os
import socket
from typing import Any

import grpc
from ray._private import services

TIMEOUT = 5.0
"""Seconds that a cluster has for an answer."""
METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
NO_AUTHENTICATION = (
    "The Ray cluster at {} has no token authentication: anybody who reaches its port can run code on its machines. "
    "Start it with RAY_AUTH_MODE=token (see docs/cluster.md)."
)
NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def check_address(address: str) -> str | None:
    """Checks that a Ray cluster can be joined.

    Args:
        address: `host:port`, or "auto" for the cluster that this machine belongs to.

    Returns:
        A warning, if everybody who reaches the cluster's port can join it and so run code; None if not.

    Raises:
        ConnectionError: there is none, or it refuses this process's token.
    """
    if address == "local":
        return None
    found = _resolve_address(address)
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConnectionError(
            f"`ray_address` must be host:port, or 'auto' (`--ray-address` on the command line). Received: {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT).close()
    except OSError as error:
        raise _no_ray_error(address, found, error) from error
    if found.startswith("ray://") or os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return None
    answer = _call_control_store(found)
    if answer is None:
        return None if _is_local(host) else NO_AUTHENTICATION.format(found)
    if answer.code() in NO_ANSWER or "http2 header" in (answer.details() or ""):
        raise _no_ray_error(address, found, answer.details())
    if answer.code() is grpc.StatusCode.UNAUTHENTICATED:
        _check_token(address, found)
    return None


def _resolve_address(address: str) -> str:
    """The address, where it is "auto" that of the cluster that Ray would join."""
    if address != "auto":
        return address
    try:
        return services.canonicalize_bootstrap_address(address) or address
    except ConnectionError as error:
        raise ConnectionError(
            "No Ray is running on this machine. `ray_address` must be the host:port of a Ray, or 'auto' where this "
            "machine belongs to one (`--ray-address` on the command line). Received: 'auto'. Start one with "
            "`ray start`, or leave `ray_address` out: then tfdpg starts one that ends with the training run."
        ) from error


def _no_ray_error(address: str, found: str, reason: Any) -> ConnectionError:
    where = repr(address) if found == address else f"{address!r}, which is {found}"
    return ConnectionError(f"`ray_address` must be that of a Ray. Received: {where} ({reason})")


def _is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def _call_control_store(address: str, token: str | None = None) -> Any:
    """What the control store answers: None, or the error."""
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(METHOD)(b"", timeout=TIMEOUT, metadata=metadata)
        except grpc.RpcError as error:
            return error
    return None


def _check_token(address: str, found: str) -> None:
    """Raises `ConnectionError` if a cluster refuses the token that Ray would send."""
    try:
        loader: Any = importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance()
        has_token = loader.has_token(ignore_auth_mode=True)
    except (ImportError, AttributeError, TypeError):
        return
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode is None and not (address == "auto" and has_token):
        received = "RAY_AUTH_MODE is not set, so no token is sent"
    elif mode is not None and mode.lower() != "token":
        received = f"RAY_AUTH_MODE={mode}, so no token is sent"
    elif not has_token:
        received = "no token"
    else:
        refused = _call_control_store(found, loader.get_raw_token(ignore_auth_mode=True))
        if refused is None or refused.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return
        received = "another token"
    raise ConnectionError(
        f"The Ray cluster at {found} accepts only its own authentication token. Set RAY_AUTH_MODE=token, and copy the "
        f"token that the cluster was started with to ~/.ray/auth_token (or to RAY_AUTH_TOKEN). Received: {received}."
    )
