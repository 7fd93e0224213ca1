"""Finding replicas while the router runs: files, DNS, Kubernetes."""
