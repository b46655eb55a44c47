"""Export policies as one C99 header: weights and forward pass, for machines without Python.

The C code is generated from the same list of layers that NumPy computes (`tfdpg.acting.NumpyPolicy`). `c_layer`
registers a layer in C, as `tfdpg.acting.numpy_layer` does in NumPy.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tfdpg.acting import NumpyCritic, NumpyPolicy, feature_columns
from tfdpg.acting.cells import GRU, LSTM, SimpleRNN
from tfdpg.acting.encoder import discrete_ranges
from tfdpg.acting.layers import rnn_cells

HEAD = """\
/* {title}

   C99 (or C++), no library but libm, no allocation; every function is static inline.
{usage}
*/
#ifndef {upper}_POLICY_H
#define {upper}_POLICY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define {upper}_RESTRICT __restrict
#else
#define {upper}_RESTRICT restrict
#endif

#define {upper}_X {x} /* the number of elements of an observation */
#define {upper}_A {a} /* the number of components of an action */

static inline float {prefix}_clip(float v, float low, float high) {{ return v < low ? low : v > high ? high : v; }}
static inline float {prefix}_sigmoid(float v) {{ return 0.5f * (1.0f + tanhf(0.5f * v)); }}

/* whether all of n numbers are finite, even if the compiler assumes that they are (-ffast-math) */
static inline int {prefix}_finite(int n, const float *v) {{
    for (int i = 0; i < n; i++) {{
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    }}
    return 1;
}}

