"""Layer 2, what a request will cost: features, output length, latency."""
