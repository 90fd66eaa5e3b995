"""Documents and dialects, without sockets: what goes over the wire and what it means."""
