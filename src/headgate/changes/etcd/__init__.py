"""etcd as the store of a fleet, over the JSON gateway that every member has.

client ──► gateway (which member, who we are, how long) ──► POST /v3/…
watch  ──► gateway ──► one stream of several prefixes, put in order again
"""

from headgate.changes.etcd.client import EtcdStore
from headgate.changes.etcd.gateway import EtcdAccess, load_access, parse_endpoint

__all__ = ["EtcdAccess", "EtcdStore", "load_access", "parse_endpoint"]
