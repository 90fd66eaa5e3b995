"""The HTTP edge: one listener; checks are answered on the spot, the rest by an ASGI app."""
