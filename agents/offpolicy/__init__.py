"""What another policy would have done to logged traffic: estimates, replay, and a verdict on both."""
