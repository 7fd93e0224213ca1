"""The learned routing policy: network, training, export and its served form.

`served.py` runs on onnxruntime alone; everything else here belongs to training.
"""
