"""The emulated backend: an OpenAI-compatible server timed by the cluster model's engine."""
