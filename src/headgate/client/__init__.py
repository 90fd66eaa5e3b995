"""The SDK, on the standard library alone.

    Client, AsyncClient ──► Conversation (what to ask, when to ask again) ──► drivers (sockets)

The policy is in conversation.py, once, and knows neither sockets nor threads nor event loops.
"""
