"""The surface for operators, apart from the one for clients (SPEC L2)."""
