"""Waiting for processes of the cluster: what to warn of, and when to end."""

import warnings
from typing import Any

import ray

from tfdpg.distributed.control_store import ControlStore
from tfdpg.training.interrupt import Interrupt

POLL_INTERVAL = 0.2
"""Seconds between two looks at whether a signal came."""


class LivenessMonitor:
    """Warns while processes do not answer, ever more rarely, and ends training where waiting is limited.

    Args:
        cpus: the logical CPUs that the training run needs, one for each worker and replay shard.
        step_timeout: see `tfdpg.distributed.fit`; None waits without limit.
        interrupted: whether a signal asked to end.
        control_store: of the cluster, which knows its nodes.
    """

    def __init__(
        self,
        cpus: int,
        step_timeout: float | None = None,
        interrupted: Interrupt | None = None,
        control_store: ControlStore | None = None,
    ):
        self.step_timeout = step_timeout
        self._cpus = cpus
        self._interrupted = interrupted or Interrupt()
        self._control_store = control_store
        self._next_warning = 0.0

    def check_cluster(self) -> None:
        """Raises `ConnectionError` if the control store of the cluster is gone."""
        if self._control_store is not None:
            self._control_store.check()

    @property
    def _knows_nodes(self) -> bool:
        return self._control_store is None or self._control_store.is_answering

    def warn(self, processes: str, waited: float, first_warning_after: float, error: Exception | None = None) -> None:
        """Warn that processes do not answer, after `first_warning_after` seconds and whenever the time has doubled.

        Args:
            processes: the processes.
            waited: seconds for which they have not answered; 0 if all answer.
            first_warning_after: seconds until the first warning.
            error: why the last call was lost, if it was.
        """
        if waited < first_warning_after:
            self._next_warning = first_warning_after
        if waited < max(first_warning_after, self._next_warning):
            return
        self._next_warning = 2 * waited
        warnings.warn(f"{processes} delivered nothing for {waited:.0f} seconds. {self.reason(error)}", stacklevel=3)

    def reason(self, error: Exception | None = None) -> str:
        """Why processes may not answer: what the cluster lacks, or else the last error, or nothing."""
        if self.lacks_cpus:
            return self.capacity_text
        return f"{self.capacity_text} The last error: {' '.join(str(error).split())}" if error else self.capacity_text

    @property
    def lacks_cpus(self) -> bool:
        """Whether the cluster has fewer CPUs than the training run needs."""
        return self._knows_nodes and self._cpus > ray.cluster_resources().get("CPU", 0)

    @property
    def capacity_text(self) -> str:
        """What is required of the cluster, and what it has."""
        if not self._knows_nodes:
            return "The control store of the Ray cluster does not answer."
        found = ray.cluster_resources().get("CPU", 0)
        nodes = sum(node["Alive"] for node in ray.nodes())
        free = ray.available_resources().get("CPU", 0)
        needs = f"{self._cpus} CPUs are required, one for each worker and replay shard"
        has = f"the Ray cluster has {found:g} on {nodes} node{'s' * (nodes != 1)}, of which {free:g} are free"
        if found >= self._cpus:
            return f"{needs}; {has}."
        return (
            f"{needs}; {has}. {self._cpus - found:g} are missing: nodes were lost or have not joined yet. Start "
            "them (`ray start --address=...`), or use fewer `actors`."
        )

    def wait_for_reply(self, reference: Any, processes: str, allowed: float) -> Any:
        """What a call of a process that may still have to start returns.

        Raises:
            TimeoutError: it took longer than `allowed` seconds, and there is a `step_timeout`.
            KeyboardInterrupt: there was a Ctrl-C.
            SystemExit: there was a SIGTERM.
        """
        waited = 0.0
        while not ray.wait([reference], timeout=POLL_INTERVAL)[0]:
            waited += POLL_INTERVAL
            self.check_cluster()
            if error := self._interrupted.error():
                raise error
            if self.step_timeout is not None and waited > allowed:
                raise TimeoutError(f"{processes} delivered nothing within {allowed:g} seconds. {self.capacity_text}")
            self.warn(processes, waited, allowed)
        return ray.get(reference)
