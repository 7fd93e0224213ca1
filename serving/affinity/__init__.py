"""Groups of requests and their homes (SPEC B4); the rule itself is in `agents/affinity/`."""
