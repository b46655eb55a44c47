"""A server for development and tests with TensorFlow Serving's REST and gRPC protocols."""
