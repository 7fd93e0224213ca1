"""From a router's outcome log to a challenger in the registry (SPEC I7); see `retrain.py`."""
