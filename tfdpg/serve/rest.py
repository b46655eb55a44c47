"""TensorFlow Serving's REST protocol."""

import asyncio
import json
import re
import time
import zlib
from typing import Any

from aiohttp import web

from tfdpg.serve.errors import RequestError, abbreviate
from tfdpg.serve.metrics import CONTENT_TYPE
from tfdpg.serve.service import Service

PATH = re.compile(
    r"(?i:/v1/models/)(?P<name>[^/:]+)(/(?i:versions)/(?P<version>[0-9]+)|/(?i:labels)/(?P<label>[^/:]+))?"
    r"(?P<action>(?i::predict|/metadata)|/?)"
)
HEALTH = "/healthz"
"""Answered with status 200 once a version is loaded, and with 503 before."""
METRICS = "/monitoring/prometheus/metrics"
"""TensorFlow Serving's path."""
STATUSES = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 413, "INTERNAL": 500, "UNAVAILABLE": 503}
BYTES_PER_VALUE = 22
"""Approximate length of a number in JSON: float32 values are written with all digits of a float64."""


class RestServer(web.Server):
    """Answers HTTP/1.1 requests, each in its own thread. It is a protocol factory for `loop.create_server`.

    Args:
        service: the models, the limits, and what is counted. Its `report` receives a line for each error that is not
            the response to a valid HTTP request.
    """

    def __init__(self, service: Service):
        super().__init__(
            self._answer,
            request_factory=self._request,
            access_log=None,
            keepalive_timeout=service.limits.timeout,
            lingering_time=min(service.limits.timeout, 1.0),
            auto_decompress=False,
        )
        self._service = service
        self._limits = service.limits
        self._receiving: dict[Any, asyncio.Task[bytes]] = {}
        self.log = service.report

    def __call__(self) -> web.RequestHandler:
        """Return the handler of a new connection."""
        return _Connection(self, loop=self._loop, **self._kwargs)

    async def finish(self, timeout: float) -> None:
        """Answer the requests under way, also those whose bodies are still arriving, and close all connections.

        Args:
            timeout: the seconds that requests may take from now on.
        """
        end = time.monotonic() + timeout
        for connection in self.connections:
            if connection not in self._receiving:  # a connection that is closed receives nothing more
                connection.close()
        if self._receiving:
            await asyncio.wait(self._receiving.values(), timeout=timeout)
        self.pre_shutdown()
        await self.shutdown(max(end - time.monotonic(), 0.1))  # 0 would be no limit

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        limit = self._limits.request_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=limit)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._response(request)
        try:
            async with asyncio.timeout(self._limits.timeout):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:  # the client does not read its response
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            response.force_close()
        return response

    async def _response(self, request: web.BaseRequest) -> web.Response:
        try:
            if request.method == "GET" and request.path == METRICS:
                return web.Response(body=self._service.metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})
            return web.Response(body=await self._content(request), content_type="application/json")
        except RequestError as error:
            return error_response(STATUSES[error.code], str(error))
        except web.HTTPRequestEntityTooLarge:
            return error_response(413, f"The body of the request has more than {self._limits.request_bytes} bytes")
        except web.RequestPayloadError as error:
            status = 400
            message = f"The body of the request is malformed: {error.__cause__ or error}"
        except TimeoutError:
            status = 408
            message = f"The body of the request did not arrive within {self._limits.timeout:g} seconds"
        except Exception as error:
            if request.transport is not None:
                self.log(f"REST: a request failed: {type(error).__name__}: {error}")
                return error_response(500, f"Internal error: {type(error).__name__}: {error}")
            status = 400
            message = "The connection was closed before the body of the request arrived"
        return error_response(status, message, closes=True)

    async def _content(self, request: web.BaseRequest) -> bytes:
        if request.method == "GET" and request.path == HEALTH:
            if not self._service.is_loaded:
                raise RequestError("The model is being loaded.", "UNAVAILABLE")
            return b'{"status": "ok"}'
        found = PATH.fullmatch(request.path)
        match request.method, found and found["action"].lower():
            case "POST", ":predict":
                began = time.perf_counter()
                model = _requested_model(found)
                body = await self._body(request)
                encoding = request.headers.get("Content-Encoding", "")
                with self._service.metrics.request(model["name"], "predict", "REST", began):
                    return await asyncio.to_thread(self._predict, body, encoding, model)
            case "GET", "/metadata":
                return _to_json(self._service.store.metadata(**_requested_model(found)))
            case "GET", "" | "/":
                return _to_json(self._service.store.status(**_requested_model(found)))
        raise RequestError(f"Malformed request: {request.method} {abbreviate(request.path)}")

    async def _body(self, request: web.BaseRequest) -> bytes:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the response has not begun yet
        body = self._receiving[request.protocol] = asyncio.create_task(request.read())
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await body
        finally:
            del self._receiving[request.protocol]

    def _predict(self, body: bytes, encoding: str, requested: dict[str, Any]) -> bytes:
        model = self._service.store.find(**requested)
        from tfdpg.serve import tensors  # imports TensorFlow

        try:
            request = tensors.parse(_decompressed(body, encoding, self._limits.request_bytes))
            signature = model.signature(request.signature)
            inputs = tensors.inputs_of(request, signature)
        except RecursionError as error:
            raise RequestError("JSON Value: lists or objects are nested too deeply") from error
        outputs = signature(inputs, self._limits, BYTES_PER_VALUE)
        self._service.metrics.answered(model.version, signature.name, outputs)
        if self._service.request_log is not None:
            self._service.request_log.write_arrays(requested, model.version, signature.name, inputs, outputs)
        return tensors.answer(request, outputs)


