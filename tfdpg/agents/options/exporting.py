"""The options of `export`."""

from collections.abc import Mapping
from typing import Annotated, Literal

from tfdpg.options import Only, Options
from tfdpg.ranges import OPSET, OPSETS, Count, NonNegative


class ExportOptions(Options, group="export"):
    """What is written, and how near to the agent it must be."""

    scores: Mapping[str, float] | None = None
    """numbers to store in `tfdpg.json`, by name, such as the result of `evaluate`; None stores none."""
    signatures: Annotated[Literal["tf-agents"] | None, Only(format="tf_saved_model")] = None
    """"tf-agents" adds the signature `action` of TF-Agents' `PolicySaver`; None adds none."""
    format: Literal["tf_saved_model", "litert", "onnx", "c"] = "tf_saved_model"
    """format of the export: "tf_saved_model"; or "litert", "onnx" or "c", whose files are written into the directory
    itself, which must be new or empty."""
    quantize: Annotated[Literal["int8"] | None, Only(format="litert")] = None
    """"int8" exports only the policy, with weights of 8 bits, for LiteRT; None does not quantize."""
    max_error: Annotated[NonNegative, Only(quantize="int8")] = 0.05
    """largest accepted error of the actions of a quantized policy, in units of the action scale."""
    batch: Annotated[Count | None, Only(format="litert")] = None
    """number of rows of inputs and outputs, for LiteRT runtimes that need fixed shapes; None leaves it free."""
    prefix: Annotated[str | None, Only(format="c")] = None
    """for C, the prefix of all names in the header, in lower case; None makes it from the name of the directory."""
    weights_in_c_file: Annotated[bool, Only(format="c")] = False
    """for C, whether the weights are defined in `policy.c` instead of `policy.h`."""
    opset: Annotated[Annotated[int, OPSETS], Only(format="onnx")] = OPSET
    """for ONNX, the version of its operators; a lower one is for older runtimes."""
