"""Sockets for a conversation: sync.py blocks a thread, aio.py suspends a task."""
