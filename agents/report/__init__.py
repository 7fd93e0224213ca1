"""Self-contained HTML pages with tables and plots, for demos, evaluations and verdicts."""
