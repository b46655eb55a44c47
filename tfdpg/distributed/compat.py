"""Private interfaces of Ray. Written for Ray 2.60."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
from ray._private import ray_constants, services
from ray.job_config import JobConfig

import tfdpg


def address_of_this_machine() -> str | None:
    """Return the address of the Ray cluster that this machine belongs to.

    Without the private function, `ray_address="auto"` cannot be checked before Ray connects, which takes Ray 20 seconds
    or longer if there is no cluster.

    Raises:
        ConnectionError: no Ray cluster is running on this machine.
    """
    return services.canonicalize_bootstrap_address("auto")


def authentication_token() -> tuple[bool, str | None]:
    """Return whether the authentication token is known, and the token that Ray would send; None if it has none.

    Without the private class, a refused token is reported only by Ray, after 20 seconds or longer.
    """
    try:
        loader: Any = importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance()
        return True, loader.get_raw_token(ignore_auth_mode=True) if loader.has_token(ignore_auth_mode=True) else None
    except (ImportError, AttributeError, TypeError):
        return False, None


CONTROL_STORE_METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"


def call_control_store(address: str, timeout: float, token: str | None = None) -> Any:
    """Call a method of a control store that a cluster with token authentication answers only if it gets its token.

    Without the private method, the answer is an error that is not about authentication. Then nobody is told in advance
    that a token is refused or that a cluster has no authentication.

    Args:
        address: `host:port` of the control store.
        timeout: seconds to wait for the answer.
        token: the authentication token to send.

    Returns:
        None if the call succeeded, or the `grpc.RpcError`.
    """
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(CONTROL_STORE_METHOD)(b"", timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            return error
    return None


class _SearchPath(list[str]):
    """The directories from which workers import modules first: those from which this process imports them, too."""

    def extend(self, directories: Iterable[str]) -> None:
        known = {os.path.abspath(each) for each in (*sys.path, Path(tfdpg.__file__).parents[1])}
        super().extend(each for each in directories if os.path.abspath(each) in known)


def job_config() -> JobConfig:
    """Return a configuration with which workers do not import modules from this process's working directory.

    Ray adds that directory to the start of the path of each worker. Without the private attribute, a file there that
    has the name of a library, such as `numpy.py`, runs in the workers.
    """
    config = JobConfig()
    config._py_driver_sys_path = _SearchPath()
    return config


class _ProcessGroupPopen(services.ConsolePopen):
    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, process_group=0, **options)


@contextlib.contextmanager
def local_cluster_settings() -> Iterator[None]:
    """Make `ray.init("local")` listen on the loopback address only, and start its processes in their own groups.

    Ray replaces the address 127.0.0.1 by the machine's network address unless the constant says that clusters are not
    supported. Its environment variable, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, is read only when Ray is imported, and
    joining a cluster needs the opposite value. Without the constant, Ray listens on the network, and
    `tfdpg.distributed` refuses to use it.

    A terminal or a scheduler sends signals to the process group of this process. They would end Ray's processes before
    training has ended, and Ray then ends this process silently, without a checkpoint. Without the private class, Ctrl-C
    and SIGTERM write no checkpoint. On systems other than Linux, Ray's processes do not end with this one by
    themselves, so they stay in its group.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER
    popen = services.ConsolePopen
    ray_constants.ENABLE_RAY_CLUSTER = False
    if sys.platform == "linux":
        services.ConsolePopen = _ProcessGroupPopen
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        services.ConsolePopen = popen
