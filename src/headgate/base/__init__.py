"""What every room uses: names, units, declared settings, strict JSON, clock, logs, the ports."""
