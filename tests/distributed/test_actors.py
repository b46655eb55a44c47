"""What is a loss, and what is an error."""

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
