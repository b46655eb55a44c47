"""Exported policies in other formats than SavedModel: C, ONNX and LiteRT, with `Agent.export` and `tfdpg convert`.
Verification of exports in all formats and in servers, with `tfdpg verify`.

A companion of the core. It reads a SavedModel and its `policy.npz`, and uses `acting` (layers and their NumPy forward
passes), `exported` (files and metadata of a model) and `export` (`source`, `verify`, `examples`). `convert` writes and
verifies a format; `c`, `onnx` and `litert` each know one. `verifying` runs the references of an export (`references`) in
each of them, and in servers (`served`).
"""
