"""The options of `export`."""

from collections.abc import Mapping
from typing import Literal

from tfdpg.options import Options
from tfdpg.ranges import Count, NonNegative


class ExportOptions(Options, group="export"):
    """What is written, and how near to the agent it must be."""

    scores: Mapping[str, float] | None = None
    """numbers to keep in `tfdpg.json`, an evaluation's for example."""
    signatures: Literal["tf-agents"] | None = None
    """"tf-agents" adds `action`, as TF-Agents' `PolicySaver` has it."""
    format: Literal["tf_saved_model", "litert", "onnx", "c"] = "tf_saved_model"
    """"tf_saved_model", or "litert", "onnx" or "c", which are written into the directory itself: new or empty."""
    quantize: Literal["int8"] | None = None
    """"int8" for LiteRT: the policy alone, with weights of 8 bits."""
    max_error: NonNegative = 0.05
    """the largest error of the actions of a quantized policy, in units of the action scale; a larger one is refused."""
    batch: Count | None = None
    """the number of rows of inputs and outputs for LiteRT, for runtimes that need fixed shapes; None leaves it free."""
    prefix: str | None = None
    """for C, what all names in the header begin with, in lower case; None makes it of the directory's name."""
    weights_in_c_file: bool = False
    """for C, whether the weights are defined in `policy.c` in place of `policy.h`."""

    def check(self) -> None:
        """Refuses what the format has not."""
        if self.format != "tf_saved_model":
            self.refuse(["signatures"], f'`format` is "{self.format}"')
        if self.format != "litert":
            self.refuse(["quantize", "batch"], f'`format` is "{self.format}"')
        if self.format != "c":
            self.refuse(["prefix", "weights_in_c_file"], f'`format` is "{self.format}"')
        if self.quantize is None:
            self.refuse(["max_error"], "`quantize` is None")
