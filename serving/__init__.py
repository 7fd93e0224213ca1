"""Layer 5, the router and its control loops."""
