"""Holding requests back while every replica is full: what the router and the simulator share."""
