"""How much work is admitted per second while metrics are healthy."""
