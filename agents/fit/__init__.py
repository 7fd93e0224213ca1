"""Fitting predictors offline: output length and latency, exported to ONNX."""
