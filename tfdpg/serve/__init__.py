"""A server for development and tests, which speaks TensorFlow Serving's REST and gRPC."""
