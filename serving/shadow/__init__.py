"""Shadow mode: challengers score live traffic beside the way (SPEC I4)."""
