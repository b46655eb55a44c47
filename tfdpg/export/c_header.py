"""Export built-in policies as one C99 header: weights and forward pass, for machines without Python.

The C code is generated from the forward pass in NumPy (`tfdpg.acting.NumpyPolicy`), so that both have one description.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tfdpg.acting import ACTIVATIONS, NumpyCritic, NumpyPolicy, feature_columns
from tfdpg.acting.cells import GRU, LSTM, SimpleRNN
from tfdpg.acting.encoder import discrete_ranges
from tfdpg.acting.mlp import NORM_EPSILON, BatchNorm, Block, Dense, LayerNorm
from tfdpg.acting.outputs import BoxAction, GaussianOutput

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

#define {upper}_X {x} /* the numbers of an observation */
#define {upper}_A {a} /* the components of an action */

static inline float {prefix}_clip(float v, float low, float high) {{ return v < low ? low : v > high ? high : v; }}
static inline float {prefix}_sigmoid(float v) {{ return 0.5f * (1.0f + tanhf(0.5f * v)); }}

/* whether all of n numbers are finite, also where a compiler assumes that they are (-ffast-math) */
static inline int {prefix}_finite(int n, const float *v) {{
    for (int i = 0; i < n; i++) {{
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    }}
    return 1;
}}

/* y += x K, of n numbers to m */
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
        title: what it is, for the comment at the top.
        critics: by the names of their functions; `PREFIX_q1(x, a)` is the value of an action.
        prefix: what every name in the header begins with, in lower case; macros have it in upper case.
        weights_file: the name of the `.c` file that is to define the weights; None defines them in the header.

    Returns:
        The text of the header, and the definitions of the weights for `weights_file`, which is empty without one.
    """
    spec = actor.spec
    sizes = [leaf.columns.stop - leaf.columns.start for leaf in spec.leaves]
    action = "the action in the environment's units, inside its bounds"
    if spec.actions is not None:
        action = f"the number of the action, {int(spec.low[0])} to {int(spec.high[0])}"
    parts = ", ".join(f"{leaf.name} ({size})" for leaf, size in zip(spec.leaves, sizes, strict=True))
    usage = [
        f"x: the observation as the environment gives it, flattened: {parts}; a: {action}.",
        "Normalisation, encoding and the action's scale are inside.",
    ]
    code = _Code(actor, {}, prefix)
    body = code.forward()
    state = code.state()
    invalid_action = "a is NaN" if spec.actions is None else f"a is {spec.no_action}, which is no action"
    unchanged = "" if actor.recurrent_spec is None else ", and the state stays as it was"
    usage.append(f"{prefix}_pi returns 0; or 1 where an input is NaN or infinite: then {invalid_action}{unchanged}.")
    for name, critic in critics.items():
        body += ["", *_Code(critic, code.constants, prefix).value(name)]
        usage.append(
            f"{prefix}_{name}(x, a): what critic {name} says of the action a; NaN where an input is not finite."
        )
    if actor.recurrent_spec is not None:
        usage.append(f"{prefix}_start(&state) begins an episode. {prefix}_pi(x, a, &state) is a step.")
        if actor.recurrent_spec.uses_action:
            usage.append("It puts a into state.a_before; put there what was done instead, if it was not a.")
        if actor.recurrent_spec.uses_reward:
            usage.append("Put the reward of each step into state.r_before.")
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
    """The definition of an array of constants."""
    rows = [", ".join(values[start : start + 8]) for start in range(0, len(values), 8)]
    return f"const float {name}[{len(values)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


