"""One primary and its replicas: roles, topology, rollups, links between agents."""
