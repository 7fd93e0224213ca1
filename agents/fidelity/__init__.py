"""The cluster model against references: replays of measured servers and of another simulator."""
