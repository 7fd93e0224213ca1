"""Fitting predictors offline: output length and latency, exported to ONNX."""

try:
    import lightgbm  # noqa: F401
except OSError:
    # LightGBM needs an OpenMP runtime, which bare Linux images lack. torch brings one, and once that is
    # loaded the linker finds it by name.
    import torch  # noqa: F401
