"""The options of `export`."""

from collections.abc import Mapping
from typing import Annotated, Literal

from tfdpg.options import Options
from tfdpg.ranges import OPSET, OPSETS, Count, NonNegative


class ExportOptions(Options, group="export"):
    """What is written, and how near to the agent it must be."""

    scores: Mapping[str, float] | None = None
    """numbers to store in `tfdpg.json`, by name, such as the result of `evaluate`; None stores none."""
    signatures: Literal["tf-agents"] | None = None
    """"tf-agents" adds the signature `action` of TF-Agents' `PolicySaver`; None adds none."""
    format: Literal["tf_saved_model", "litert", "onnx", "c"] = "tf_saved_model"
    """format of the export: "tf_saved_model"; or "litert", "onnx" or "c", whose files are written into the directory
    itself, which must be new or empty."""
    quantize: Literal["int8"] | None = None
    """"int8" exports only the policy, with weights of 8 bits, for LiteRT; None does not quantize."""
    max_error: NonNegative = 0.05
    """largest accepted error of the actions of a quantized policy, in units of the action scale."""
    batch: Count | None = None
    """number of rows of inputs and outputs, for LiteRT runtimes that need fixed shapes; None leaves it free."""
    prefix: str | None = None
    """for C, the prefix of all names in the header, in lower case; None makes it from the name of the directory."""
    weights_in_c_file: bool = False
    """for C, whether the weights are defined in `policy.c` instead of `policy.h`."""
    opset: Annotated[int, OPSETS] = OPSET
    """for ONNX, the version of its operators; a lower one is for older runtimes."""

    def check(self) -> None:
        """Reject options that the format does not support."""
        if self.format != "tf_saved_model":
            self.refuse(["signatures"], f'`format` is "{self.format}"')
        if self.format != "litert":
            self.refuse(["quantize", "batch"], f'`format` is "{self.format}"')
        if self.format != "onnx":
            self.refuse(["opset"], f'`format` is "{self.format}"')
        if self.format != "c":
            self.refuse(["prefix", "weights_in_c_file"], f'`format` is "{self.format}"')
        if self.quantize is None:
            self.refuse(["max_error"], "`quantize` is None")
