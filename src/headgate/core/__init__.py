"""The decision, and the values it is made of. Pure: no I/O, clock, dice or logging."""
