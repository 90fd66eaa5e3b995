"""Who was throttled, when and why; who is starved; what a rule would have changed."""
