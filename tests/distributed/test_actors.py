"""What is a loss, and what is an error."""

import socket

import pytest
import ray
from ray.exceptions import ActorUnavailableError

from tfdpg.distributed import actors


class Go:
    def between(self):
        raise ActorUnavailableError("another actor is gone", None)

    def wrong(self):
        raise ValueError("wrong")


def test_a_loss_inside_a_call_is_a_loss(local_ray):
    actor = actors.start_actor(Go)
    with pytest.raises(Exception) as caught:
        ray.get(actor.between.remote())
    assert actors.is_loss(caught.value)
    with pytest.raises(ValueError, match="wrong") as caught:
        ray.get(actor.wrong.remote())
    assert not actors.is_loss(caught.value)
    ray.kill(actor)


def test_patience():
    calls = []

    def call():
        calls.append(1)
        if len(calls) < 3:
            raise ActorUnavailableError("gone", None)
        return "back"

    assert actors.patiently(call) == "back" and len(calls) == 3
    with pytest.raises(ActorUnavailableError):
        actors.patiently(lambda: (_ for _ in ()).throw(ActorUnavailableError("gone", None)), seconds=0)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with pytest.raises(ConnectionError, match="`ray_address` must be that of a Ray. Received: '127.0.0.1:1'"):
        actors.check_reachable("127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        actors.check_reachable(f"127.0.0.1:{server.getsockname()[1]}")
    actors.check_reachable("auto")
