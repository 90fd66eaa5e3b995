"""Who goes first: an operator's rules on clients."""
