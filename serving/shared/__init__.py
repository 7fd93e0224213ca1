"""What several routers know together, in a Valkey or Redis server (SPEC M1)."""
