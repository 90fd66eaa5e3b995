"""The way to other agents of a shard. Implements the port PeerLink."""

from headgate.shard.peers.access import PeerAccess, load_access
from headgate.shard.peers.link import HttpPeerLink, open_link

__all__ = ["HttpPeerLink", "PeerAccess", "load_access", "open_link"]
