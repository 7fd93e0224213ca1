"""Layer 3, the cluster model and its environments. Ids are registered in `env/gym.py`, never here."""
