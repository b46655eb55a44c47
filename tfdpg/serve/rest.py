"""TensorFlow Serving's REST."""

import asyncio
import json
import re
from typing import Any

from aiohttp import web
from google.protobuf import json_format

from tfdpg.serve import tensors
from tfdpg.serve.messages import metadata_response, status_response
from tfdpg.serve.model import RequestError
from tfdpg.serve.shelf import Shelf

WHERE = r"(?i:/v1/models/)(?P<name>[^/:]+)(/(?i:versions)/(?P<version>\d+)|/(?i:labels)/(?P<label>[^/:]+))?"
PREDICT, METADATA, STATUS = (re.compile(WHERE + end) for end in ("(?i::predict)", "(?i:/metadata)", "/?"))
STATUSES = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "INTERNAL": 500}


def application(shelf: Shelf, limit: int) -> web.Application:
    """Answers requests, each in a thread of its own.

    Args:
        shelf: the model.
        limit: the bytes that a body may have.
    """

    async def answer(request: web.Request) -> web.Response:
        try:
            if request.method == "POST" and (found := PREDICT.fullmatch(request.path)):
                body = await request.read()
                content = await asyncio.to_thread(_predict, shelf, body, **_where(found))
            elif request.method == "GET" and (found := METADATA.fullmatch(request.path)):
                content = _text(metadata_response(shelf, **_where(found), fields=["signature_def"]))
            elif request.method == "GET" and (found := STATUS.fullmatch(request.path)):
                content = _text(status_response(shelf, **_where(found)))
            else:
                raise RequestError(f"Malformed request: {request.method} {request.path}")
            return web.Response(body=content, content_type="application/json")
        except RequestError as error:
            return _refusal(STATUSES[error.code], str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"The body of the request has more than {limit} bytes")

    app = web.Application(client_max_size=limit)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def _predict(shelf: Shelf, body: bytes, name: str, version: int | None, label: str) -> bytes:
    model = shelf.find(name, version, label)
    request = tensors.parse(body)
    signature = model.signature(request.signature)
    return tensors.answer(request, signature(tensors.inputs_of(request, signature)))


def _where(found: re.Match[str]) -> dict[str, Any]:
    """The model that a path names."""
    version = found["version"]
    return {"name": found["name"], "version": int(version) if version else None, "label": found["label"] or ""}


def _text(message: Any) -> bytes:
    return json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    ).encode()


def _refusal(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=json.dumps({"error": message}), content_type="application/json")
