"""The command line: an operator's hands and eyes. Speaks HTTP to an agent, never internals.

table.py, app.py (commands) ──► api.py (request, document) ──► render.py (tables) ──► terminal
"""
