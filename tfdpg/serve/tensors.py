"""Conversion between TensorFlow Serving's JSON and protocol buffers, and arrays.

A REST request has its inputs in rows, `"instances": [{"x": [...], "a": [...]}, ...]`, or in columns,
`"inputs": {"x": [[...], ...], "a": [[...], ...]}`. The response has the same form. A single input or output may have no
name. Numbers in requests must be finite, except in observations of a policy that holds missing numbers; responses may
contain NaN, Infinity and -Infinity.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdpg.serve.errors import RequestError, abbreviate
from tfdpg.serve.model import Signature, Tensor

VALUES = {"float32": "float_val", "float64": "double_val", "int32": "int_val", "int64": "int64_val"}
"""The fields from which clients read the values of a tensor."""
FORMS = {"instances", "inputs"}
BOOLEANS = (b"true", b"false")
"""Values that NumPy would convert to numbers."""


class Request(NamedTuple):
    """A REST request.

    Attributes:
        signature: the name of the signature; empty for the default.
        values: the inputs.
        in_rows: whether the inputs are in rows.
        may_have_booleans: whether the inputs may contain truth values.
        constant: the first of the constants NaN, Infinity and -Infinity in the request; empty if there are none.
    """

    signature: str
    values: Any
    in_rows: bool
    may_have_booleans: bool
    constant: str


def parse(body: bytes) -> Request:
    """Parse the body of a REST request.

    Raises:
        RequestError: the body is not a request.
    """
    constants: list[str] = []

    def read_constant(name: str) -> float:
        constants.append(name)
        return float(name)

    try:
        content = json.loads(body, parse_constant=read_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON Parse error: {error}") from error
    if not isinstance(content, dict):
        raise RequestError(f"JSON Value: {_abbreviate_json(content)} Is not object")
    signature = content.get("signature_name", "")
    if not isinstance(signature, str):
        raise RequestError(
            f"JSON Value: {_abbreviate_json(content)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    if content.keys() >= FORMS:
        raise RequestError(
            f"JSON Value: {_abbreviate_json(content)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist"
        )
    for form in FORMS & content.keys():
        has_booleans = any(boolean in body for boolean in BOOLEANS)
        return Request(signature, content[form], form == "instances", has_booleans, *constants[:1] or [""])
    raise RequestError("Missing 'inputs' or 'instances' key")


def inputs_of(request: Request, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs of a request as arrays.

    Raises:
        RequestError: the names, types or shapes are not those of the signature.
    """
    columns = _columns(request.values, signature) if request.in_rows else request.values
    if not isinstance(columns, dict):
        if len(signature.inputs) > 1:
            raise RequestError(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        columns = dict.fromkeys(signature.inputs, columns)
    signature.check_names(columns)
    return {name: _array(columns[name], name, expected, request) for name, expected in signature.inputs.items()}


def answer(request: Request, outputs: Mapping[str, np.ndarray]) -> bytes:
    """Return the body of the response, in the form of the request."""
    columns: dict[str, Any] = {name: values.tolist() for name, values in outputs.items()}
    (first, *others) = columns.values()
    if not request.in_rows:
        return json.dumps({"outputs": columns if others else first}).encode()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] if others else first
    return json.dumps({"predictions": rows}).encode()


def from_proto(name: str, tensor: Any, expected: Tensor, limit: int) -> np.ndarray:
    """Return a `TensorProto` as an array.

    Args:
        name: the name of the input.
        tensor: the `TensorProto`.
        expected: the input of the signature.
        limit: the maximum size of the array in bytes. A short message may stand for many equal values.

    Raises:
        RequestError: the type is not the expected one, the message is malformed, or the array is too large.
    """
    if tensor.dtype != tf.dtypes.as_dtype(expected.dtype).as_datatype_enum:
        raise RequestError(
            f"input tensor {name}: expects to be {expected.dtype} but {_dtype_name(tensor.dtype)} is provided"
        )
    try:
        if tf.TensorShape(tensor.tensor_shape).num_elements() * expected.dtype.itemsize > limit:
            raise RequestError(f"tensor parsing error: {name}: more than {limit} bytes", "RESOURCE_EXHAUSTED")
        return tf.make_ndarray(tensor)
    except RequestError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        raise RequestError(f"tensor parsing error: {name}: {error}") from error


