"""Where changes, audit and history are kept. Implements `Store` of agent/ports.py."""

from headgate.stores.sqlite import SqliteStore, TemporaryStore

__all__ = ["SqliteStore", "TemporaryStore"]
