"""The checks of an address before Ray connects to it."""

import os
import secrets
import socket
import subprocess
import sys
import time
from concurrent import futures

import grpc
import pytest
import ray
from ray import _raylet
from ray._private import services

from tfdpg.distributed import processes
from tfdpg.distributed.compat import CONTROL_STORE_METHOD
from tfdpg.distributed.liveness import ControlStore
from tfdpg.distributed.processes import check_address

HERE = ray.util.get_node_ip_address()


class ControlStoreOf(grpc.GenericRpcHandler):
    """Answers the method that `check_address` calls if it receives its token; without a token, it always answers."""

    def __init__(self, token):
        self.token = token

    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(self.answer) if call.method == CONTROL_STORE_METHOD else None

    def answer(self, request, context):
        if self.token is not None and ("authorization", f"Bearer {self.token}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""


@pytest.fixture
def control_store(request):
    """The address of a control store with the token that the test chooses."""
    server = grpc.server(futures.ThreadPoolExecutor(1), [ControlStoreOf(request.param)])
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    yield f"{HERE}:{port}"
    server.stop(None).wait()


@pytest.fixture
def with_token(monkeypatch, tmp_path):
    """Set the authentication mode and the token of this process."""
    loader = _raylet.AuthenticationTokenLoader.instance()

    def give(mode, token):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
        for name, value in (("RAY_AUTH_MODE", mode), ("RAY_AUTH_TOKEN", token)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        loader.reset_cache()

    yield give
    monkeypatch.undo()
    loader.reset_cache()


def test_an_address_without_ray_is_refused_soon(monkeypatch):
    monkeypatch.setattr(processes, "ADDRESS_TIMEOUT", 1.0)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="address of a Ray cluster.*'127.0.0.1:1'"):
        check_address("127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"address of a Ray cluster.*'{silent}'"):
            check_address(silent)
    with pytest.raises(ConnectionError, match="`ray_address` .*host:port.*first-machine"):
        check_address("first-machine")
    for port in ("²", "99999"):
        with pytest.raises(ConnectionError, match=f"`ray_address` must be .*127.0.0.1:{port}"):
            check_address(f"127.0.0.1:{port}")
    assert time.monotonic() - began < 30  # and not minutes, as Ray itself


def test_auto_without_a_ray_names_the_option(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: set())
    monkeypatch.setattr(services, "find_bootstrap_address", lambda directory: None)
    with pytest.raises(ConnectionError, match="No Ray is running.*`--ray-address`") as caught:
        check_address("auto")
    assert "`--address`" not in str(caught.value)


@pytest.mark.parametrize("control_store", ["right"], indirect=True)
@pytest.mark.parametrize(
    ("mode", "token", "received"),
    [
        ("token", "wrong", "another token"),
        ("token", None, "no token"),
        ("disabled", "right", "RAY_AUTH_MODE=disabled"),
        (None, "right", "RAY_AUTH_MODE is not set"),
    ],
)
def test_a_wrong_token_is_reported(control_store, with_token, mode, token, received):
    with_token(mode, token)
    with pytest.raises(ConnectionError, match=f"only its own.*: {received}"):
        check_address(control_store)


@pytest.mark.parametrize("control_store", ["right"], indirect=True)
def test_the_right_token_is_accepted(control_store, with_token):
    with_token("token", "right")
    assert check_address(control_store) is None


@pytest.mark.parametrize("control_store", [None], indirect=True)
def test_a_cluster_without_authentication_gives_a_warning(control_store, with_token):
    with_token(None, None)
    assert "anyone who can reach its port can run code" in str(check_address(control_store))
    assert (
        check_address(f"127.0.0.1:{control_store.rpartition(':')[2]}") is None
    )  # other machines cannot reach this address


@pytest.mark.slow
def test_ray_itself_refuses_a_wrong_token(with_token, tmp_path):
    code = """if True:
        from ray.cluster_utils import Cluster
        options = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=options)
        print(cluster.address, flush=True)
        input()
        cluster.shutdown()
    """
    token = secrets.token_hex(32)
    variables = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], env=variables, **pipes) as head:
        found = next(line.strip() for line in head.stdout if line[0].isdigit())
        with_token("token", secrets.token_hex(32))
        with pytest.raises(ConnectionError, match="accepts only its own.*another token"):
            check_address(found)
        with_token("token", token)
        assert check_address(found) is None
        head.communicate("\n")


def test_a_lost_control_store_is_reported(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = f"127.0.0.1:{server.getsockname()[1]}"
        store = ControlStore(found, 2.0)
        with store:
            store.check()
            server.close()
            message = f"The control store of the Ray cluster at {found} has not answered for"
            said = ""
            deadline = time.monotonic() + 60
            while not said and time.monotonic() < deadline:
                time.sleep(0.05)
                said += capsys.readouterr().err
            with pytest.raises(ConnectionError, match=f"{found} has not answered for"):
                store.check()
    assert said.startswith(f"tfdpg: {message}") and said.count("\n") == 1