def _dtype_name(number: int) -> str:
    try:
        return tf.dtypes.as_dtype(number).name
    except (KeyError, TypeError):
        return f"DataType {number}"


def to_proto(values: np.ndarray) -> Any:
    """Return an array as a `TensorProto`, in the fields that clients of TensorFlow Serving read."""
    if values.dtype.name not in VALUES:
        return tf.make_tensor_proto(values)
    proto = tf.make_tensor_proto(np.zeros(0, values.dtype), shape=[0])
    proto.tensor_shape.CopyFrom(tf.TensorShape(values.shape).as_proto())
    proto.ClearField("tensor_content")
    getattr(proto, VALUES[values.dtype.name]).extend(values.ravel().tolist())
    return proto


def _columns(rows: Any, signature: Signature) -> dict[str, list[Any]]:
    """Return rows as columns."""
    if not isinstance(rows, list):
        raise RequestError(f"JSON Value: {_abbreviate_json(rows)} Excepting 'instances' to be an list/array")
    if not rows:
        raise RequestError("No values in 'instances' array")
    if not isinstance(rows[0], dict):
        if len(signature.inputs) > 1:
            raise RequestError(
                "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
                "tensorinfo_map"
            )
        if any(isinstance(row, dict) for row in rows):
            raise RequestError("Expecting value/list but got object in input list")
        return dict.fromkeys(signature.inputs, rows)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(f"Expecting object but got list at item {number} of input list")
        if row.keys() != signature.inputs.keys():
            raise RequestError(
                f"Failed to process element: {number} of 'instances' list. "
                f"JSON object: {_abbreviate_json(row)} keys must be equal to: {','.join(sorted(signature.inputs))}"
            )
    return {name: [row[name] for row in rows] for name in signature.inputs}


def _array(value: Any, name: str, expected: Tensor, request: Request) -> np.ndarray:
    kinds = "iuf" if expected.dtype.kind == "f" else "iu"
    if (request.may_have_booleans or isinstance(value, str | dict)) and (wrong := _leaf_of(value, (bool, str, dict))):
        raise _type_error(wrong[0], name, expected)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"input tensor {name}: Encountered list at unexpected size or level: {error}") from error
    if not array.size:
        array = array.astype(expected.dtype)
    if array.dtype.kind not in kinds:
        wrong = _leaf_of(value, (str, dict, type(None)) if kinds == "iuf" else (str, dict, type(None), float))
        raise _type_error(wrong[0] if wrong else value, name, expected)
    if not expected.may_miss and not np.isfinite(array).all():
        if not request.constant:  # a number such as 1e400
            raise RequestError(f"input tensor {name}: a number is outside the range of float64")
        raise RequestError(f"JSON Value: {request.constant} is not a finite number; inputs must be finite")
    with np.errstate(over="ignore"):
        converted = array.astype(expected.dtype)
    lost = np.isinf(converted) & np.isfinite(array) if kinds == "iuf" else converted != array
    if lost.any():
        raise RequestError(
            f"input tensor {name}: Cannot convert JSON value: {array[lost].flat[0]} to {expected.dtype} "
            "without loss of precision."
        )
    return converted


def _leaf_of(value: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Return a list with the first value of these types in nested lists; an empty list if there is none."""
    if isinstance(value, list):
        return next((found for each in value if (found := _leaf_of(each, kinds))), [])
    return [value] if isinstance(value, kinds) else []


def _type_error(value: Any, name: str, expected: Tensor) -> RequestError:
    kinds = {bool: str(value), str: "String", dict: "Object", list: "Array", type(None): "Null"}
    kind = kinds.get(type(value), "Number")
    return RequestError(
        f"input tensor {name}: JSON Value: {_abbreviate_json(value)} Type: {kind} "
        f"is not of expected type: {expected.dtype}"
    )


def _abbreviate_json(value: Any) -> str:
    """Return a value for a message, at most one line long."""
    return abbreviate(json.dumps(value))