class _Connection(web.RequestHandler):
    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Respond to an invalid HTTP/1.1 request with JSON, and log one line instead of a traceback."""
        self._log(f"REST: refused a request that is not valid HTTP/1.1 ({type(exc).__name__})")
        text = (message or f"Internal error: {type(exc).__name__}").partition("\n")[0].rstrip(":")
        return error_response(status, f"The request is not valid HTTP/1.1: {abbreviate(text)}", closes=True)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log one line instead of a traceback."""
        self._log(f"REST: a connection failed ({type(kw.get('exc_info')).__name__})")

    def _log(self, line: str) -> None:
        if isinstance(self._manager, RestServer):  # the connection is still open
            self._manager.log(line)


def error_response(status: int, message: str, closes: bool = False) -> web.Response:
    """Return an error response in TensorFlow Serving's form.

    Args:
        status: the HTTP status.
        message: the error.
        closes: whether to close the connection after the response.
    """
    response = web.Response(status=status, body=json.dumps({"error": message}), content_type="application/json")
    if closes:
        response.force_close()
    return response


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the body of a request after undoing its `Content-Encoding`."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"Content-Encoding must be gzip, deflate or identity. Received: {abbreviate(encoding)}")
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # accepts the headers of gzip and of zlib
    try:
        content = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"The body of the request is not valid {encoding}: {error}") from error
    if len(content) > limit:
        raise RequestError(f"The decompressed body has more than {limit} bytes", "RESOURCE_EXHAUSTED")
    if not decompressor.eof or decompressor.unused_data:
        problem = "bytes follow its end" if decompressor.eof else "its end is missing"
        raise RequestError(f"The body of the request is not valid {encoding}: {problem}")
    return content


def _requested_model(found: Any) -> dict[str, Any]:
    """Return the name, version and label in a path."""
    version = found["version"]
    if version and (len(version) > 19 or int(version) >= 2**63):
        raise RequestError(f"Failed to convert version: {abbreviate(version)} to numeric.")
    return {"name": found["name"], "version": int(version) if version else None, "label": found["label"] or ""}


def _to_json(message: Any) -> bytes:
    """Return a protocol buffer, or its JSON form, as the body of a response."""
    if isinstance(message, dict):
        return json.dumps(message, indent=2).encode()
    from google.protobuf import json_format

    return json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    ).encode()
