"""Exported policies in other formats than SavedModel: C, ONNX and LiteRT, with `Agent.export` and `tfdpg convert`.

A companion of the core. It reads a SavedModel and its `policy.npz`, and uses `acting` (layers and their NumPy forward
passes), `exported` (files and metadata of a model) and `export` (`source`, `verify`, `examples`, `references`).
`convert` writes and verifies a format; `c`, `onnx` and `litert` each know one. `verifying` is `tfdpg verify`: it runs
the references of an export in every format and, with `served`, in servers.
"""
