"""One number at a time, from a database, its host, or wherever the operator points."""

from headgate.metrics.probes.factory import DatabaseProbes

__all__ = ["DatabaseProbes"]
