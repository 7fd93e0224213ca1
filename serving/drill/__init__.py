"""A rehearsal of the whole loop from drift to promotion and rollback; see `rehearsal.py`."""