class _Code:
    """Writes the statements of a forward pass; each step gets an array of its own."""

    def __init__(self, network: Any, constants: dict[str, list[str]], prefix: str):
        self._network = network
        self.constants = constants
        self._lines = list[str]()
        self._arrays = 0
        self._prefix = prefix
        self._width = sum(leaf.columns.stop - leaf.columns.start for leaf in network.spec.leaves)

    def forward(self) -> list[str]:
        """The function that acts."""
        actor = self._network
        recurrent_spec = self._network.recurrent_spec
        inputs = [("x", self._width)] + [(f"state->{name}", size) for name, size in self._fields()]
        finite = " && ".join(self._finite(*each) for each in inputs)
        invalid_action = "NAN" if actor.spec.actions is None else f"{actor.spec.no_action}.0f"
        self._lines.append(f"if (!({finite})) {{")
        self._lines += [
            f"    for (int i = 0; i < {actor.spec.act_dim}; i++) a[i] = {invalid_action};",
            "    return 1;",
            "}",
        ]
        x = self._normalized(self._encoded())
        if recurrent_spec is not None:
            x = self._remembered(x)
        if actor.first:
            x = self._branches(x)
        for step in actor.layers:
            x = self.step(step, x)
        self._act(x)
        self._lines.append("return 0;")
        state = "" if recurrent_spec is None else f", {self._prefix}_state *state"
        return [
            f"static inline int {self._prefix}_pi(const float *x, float *a{state}) {{",
            *(f"    {line}" for line in self._lines),
            "}",
        ]

    def value(self, name: str) -> list[str]:
        """The function of a critic."""
        critic: NumpyCritic = self._network
        finite = " && ".join(self._finite(*each) for each in (("x", self._width), ("a", critic.spec.act_dim)))
        self._lines.append(f"if (!({finite})) return NAN;")
        act_dim = critic.spec.act_dim
        x = self._normalized(self._encoded())
        center = self.constant("center", critic.spec.center)
        half = self.constant("action_scale", critic.spec.action_scale)
        action = self.array(act_dim, f"(a[i] - {center}[i]) / {half}[i]")
        if critic.first:
            x = self._branches(x)
        for depth, step in enumerate(critic.layers, int(critic.torso.has_branches)):
            x = self.step(
                step, self._joined([x, action]) if depth == min(critic.action_layer, len(critic.torso.q)) else x
            )
        self._lines.append(f"return {self._mean(critic, x[0])};")
        signature = f"static inline float {self._prefix}_{name}(const float *x, const float *a) {{"
        return [
            f"#define {self._prefix.upper()}_{name.upper()}",
            signature,
            *(f"    {line}" for line in self._lines),
            "}",
        ]

    def _mean(self, critic: NumpyCritic, x: str) -> str:
        """The expected return, of what a head gives."""
        if critic.head == "value":
            return f"{x}[0]"
        count = critic.size
        means = self.constant("atoms", critic.atoms) if critic.head == "categorical" else x
        if critic.head == "mixture":
            count = critic.size // 3
            means = f"({x} + {critic.size // 3})"
        self._lines.append(f"float largest = {x}[0], sum = 0.0f, mean = 0.0f;")
        self.each(count, f"largest = {x}[i] > largest ? {x}[i] : largest;")
        self.each(count, f"sum += expf({x}[i] - largest);")
        self.each(count, f"mean += expf({x}[i] - largest) / sum * {means}[i];")
        return "mean"

    def _branches(self, x: tuple[str, int]) -> tuple[str, int]:
        """A layer of its own for each part of the observation."""
        parts = [(f"({x[0]} + {part.start})", part.stop - part.start) for part in self._columns]
        return self._joined([self.step(step, part) for step, part in zip(self._network.first, parts, strict=True)])

    def state(self) -> list[str]:
        """The struct of what a policy recalls, and the function that begins an episode; nothing without a memory."""
        recurrent_spec = self._network.recurrent_spec
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
            f"static inline void {prefix}_start({prefix}_state *state) {{",
            *(f"    {line}" for line in begin),
            "}",
            "",
        ]

    def _fields(self) -> list[tuple[str, int]]:
        """The fields of the state with their widths; none for a policy that is not recurrent."""
        recurrent_spec = self._network.recurrent_spec
        if recurrent_spec is None:
            return []
        before = [("a_before", recurrent_spec.spec.act_dim)] if recurrent_spec.uses_action else []
        return [*before, *([("r_before", 1)] if recurrent_spec.uses_reward else []), *recurrent_spec.parts]

    def _finite(self, name: str, width: int) -> str:
        """Whether all numbers of an array, or the single one of `r_before`, are finite."""
        return f"{self._prefix}_finite({width}, {'&' if name.endswith('r_before') else ''}{name})"

    def constant(self, name: str, values: Any) -> str:
        """An array of weights; returns its name."""
        name = f"{self._prefix}_{name}{len(self.constants)}"
        self.constants[name] = [_number(value) for value in np.ravel(values)]
        return name

    def array(self, width: int, value: str | None = None) -> tuple[str, int]:
        """A new array of so many numbers, with this expression of `i` in each; its name and width."""
        self._arrays += 1
        name = f"v{self._arrays}"
        self._lines.append(f"float {name}[{width}];")
        if value is not None:
            self.each(width, f"{name}[i] = {value};")
        return name, width

    def each(self, width: int, statement: str) -> None:
        """Does it for so many `i`."""
        self._lines.append(f"for (int i = 0; i < {width}; i++) {statement}")

    def product(self, kernel: np.ndarray, bias: np.ndarray, x: str) -> tuple[str, int]:
        """A linear layer of an array."""
        y, width = self.array(len(bias), f"{self.constant('bias', bias)}[i]")
        kernel_name = self.constant("kernel", kernel)
        self._lines.append(f"{self._prefix}_product({len(kernel)}, {width}, {kernel_name}, {x}, {y});")
        return y, width

    @functools.singledispatchmethod
    def step(self, step: Any, x: tuple[str, int]) -> tuple[str, int]:
        """A step of the forward pass, from an array to a new one."""
        raise TypeError(f"There is no C of {step}")

    @step.register
    def _(self, step: Dense, x: tuple[str, int]) -> tuple[str, int]:
        y = self.product(step.kernel, step.bias, x[0])
        if step.norm is not None:
            y = self.step(step.norm, y)
        activation = next(name for name, function in ACTIVATIONS.items() if function is step.activation)
        if activation != "linear":
            self.each(y[1], f"{y[0]}[i] = {ACTIVATE[activation].format(v=f'{y[0]}[i]', prefix=self._prefix)};")
        return y

    @step.register
    def _(self, step: LayerNorm, x: tuple[str, int]) -> tuple[str, int]:
        name, width = x
        number = self._arrays
        gamma = self.constant("gamma", step.gamma)
        beta = self.constant("beta", step.beta)
        self._lines.append(f"float mean{number} = 0.0f, scale{number} = 0.0f;")
        self.each(width, f"mean{number} += {name}[i] / {width}.0f;")
        self.each(width, f"scale{number} += ({name}[i] - mean{number}) * ({name}[i] - mean{number}) / {width}.0f;")
        self._lines.append(f"scale{number} = sqrtf(scale{number} + {_number(NORM_EPSILON)});")
        return self.array(width, f"({name}[i] - mean{number}) / scale{number} * {gamma}[i] + {beta}[i]")

    @step.register
    def _(self, step: BatchNorm, x: tuple[str, int]) -> tuple[str, int]:
        mean, scale, beta = (self.constant(name, getattr(step, name)) for name in ("mean", "scale", "beta"))
        return self.array(x[1], f"({x[0]}[i] - {mean}[i]) * {scale}[i] + {beta}[i]")

    @step.register
    def _(self, step: Block, x: tuple[str, int]) -> tuple[str, int]:
        y = functools.reduce(lambda y, part: self.step(part, y), step.steps, x)
        return self.array(x[1], f"{x[0]}[i] + {y[0]}[i]")

    @functools.singledispatchmethod
    def cell(self, cell: Any, x: tuple[str, int], parts: list[str]) -> tuple[str, int]:
        """A step of a memory, whose state is in the arrays `parts`, from an array to a new one."""
        raise TypeError(f"There is no C of {cell}")

    @cell.register
    def _(self, cell: LSTM, x: tuple[str, int], parts: list[str]) -> tuple[str, int]:
        units = cell.units
        h, c = parts
        gates, _ = self.product(cell.kernel, cell.bias, self._joined([x, (h, units)])[0])
        sigmoid = f"{self._prefix}_sigmoid"
        i, f, g, o = (f"{gates}[{k * units} + i]" for k in range(4))
        self.each(units, f"{c}[i] = {sigmoid}({f}) * {c}[i] + {sigmoid}({i}) * tanhf({g});")
        self.each(units, f"{h}[i] = {sigmoid}({o}) * tanhf({c}[i]);")
        return h, units

    @cell.register
    def _(self, cell: GRU, x: tuple[str, int], parts: list[str]) -> tuple[str, int]:
        units = cell.units
        (h,) = parts
        new, _ = self.product(cell.kernel, cell.bias, x[0])
        past, _ = self.product(cell.recurrent_kernel, cell.recurrent_bias, h)
        sigmoid = f"{self._prefix}_sigmoid"
        z, _ = self.array(units, f"{sigmoid}({new}[i] + {past}[i])")
        reset = f"{sigmoid}({new}[{units} + i] + {past}[{units} + i])"
        candidate, _ = self.array(units, f"tanhf({new}[{2 * units} + i] + {reset} * {past}[{2 * units} + i])")
        self.each(units, f"{h}[i] = {candidate}[i] + {z}[i] * ({h}[i] - {candidate}[i]);")
        return h, units

    @cell.register
    def _(self, cell: SimpleRNN, x: tuple[str, int], parts: list[str]) -> tuple[str, int]:
        units = cell.units
        (h,) = parts
        new, _ = self.product(cell.kernel, cell.bias, self._joined([x, (h, units)])[0])
        self.each(units, f"{h}[i] = tanhf({new}[i]);")
        return h, units

    @property
    def _columns(self) -> list[slice]:
        return feature_columns(self._network.spec)

    def _encoded(self) -> tuple[str, int]:
        """Features of the observation: images scaled, discrete parts one-hot (see `tfdpg.acting.encode`)."""
        spec = self._network.spec
        columns = self._columns
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

    def _normalized(self, x: tuple[str, int]) -> tuple[str, int]:
        actor = self._network
        if actor.normalizer is None:
            return x
        clip = _number(actor.normalizer[1])
        mean = self.constant("mean", actor.mean)
        std = self.constant("std", actor.std)
        return self.array(x[1], f"{self._prefix}_clip(({x[0]}[i] - {mean}[i]) / {std}[i], -{clip}, {clip})")

    def _remembered(self, x: tuple[str, int]) -> tuple[str, int]:
        """The features and the step before through the cells; the state goes on."""
        recurrent_spec: Any = self._network.recurrent_spec
        factor, offset = recurrent_spec.scaling
        before = [x]
        act_dim = recurrent_spec.spec.act_dim if recurrent_spec.uses_action else 0
        if recurrent_spec.uses_action:
            scaled = f"state->a_before[i] * {self.constant('factor', factor[:act_dim])}[i]"
            before.append(self.array(act_dim, f"{scaled} + {self.constant('offset', offset[:act_dim])}[i]"))
        if recurrent_spec.uses_reward:
            before.append(("&state->r_before", 1))
        x = self._joined(before) if len(before) > 1 else x
        parts = [f"state->{name}" for name, _ in recurrent_spec.parts]
        for cell in self._network.cells:
            own = parts[: cell.state_width // cell.units]
            parts = parts[cell.state_width // cell.units :]
            x = self.cell(cell, x, own)
        return x

    def _act(self, x: tuple[str, int]) -> None:
        """Writes the action into `a`."""
        actor = self._network
        spec = self._network.spec
        output = self._network.output
        box = output.mean if isinstance(output, GaussianOutput) else output
        if isinstance(box, BoxAction):
            names = ("action_scale", "center", "low", "high")
            values = box.action_scale, box.center, spec.low, spec.high
            half, center, low, high = (self.constant(*pair) for pair in zip(names, values, strict=True))
            action = f"tanhf({x[0]}[i]) * {half}[i] + {center}[i]"
            self.each(spec.act_dim, f"a[i] = {self._prefix}_clip({action}, {low}[i], {high}[i]);")
        else:
            self._lines.append("int best = 0;")
            self.each(x[1], f"best = {x[0]}[i] > {x[0]}[best] ? i : best;")
            self._lines.append(f"a[0] = (float)(best + {int(spec.low[0])});")
        if actor.recurrent_spec is not None and actor.recurrent_spec.uses_action:
            self.each(spec.act_dim, "state->a_before[i] = a[i];")

    def _joined(self, arrays: list[tuple[str, int]]) -> tuple[str, int]:
        joined = self.array(sum(width for _, width in arrays))
        start = 0
        for name, width in arrays:
            self.each(width, f"{joined[0]}[{start} + i] = ({name})[i];")
            start += width
        return joined


def _number(value: Any) -> str:
    """A float32 in C, to the bit."""
    text = f"{float(value):.9g}"
    return f"{text}f" if set(text) & set(".e") else f"{text}.0f"
