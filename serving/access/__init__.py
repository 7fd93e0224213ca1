"""Who may ask for what: API keys, and what they permit (SPEC L2, C4)."""
