"""How much each key and tenant may ask for: requests, tokens, places (SPEC C3, C4)."""
