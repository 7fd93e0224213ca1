"""Trying a challenger on a growing share of the traffic, and taking it back at once (SPEC I6)."""
