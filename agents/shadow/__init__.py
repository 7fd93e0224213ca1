"""Challengers that look on: what they would have done with the traffic that a champion serves."""
