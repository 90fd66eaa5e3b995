"""Where changes, audit and history are kept. Implements `Store` of base/ports.py."""

from headgate.store.sqlite import SqliteStore, TemporaryStore

__all__ = ["SqliteStore", "TemporaryStore"]
