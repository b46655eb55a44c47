"""Stored transitions: data sets, and the prediction logs of TensorFlow Serving."""
