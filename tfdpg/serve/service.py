"""What the REST and the gRPC server share, and what they answer while the model is loaded.

This module does not import TensorFlow, whose import takes seconds.
"""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.serve.errors import RequestError
from tfdpg.serve.limits import Limits
from tfdpg.serve.metrics import Metrics

if TYPE_CHECKING:
    from tfdpg.serve.model_store import ModelStore
    from tfdpg.serve.request_log import RequestLog


class LoadingStore:
    """Takes the place of a `ModelStore` until the model is loaded.

    Args:
        name: the name of the model.
        version: the version that its status shows.
    """

    def __init__(self, name: str, version: int):
        self.name = name
        self._version = version

    @property
    def message(self) -> str:
        """Why a request cannot be answered yet."""
        return f"The model {self.name} is being loaded. Try again in a few seconds."

    def find(self, name: str, version: int | None = None, label: str = "") -> NoReturn:
        """Raise `RequestError`: the model is not loaded, or has another name."""
        if name != self.name:
            raise RequestError(f"Servable not found for request: Latest({name})", "NOT_FOUND")
        raise RequestError(self.message, "UNAVAILABLE")

    metadata = find

    def status(self, name: str, version: int | None = None, label: str = "") -> dict[str, Any]:
        """Return the JSON form of a `GetModelStatusResponse`.

        Raises:
            RequestError: there is no such model or version.
        """
        if name != self.name:
            raise RequestError(f"Could not find any versions of model {name}", "NOT_FOUND")
        if label or version not in (None, self._version):
            raise RequestError(self.message, "UNAVAILABLE")
        status = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(self._version), "state": "LOADING", "status": status}]}

    def poll(self) -> list[str]:
        """Return no changes."""
        return []


class Service:
    """The state of a server.

    Args:
        store: the model, or what takes its place until it is loaded.
        limits: the limits of the server.
        report: receives a line for each change, and for each error.
        metrics: what is counted; None begins to count.
        request_log: receives the answered requests; None logs none.

    Attributes:
        store: replaced once the model is loaded.
    """

    def __init__(
        self,
        store: "ModelStore | LoadingStore",
        limits: Limits,
        report: Callable[[str], None],
        metrics: Metrics | None = None,
        request_log: "RequestLog | None" = None,
    ):
        self.store = store
        self.request_log = request_log
        self.limits = limits
        self.report = report
        self.metrics = metrics or Metrics(store.name)

    @property
    def is_loaded(self) -> bool:
        """Whether requests can be answered."""
        return not isinstance(self.store, LoadingStore)

    @property
    def loaded_store(self) -> "ModelStore":
        """The model.

        Raises:
            RequestError: it is being loaded.
        """
        if isinstance(self.store, LoadingStore):
            raise RequestError(self.store.message, "UNAVAILABLE")
        return self.store


def start_loading(path: Path, trusted: bool, metrics: Metrics) -> "Future[ModelStore]":
    """Import TensorFlow and load a model directory in a thread that does not keep the process from ending."""
    future: Future[ModelStore] = Future()

    def load() -> None:
        try:
            import_tensorflow()
            from tfdpg.serve import rpc_methods, tensors  # noqa: F401 (the first request does not wait for them)
            from tfdpg.serve.model_store import ModelStore

            store = ModelStore(path, trusted, metrics)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(store)

    Thread(target=load, name="load", daemon=True).start()
    return future
