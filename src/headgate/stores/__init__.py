"""Where rules, audit and history are kept. Implements `Store` of agent/ports.py."""

from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
