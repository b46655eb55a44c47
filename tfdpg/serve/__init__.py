"""A server for development and tests with TensorFlow Serving's REST and gRPC protocols: `tfdpg serve`.

A companion of the core. It uses `export` (`latest_version`, `metadata`, `read_labels`, `verify.open_session`) and the
checks of `exported`. `model` runs the signatures of a version, `model_store` chooses versions, `rest` and `rpc` answer
requests, and `server` starts and ends both. `prediction_logs` reads the request logs of TensorFlow Serving as arrays.
"""
