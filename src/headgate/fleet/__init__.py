"""Many shards: who is in the fleet, how its shards are, what they have."""
