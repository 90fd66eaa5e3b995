"""What is measured: specifications, settings, the metrics in force, probes."""
