"""The command line: an operator's hands and eyes. Speaks HTTP to an agent, never internals.

app.py (commands) ──► api.py (one request, one document) ──► render.py (tables) ──► terminal
"""
