"""Layer 1, what happened: requests, decisions, outcomes; readers and arrival models."""
