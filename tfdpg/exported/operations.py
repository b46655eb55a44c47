"""The operations of TensorFlow that an untrusted exported model may contain, reviewed for TensorFlow 2.21.

None of them reads or writes a file, uses the network, runs Python or native code from outside TensorFlow, prints, or
reaches state outside the loaded model. Some operations are not listed although TensorFlow does not mark them as
stateful: `ReadFile`, `MatchingFiles`, `ImmutableConst` (maps a file), `GenerateVocabRemapping`,
`InitializeTableFromTextFile`, the readers, queues and datasets, `DecodeProtoV2` and `EncodeProto` (read descriptors
from files), `DebugIdentity`, `Copy` and `CopyHost` (write to debug URLs), `PyFuncStateless`, `XlaCustomCall` (calls
native code), `Abort` (ends the process), and the decoders of images, audio and serialized data. An operation that a
later version of TensorFlow adds is refused until it is reviewed and listed in `operations.txt`, whose first paragraph
has the stateless operations, and whose second has the stateful ones.
"""

from importlib import resources

_LISTED = resources.files("tfdpg.exported").joinpath("operations.txt").read_text().split("\n\n")

STATELESS, STATEFUL = (frozenset(paragraph.split()) for paragraph in _LISTED)
"""Arithmetic, shapes, strings, lists, control flow and random numbers from given seeds; and variables, tables and
arrays in memory, control flow over them, random numbers, and assertions."""

SAVER = frozenset({"MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"})
"""The file operations of the saver, which only the functions of TensorFlow's own saver may contain."""