/* y += x K; x has n elements, y has m */
static inline void {prefix}_product(int n, int m, const float *K, const float *x, float *{upper}_RESTRICT y) {{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) y[j] += x[i] * K[i * m + j];
}}
"""

ACTIVATE = {
    "relu": "{v} > 0.0f ? {v} : 0.0f",
    "tanh": "tanhf({v})",
    "elu": "{v} > 0.0f ? {v} : expm1f({v})",
    "sigmoid": "{prefix}_sigmoid({v})",
    "silu": "{v} * {prefix}_sigmoid({v})",
    "swish": "{v} * {prefix}_sigmoid({v})",
    "softplus": "({v} > 0.0f ? {v} : 0.0f) + log1pf(expf(-fabsf({v})))",
    "leaky_relu": "{v} > 0.0f ? {v} : 0.2f * {v}",
    "linear": "{v}",
}
"""The activations of `tfdpg.acting.ACTIVATIONS` in C."""


def c_header(
    actor: NumpyPolicy,
    title: str,
    critics: Mapping[str, NumpyCritic] = MappingProxyType({}),
    prefix: str = "policy",
    weights_file: str | None = None,
) -> tuple[str, str]:
    """Write a policy in C: `PREFIX_pi(x, a)`, or with a recurrent policy `PREFIX_pi(x, a, state)` and `PREFIX_start`.

    Args:
        actor: the policy, with its weights.
        title: the first line of the comment at the top.
        critics: the critics by the names of their functions; `PREFIX_q1(x, a)` returns the value of an action.
        prefix: the prefix of all names in the header, in lower case; macros have it in upper case.
        weights_file: the name of the `.c` file that is to define the weights; None defines them in the header.

    Returns:
        The text of the header, and the definitions of the weights for `weights_file`, which is empty without one.
    """
    spec = actor.spec
    sizes = [leaf.columns.stop - leaf.columns.start for leaf in spec.leaves]
    action = "the action in the environment's units, inside its bounds"
    if spec.integer_type is not None:
        action = "the action in the environment's units, integers inside its bounds"
    if spec.actions is not None:
        action = f"the action, an integer from {int(spec.low[0])} to {int(spec.high[0])}"
    parts = ", ".join(f"{leaf.name} ({size})" for leaf, size in zip(spec.leaves, sizes, strict=True))
    usage = [
        f"x: the observation as the environment returns it, flattened: {parts}; a: {action}.",
        "The functions include normalisation, encoding and action scaling.",
    ]
    code = Code(actor, {}, prefix)
    body = code.forward()
    state = code.state()
    invalid_action = "a is NaN" if spec.actions is None else f"a is {spec.no_action}, which is not a valid action"
    unchanged = "" if actor.recurrent_spec is None else ", and the state is unchanged"
    an_input = "an input"
    if spec.missing == "hold":
        usage.append("A number of x that is NaN or infinite is missing; the policy uses its last value.")
        an_input = "the state"
    discrete = [leaf.name for leaf in spec.leaves if leaf.dtype == "int32"]
    outside = f", or {' or '.join(discrete)} is not in its space" if discrete else ""
    usage.append(
        f"{prefix}_pi returns 0, or 1 if {an_input} is NaN or infinite{outside}; then {invalid_action}{unchanged}."
    )
    for name, critic in critics.items():
        body += ["", *Code(critic, code.constants, prefix).value(name)]
        invalid = f"NaN if an input is not finite{outside}"
        usage.append(f"{prefix}_{name}(x, a): the value of the action a by critic {name}; {invalid}.")
    if actor.recurrent_spec is not None:
        usage.append(f"{prefix}_start(&state) begins an episode. {prefix}_pi(x, a, &state) is a step.")
        if actor.recurrent_spec.uses_action:
            usage.append("It stores a in state.a_before; if another action is executed, store that action there.")
        if actor.recurrent_spec.uses_reward:
            usage.append("Store the reward of each step in state.r_before.")
    count = sum(len(values) for values in code.constants.values())
    where = "" if weights_file is None else f", defined in {weights_file}"
    usage.append(f"Weights: {count} floats, {4 * count} bytes of constants{where}.")
    width = 0 if actor.recurrent_spec is None else actor.recurrent_spec.width
    if width:
        usage.append(f"State of one episode ({prefix}_state): {width} floats, {4 * width} bytes.")
    text = "\n".join(f"   {line}" for line in usage)
    head = HEAD.format(title=title, usage=text, x=sum(sizes), a=spec.act_dim, prefix=prefix, upper=prefix.upper())
    definitions = [_definition(name, values) for name, values in code.constants.items()]
    if weights_file is None:
        return "\n".join([head, *(f"static {each}" for each in definitions), *state, *body, "", "#endif", ""]), ""
    declared = [f"extern const float {name}[{len(values)}];" for name, values in code.constants.items()]
    declared = ["#ifdef __cplusplus", 'extern "C" {', "#endif", *declared, "#ifdef __cplusplus", "}", "#endif", ""]
    return "\n".join([head, *declared, *state, *body, "", "#endif", ""]), "\n".join(definitions)


def _definition(name: str, values: list[str]) -> str:
    """Return the definition of an array of constants."""
    rows = [", ".join(values[start : start + 8]) for start in range(0, len(values), 8)]
    return f"const float {name}[{len(values)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


Array = tuple[str, int]
"""An array in C: the expression that points to it, and the number of its elements."""

CLayer = Callable[..., Array]
"""Writes a layer. It takes the code, the layer's weights, the input arrays and, as keyword arguments, the layer's
configuration, and returns the output array."""

C_LAYERS: dict[str, CLayer] = {}
"""The layers that can be written in C, by the names of `tfdpg.acting.layers.LAYERS`."""


def c_layer(*names: str) -> Callable[[CLayer], CLayer]:
    """Register a layer for C, under the name that it has in NumPy (see `tfdpg.acting.numpy_layer`).

    An *array* in C is a pair: the expression that points to it, and the number of its elements.

    Args:
        names: the registered names of the layer, as for `tfdpg.acting.numpy_layer`.

    Returns:
        A decorator of a function `write(code, weights, *inputs, **config)`. It receives the `Code` to write to, the
        layer's weights as NumPy arrays in Keras' order, an array for each input, and the configuration by name, and
        returns the array of the output. It raises `ValueError` for what it does not support.

    Example:
        ```python
        @c_layer("my_package>Scale")
        def scale(code, weights, x, *, factor):
            return code.array(x[1], f"{x[0]}[i] * {code.number(factor)}")
        ```
    """

    def register(write: CLayer) -> CLayer:
        for name in names:
            C_LAYERS[name] = write
        return write

    return register


class Code:
    """The statements of a forward pass in C; each layer fills an array of its own.

    A function that `c_layer` decorates receives this object. An *array* is a pair of the expression that points to it
    and the number of its elements: `("v3", 64)`.

    Args:
        network: the network.
        constants: the arrays of weights that have been written, by name; new ones are added.
        prefix: the prefix of all names.
    """

    def __init__(self, network: NumpyPolicy | NumpyCritic, constants: dict[str, list[str]], prefix: str):
        self._network = network
        self.constants = constants
        self._lines = list[str]()
        self._arrays = 0
        self._prefix = prefix
        self._width = sum(leaf.columns.stop - leaf.columns.start for leaf in network.spec.leaves)
        self._recurrent_spec = getattr(network, "recurrent_spec", None)

    def forward(self) -> list[str]:
        """Return the function that selects actions."""
        spec = self._network.spec
        state = [self._field(*each) for each in self._fields()]
        invalid_action = "NAN" if spec.actions is None else f"{spec.no_action}.0f"
        checked = state if spec.missing == "hold" else [("x", self._width), *state]
        self._lines += [
            f"if (!({self._valid(*checked)})) {{",
            f"    for (int i = 0; i < {spec.act_dim}; i++) a[i] = {invalid_action};",
            "    return 1;",
            "}",
        ]
        features = self._encoded()
        self._act(self._layers(features, self.join(state) if state else ("", 0))[0])
        self._lines.append("return 0;")
        last = f", {self._prefix}_state *state" if state else ""
        return self._function(f"int {self._prefix}_pi(const float *x, float *a{last})", self._lines)

    def value(self, name: str) -> list[str]:
        """Return the function of a critic."""
        act_dim = self._network.spec.act_dim
        self._lines.append(f"if (!({self._valid(('x', self._width), ('a', act_dim))})) return NAN;")
        value, _ = self._layers(self._encoded(), ("a", act_dim))
        self._lines.append(f"return {value}[0];")
        define = f"#define {self._prefix.upper()}_{name.upper()}"
        return [define, *self._function(f"float {self._prefix}_{name}(const float *x, const float *a)", self._lines)]

    def _layers(self, features: Array, other: Array) -> Array:
        """Write the layers of the network, from its two inputs to its output."""
        values = [features, other]
        for node in self._network.nodes:
            if node.layer not in C_LAYERS:
                raise ValueError(f"There is no layer {node.layer!r} in C; see `tfdpg.export.c_layer`")
            weights = node.parts(self._network.weights)
            inputs = [values[number] for number in node.inputs]
            values.append(C_LAYERS[node.layer](self, weights, *inputs, **node.config))
        return values[-1]

    def state(self) -> list[str]:
        """Return the struct of the recurrent state and the function that resets it; nothing if not recurrent."""
        recurrent_spec = self._recurrent_spec
        if recurrent_spec is None:
            return []
        prefix = self._prefix
        begin = ["state->r_before = 0.0f;"] if recurrent_spec.uses_reward else []
        begin += [f"for (int i = 0; i < {size}; i++) state->{name}[i] = 0.0f;" for name, size in recurrent_spec.parts]
        if recurrent_spec.uses_action:
            center = self.constant("center", recurrent_spec.spec.center)
            begin.append(f"for (int i = 0; i < {recurrent_spec.spec.act_dim}; i++) state->a_before[i] = {center}[i];")
        names = [name if name == "r_before" else f"{name}[{size}]" for name, size in self._fields()]
        return [
            f"#define {prefix.upper()}_STATE /* the policy is recurrent */",
            f"typedef struct {{ float {', '.join(names)}; }} {prefix}_state;",
            "",
            *self._function(f"void {prefix}_start({prefix}_state *state)", begin),
            "",
        ]

    def _function(self, signature: str, lines: Sequence[str]) -> list[str]:
        """Return the definition of a function."""
        return [f"static inline {signature} {{", *(f"    {line}" for line in lines), "}"]

    def _fields(self) -> list[Array]:
        """Return the fields of the recurrent state, in the order of the recurrent inputs; none if not recurrent."""
        recurrent_spec = self._recurrent_spec
        if recurrent_spec is None:
            return []
        before = [("a_before", recurrent_spec.spec.act_dim)] if recurrent_spec.uses_action else []
        return [*before, *([("r_before", 1)] if recurrent_spec.uses_reward else []), *recurrent_spec.parts]

    def _field(self, name: str, width: int) -> Array:
        """Return a field of the state as an array; `r_before` is a single number."""
        return f"{'&' if name == 'r_before' else ''}state->{name}", width

    def _valid(self, *arrays: Array) -> str:
        """Return the test that arrays are finite, and that discrete parts of the observation are in their spaces."""
        tests = [f"{self._prefix}_finite({width}, {name})" for name, width in arrays]
        start = 0
        for leaf in self._network.spec.leaves:
            size = leaf.columns.stop - leaf.columns.start
            if leaf.dtype == "int32":
                for k, (first, count) in enumerate(zip(*discrete_ranges(leaf.space), strict=True), start):
                    nearest = self.clipped(f"x[{k}]", self.number(first), self.number(first + count - 1))
                    tests.append(f"x[{k}] == rintf({nearest})")
            start += size
        return " && ".join(tests)

    def finite(self, pointer: str) -> str:
        """Return the test that the number at a pointer is finite."""
        return f"{self._prefix}_finite(1, {pointer})"

    def constant(self, name: str, values: Any) -> str:
        """Write an array of constants, and return its name.

        Args:
            name: the beginning of its name.
            values: the numbers, which are flattened and converted to float32.
        """
        name = f"{self._prefix}_{name}{len(self.constants)}"
        self.constants[name] = [self.number(value) for value in np.ravel(values)]
        return name

    def vector(self, name: str, values: np.ndarray, x: Array) -> str:
        """Write an array of constants with one for each element of `x`; returns its name."""
        if values.shape != (x[1],):
            raise ValueError(f"`{name}` of a layer must have shape ({x[1]},). Received: {values.shape}")
        return self.constant(name, values)

    def number(self, value: Any) -> str:
        """Return a float32 as an exact constant in C.

        Args:
            value: the number.
        """
        if np.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        text = f"{float(value):.9g}"
        return f"{text}f" if set(text) & set(".e") else f"{text}.0f"

    def array(self, width: int, value: str | None = None) -> Array:
        """Declare an array, and return it.

        Args:
            width: the number of its elements.
            value: an expression of `i`, from which element i is computed; None leaves the elements undefined.
        """
        self._arrays += 1
        name = f"v{self._arrays}"
        self._lines.append(f"float {name}[{width}];")
        if value is not None:
            self.each(width, f"{name}[i] = {value};")
        return name, width

    def each(self, width: int, statement: str) -> None:
        """Write a loop over `i`.

        Args:
            width: the number of passes; `i` counts from 0.
            statement: the statement in the loop, with its semicolon.
        """
        self._lines.append(f"for (int i = 0; i < {width}; i++) {statement}")

    def line(self, statement: str) -> None:
        """Write a statement.

        Args:
            statement: the statement, with its semicolon.
        """
        self._lines.append(statement)

    def product(self, kernel: np.ndarray, bias: np.ndarray, x: Array) -> Array:
        """Write a linear layer, x K + b, and return the array of its output.

        Args:
            kernel: K, `[n, m]`.
            bias: b, `[m]`.
            x: the input, an array of n elements.

        Raises:
            ValueError: `x` has another number of elements than the kernel has rows.
        """
        if len(kernel) != x[1]:
            raise ValueError(f"A linear layer of {len(kernel)} features receives {x[1]}")
        y, width = self.array(len(bias), f"{self.constant('bias', bias)}[i]")
        kernel_name = self.constant("kernel", kernel)
        self._lines.append(f"{self._prefix}_product({len(kernel)}, {width}, {kernel_name}, {x[0]}, {y});")
        return y, width

    def activation(self, name: str, x: Array) -> Array:
        """Write an activation, in place, and return the array.

        Args:
            name: the Keras name of the activation.
            x: the array.

        Raises:
            ValueError: the activation is not known in C.
        """
        if name != "linear":
            self.each(x[1], f"{x[0]}[i] = {self.activated(name, f'{x[0]}[i]')};")
        return x

    def activated(self, name: str, value: str) -> str:
        """Return the expression of an activation of a value.

        Args:
            name: the Keras name of the activation.
            value: the expression of the value.

        Raises:
            ValueError: the activation is not known in C.
        """
        if name not in ACTIVATE:
            raise ValueError(f"There is no activation {name!r} in C")
        return ACTIVATE[name].format(v=value, prefix=self._prefix)

    def clipped(self, value: str, low: str, high: str) -> str:
        """Return the expression of a clipped value.

        Args:
            value: the expression of the value.
            low: the expression of the lower bound.
            high: the expression of the upper bound.
        """
        return f"{self._prefix}_clip({value}, {low}, {high})"

    def join(self, arrays: Sequence[Array]) -> Array:
        """Write the concatenation of arrays, and return it.

        Args:
            arrays: the arrays, in order.
        """
        joined = self.array(sum(width for _, width in arrays))
        start = 0
        for name, width in arrays:
            self.each(width, f"{joined[0]}[{start} + i] = ({name})[i];")
            start += width
        return joined

    def _encoded(self) -> Array:
        """Write the features of the observation: images scaled, discrete parts one-hot (see `tfdpg.acting.encode`)."""
        spec = self._network.spec
        columns = feature_columns(spec)
        start = 0
        if all(leaf.dtype == "float32" for leaf in spec.leaves):
            return "x", columns[-1].stop
        features = self.array(columns[-1].stop, "0.0f")
        for leaf, column in zip(spec.leaves, columns, strict=True):
            size = leaf.columns.stop - leaf.columns.start
            to = column.start
            if leaf.dtype == "int32":
                for k, (first, count) in enumerate(zip(*discrete_ranges(leaf.space), strict=True)):
                    self.each(count, f"{features[0]}[{to} + i] = x[{start + k}] == (float)({first} + i) ? 1.0f : 0.0f;")
                    to += count
            else:
                scale = " / 255.0f" if leaf.dtype == "uint8" else ""
                self.each(size, f"{features[0]}[{to} + i] = x[{start} + i]{scale};")
            start += size
        return features

    def _act(self, outputs: str) -> None:
        """Write the action into `a` and the new state into `state` (see `tfdpg.acting.greedy_actions`)."""
        spec = self._network.spec
        if spec.actions is not None:
            self._lines.append("int best = 0;")
            self.each(spec.actions, f"best = {outputs}[i] > {outputs}[best] ? i : best;")
            self._lines.append(f"a[0] = (float)(best + {int(spec.low[0])});")
            start = spec.actions
        else:
            low = self.constant("low", spec.low)
            high = self.constant("high", spec.high)
            action = self.clipped(f"{outputs}[i]", f"{low}[i]", f"{high}[i]")
            self.each(spec.act_dim, f"a[i] = {action if spec.integer_type is None else f'rintf({action})'};")
            start = spec.act_dim
        for name, size in self._fields():
            if name == "a_before":
                self.each(size, "state->a_before[i] = a[i];")
            elif name != "r_before":
                self.each(size, f"state->{name}[i] = {outputs}[{start} + i];")
                start += size


@c_layer("Dense", "tfdpg>Value")
def _dense(code: Code, weights: Sequence[np.ndarray], x: Array, *, activation: str = "linear") -> Array:
    kernel, bias = weights
    return code.activation(activation, code.product(kernel, bias, x))


@c_layer("Activation")
def _activation(code: Code, weights: Sequence[np.ndarray], x: Array, *, activation: str) -> Array:
    return code.array(x[1], code.activated(activation, f"{x[0]}[i]"))


for _name in ("Softplus", "Tanh"):
    c_layer(f"ops.{_name}")(functools.partial(_activation, activation=_name.lower()))


@c_layer("LayerNormalization")
def _layer_norm(code: Code, weights: Sequence[np.ndarray], x: Array, *, epsilon: float, **config: Any) -> Array:
    name, width = x
    gamma = code.vector("gamma", weights[0], x)
    beta = code.vector("beta", weights[1], x)
    (mean, _), (scale, _) = code.array(1, "0.0f"), code.array(1, "0.0f")
    code.each(width, f"{mean}[0] += {name}[i] / {width}.0f;")
    code.each(width, f"{scale}[0] += ({name}[i] - {mean}[0]) * ({name}[i] - {mean}[0]) / {width}.0f;")
    code.line(f"{scale}[0] = sqrtf({scale}[0] + {code.number(epsilon)});")
    return code.array(width, f"({name}[i] - {mean}[0]) / {scale}[0] * {gamma}[i] + {beta}[i]")


@c_layer("tfdpg>BatchRenormalization")
def _batch_norm(code: Code, weights: Sequence[np.ndarray], x: Array, *, epsilon: float) -> Array:
    gamma, beta, mean, variance, _ = weights
    scale_name = code.vector("scale", gamma / np.sqrt(variance + np.float32(epsilon)), x)
    mean_name = code.vector("mean", mean, x)
    beta_name = code.vector("beta", beta, x)
    return code.array(x[1], f"({x[0]}[i] - {mean_name}[i]) * {scale_name}[i] + {beta_name}[i]")


@c_layer("tfdpg>Normalizer")
def _normalizer(code: Code, weights: Sequence[np.ndarray], x: Array, *, epsilon: float, clip: float) -> Array:
    mean = code.vector("mean", weights[0], x)
    std = code.vector("std", np.sqrt(weights[1]) + np.float32(epsilon), x)
    largest = code.number(clip)
    return code.array(x[1], code.clipped(f"({x[0]}[i] - {mean}[i]) / {std}[i]", f"-{largest}", largest))


@c_layer("tfdpg>AvgL1Norm")
def _avg_l1_norm(code: Code, weights: Sequence[np.ndarray], x: Array) -> Array:
    name, width = x
    mean, _ = code.array(1, "0.0f")
    code.each(width, f"{mean}[0] += fabsf({name}[i]) / {width}.0f;")
    code.line(f"{mean}[0] = {mean}[0] > 1e-8f ? {mean}[0] : 1e-8f;")
    return code.array(width, f"{name}[i] / {mean}[0]")


@c_layer("Rescaling")
def _rescaling(code: Code, weights: Sequence[np.ndarray], x: Array, *, scale: Any, offset: Any) -> Array:
    scale_name = code.constant("scale", np.broadcast_to(np.asarray(scale, np.float32), x[1:]))
    offset_name = code.constant("offset", np.broadcast_to(np.asarray(offset, np.float32), x[1:]))
    return code.array(x[1], f"{x[0]}[i] * {scale_name}[i] + {offset_name}[i]")


@c_layer("Concatenate")
def _concatenate(code: Code, weights: Sequence[np.ndarray], *inputs: Array, axis: int) -> Array:
    return code.join(inputs)


@c_layer("Add")
def _add(code: Code, weights: Sequence[np.ndarray], *inputs: Array) -> Array:
    width = inputs[0][1]
    if any(size != width for _, size in inputs):
        raise ValueError(f"The inputs of a sum have the widths {[size for _, size in inputs]}")
    return code.array(width, " + ".join(f"{name}[i]" for name, _ in inputs))


@c_layer("Subtract")
def _subtract(code: Code, weights: Sequence[np.ndarray], x: Array, y: Array) -> Array:
    if x[1] != y[1]:
        raise ValueError(f"The inputs of a difference have the widths {x[1]} and {y[1]}")
    return code.array(x[1], f"{x[0]}[i] - {y[0]}[i]")


@c_layer("ops.Add")
def _add_number(code: Code, weights: Sequence[np.ndarray], x: Array, *, other: float) -> Array:
    return code.array(x[1], f"{x[0]}[i] + {code.number(other)}")


@c_layer("ops.GetItem")
def _columns(code: Code, weights: Sequence[np.ndarray], x: Array, *, start: int, stop: int) -> Array:
    if not 0 <= start < stop <= x[1]:
        raise ValueError(f"There are no columns {start} to {stop} of {x[1]}")
    return f"({x[0]} + {start})", stop - start


@c_layer("ops.Clip")
def _clip(code: Code, weights: Sequence[np.ndarray], x: Array, *, x_min: float, x_max: float) -> Array:
    return code.array(x[1], code.clipped(f"{x[0]}[i]", code.number(x_min), code.number(x_max)))


@c_layer("Softmax")
def _softmax(code: Code, weights: Sequence[np.ndarray], x: Array) -> Array:
    (largest, _), (total, _) = code.array(1, f"{x[0]}[0]"), code.array(1, "0.0f")
    code.each(x[1], f"{largest}[0] = {x[0]}[i] > {largest}[0] ? {x[0]}[i] : {largest}[0];")
    y, width = code.array(x[1], f"expf({x[0]}[i] - {largest}[0])")
    code.each(width, f"{total}[0] += {y}[i];")
    code.each(width, f"{y}[i] /= {total}[0];")
    return y, width


@c_layer("tfdpg>RNNStack")
def _rnn_stack(
    code: Code, weights: Sequence[np.ndarray], x: Array, state: Array, *, cells: Sequence[tuple[str, int]]
) -> Array:
    new, width = code.array(state[1], f"{state[0]}[i]")
    start = 0
    for cell in rnn_cells(weights, cells):
        x = _cell(cell, code, x, f"({new} + {start})")
        start += cell.state_width
    return new, width


@c_layer("tfdpg>Hold")
def _hold(code: Code, weights: Sequence[np.ndarray], x: Array, held: Array) -> Array:
    flagged = code.vector("flagged", weights[0], x)
    is_finite = code.finite(f"{x[0]} + i")
    numbers = code.array(x[1], f"{is_finite} ? {x[0]}[i] : {held[0]}[i]")
    return code.join([numbers, code.array(x[1], f"{is_finite} ? 0.0f : {flagged}[i]")])


@c_layer("tfdpg>Stack")
def _stack(code: Code, weights: Sequence[np.ndarray], frame: Array, state: Array, *, frames: int) -> Array:
    width = frame[1]
    begun = f"{state[0]}[{state[1] - 1}] > 0.5f"
    before = code.array((frames - 1) * width, f"{begun} ? {state[0]}[i] : {frame[0]}[i % {width}]")
    newest = [(before[0], before[1] - width)] if frames > 2 else []
    return code.join([frame, before, frame, *newest, code.array(1, "1.0f")])


@functools.singledispatch
def _cell(cell: Any, code: Code, x: Array, state: str) -> Array:
    """Write one step of a recurrent cell, which changes its state in place, and return its output."""
    raise TypeError(f"There is no {cell} in C")


@_cell.register
def _(cell: LSTM, code: Code, x: Array, state: str) -> Array:
    units = cell.units
    h, c = state, f"({state} + {units})"
    gates, _ = code.product(cell.kernel, cell.bias, code.join([x, (h, units)]))
    i, f, g, o = (f"{gates}[{k * units} + i]" for k in range(4))
    i, f, o = (code.activated("sigmoid", gate) for gate in (i, f, o))
    code.each(units, f"{c}[i] = {f} * {c}[i] + {i} * tanhf({g});")
    code.each(units, f"{h}[i] = {o} * tanhf({c}[i]);")
    return h, units


@_cell.register
def _(cell: GRU, code: Code, x: Array, state: str) -> Array:
    units = cell.units
    new, _ = code.product(cell.kernel, cell.bias, x)
    past, _ = code.product(cell.recurrent_kernel, cell.recurrent_bias, (state, units))
    z, _ = code.array(units, code.activated("sigmoid", f"({new}[i] + {past}[i])"))
    reset = code.activated("sigmoid", f"({new}[{units} + i] + {past}[{units} + i])")
    candidate, _ = code.array(units, f"tanhf({new}[{2 * units} + i] + {reset} * {past}[{2 * units} + i])")
    code.each(units, f"{state}[i] = {candidate}[i] + {z}[i] * ({state}[i] - {candidate}[i]);")
    return state, units


@_cell.register
def _(cell: SimpleRNN, code: Code, x: Array, state: str) -> Array:
    new, units = code.product(cell.kernel, cell.bias, code.join([x, (state, cell.units)]))
    code.each(units, f"{state}[i] = tanhf({new}[i]);")
    return state, units


@c_layer("tfdpg>Categorical")
def _categorical_head(code: Code, weights: Sequence[np.ndarray], x: Array) -> Array:
    kernel, bias, atoms = weights
    return _mean(code, code.product(kernel, bias, x), code.constant("atoms", atoms))


@c_layer("tfdpg>Mixture")
def _mixture_head(code: Code, weights: Sequence[np.ndarray], x: Array) -> Array:
    kernel, bias = weights
    output, width = code.product(kernel, bias, x)
    return _mean(code, (output, width // 3), f"({output} + {width // 3})")


def _mean(code: Code, logits: Array, values: str) -> Array:
    """Write the mean of values, weighted by the softmax of logits, as an array of one element."""
    probs, width = _softmax(code, (), logits)
    mean = code.array(1, "0.0f")
    code.each(width, f"{mean[0]}[0] += {probs}[i] * {values}[i];")
    return mean
