"""Ray: how it is started or joined, and how actors are made that come back."""

import contextlib
import logging
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import ray
from ray._private import ray_constants, services
from ray.exceptions import ActorUnavailableError, NodeDiedError, ObjectLostError, RayError, RayTaskError

from tfdpg.distributed.address import check_address

Result = TypeVar("Result")

PROCESS_LOST_ERRORS = (ActorUnavailableError, NodeDiedError, ObjectLostError)
"""What a call raises when its process or node is gone, and not because of what it did."""
FIRST_RETRY_DELAY = 0.1
MAX_RETRY_DELAY = 5.0
"""Seconds until what did not answer is asked again; they double with each failure."""
OBJECT_STORE_BYTES = 256 << 20
"""Bytes of shared memory of a Ray that is started here; what is under way takes a few MB."""
LOOPBACK = ("127.0.0.1", "::1")
"""The addresses one of which a Ray that is started here listens at, and no other."""
SILENT_RAY: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
"""Arguments of `ray.init` that keep Ray from printing."""
ACTOR_ENV_VARS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment variables of the actors: one thread each, and no GPU."""


class ProcessGroupPopen(services.ConsolePopen):
    """A process of Ray's in a group of its own.

    What a scheduler or a terminal sends to the group of this process would end it before training has ended, and a
    process whose Ray is gone is ended by Ray at once, without a word or a checkpoint.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, process_group=0, **options)


@contextlib.contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Joins the Ray at `address`, or starts one here with `cpus` logical CPUs, or takes the one that is there already.

    One that was started or joined here is left at the end; one that was there already stays. One that was started here
    listens on this machine only. SIGTERM is handled as before, within and after.
    """
    is_owner = not ray.is_initialized()
    if is_owner:
        with preserved_sigterm_handler():
            if address is None:
                start_local_ray(cpus)
            else:
                if security_warning := check_address(address):
                    warnings.warn(security_warning, stacklevel=2)
                ray.init(address, **SILENT_RAY)
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
    """Starts a Ray with `cpus` logical CPUs that listens on this machine only; raises `RuntimeError` if it does not.

    Ray takes `_node_ip_address="127.0.0.1"` for the machine's address in the network, unless this switch says that
    there are no clusters. Its variable, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, counts only before Ray is imported, and who
    joins a cluster needs it on. Where Ray's processes do not end with this one by themselves, they stay in its group.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER
    popen = services.ConsolePopen
    ray_constants.ENABLE_RAY_CLUSTER = False
    if sys.platform == "linux":
        services.ConsolePopen = ProcessGroupPopen
    try:
        ray.init("local", num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **SILENT_RAY)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        services.ConsolePopen = popen
    listens_at = ray.util.get_node_ip_address()
    if listens_at not in LOOPBACK:
        ray.shutdown()
        raise RuntimeError(
            f"A Ray that is started here must listen at {' or '.join(LOOPBACK)} only. Received: Ray {ray.__version__} "
            f"at {listens_at}. Start a Ray yourself, and give its address as `ray_address`."
        )


@contextlib.contextmanager
def preserved_sigterm_handler() -> Iterator[None]:
    """Has SIGTERM handled at the end as at the beginning, if this is the main thread: no other can see to that.

    With `ray.init`, Python's handler calls `sys.exit`, and one below it aborts the process three seconds later. After
    `ray.shutdown` the system kills the process at once, of which Python does not know.
    """
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, former or signal.SIG_DFL)


def check_joinable(address: str | None) -> None:
    """Raises `ConnectionError` if `connected` could not join the Ray at `address`."""
    if address is not None and not ray.is_initialized():
        check_address(address)


def start_ray_actor(actor_class: type, *arguments: Any, name: str | None = None) -> Any:
    """Starts an actor that comes back whenever its process or node dies; a call that it cost is not repeated."""
    remote: Any = ray.remote(
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": ACTOR_ENV_VARS},
    )(actor_class)
    return remote.options(name=name).remote(*arguments)


def is_process_lost(error: Exception) -> bool:
    """Whether a call failed because a process or node is gone, its own or, inside of it, another one's."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, PROCESS_LOST_ERRORS)


def unwrap_ray_error(error: Exception, process_name: str) -> Exception:
    """Return what was raised in a process, in place of Ray's error about it; its notes say where it was raised.

    Args:
        error: what Ray raised.
        process_name: the process.
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
        notes.append("Install what is missing on that machine, too, or put it on PYTHONPATH there before `ray start`.")
    for note in (*notes, *getattr(error, "__notes__", ()), f"Traceback of that process:\n{text}"):
        cause.add_note(note)
    return cause


@contextlib.contextmanager
def unwrapped_ray_errors() -> Iterator[None]:
    """Raises what was raised in a process of Ray's in place of Ray's error about it."""
    try:
        yield
    except RayError as error:
        raise unwrap_ray_error(error, "a process of Ray's") from None


def retry_while_lost(call: Callable[[], Result], seconds: float = 60.0) -> Result:
    """What `call` returns, which is tried again while its actor or node is gone, for so many seconds."""
    deadline = time.monotonic() + seconds
    delay = FIRST_RETRY_DELAY
    while True:
        try:
            return call()
        except PROCESS_LOST_ERRORS:
            if time.monotonic() + delay > deadline:
                raise
        time.sleep(delay)
        delay = min(2 * delay, MAX_RETRY_DELAY)
