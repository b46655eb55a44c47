"""A server for development and tests with TensorFlow Serving's REST and gRPC protocols: `tfdpg serve`.

A companion of the core. It uses `export` (`latest_version`, `metadata`, `read_labels`, `verify.open_session`) and the
checks of `exported`. `model` runs the signatures of a version, `model_store` chooses versions, `rest` and `rpc` answer
requests, and `server` starts and ends both. They share a `Service`, and import TensorFlow only once the server listens:
`tensors`, `rpc_methods`, `model` and `model_store` need it. `metrics` counts requests for Prometheus. `request_log`
logs requests as TensorFlow Serving does, and `prediction_logs` reads such logs as arrays.
"""
