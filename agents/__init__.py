"""Layer 4, who decides: policies, training, evaluation, promotion."""
