"""Layer 3, the cluster model and its environments. Empty on purpose: ids are registered in `env/gym.py`."""
