"""The traffic core in C (native/headgate.h), through ctypes: for the proxy, for reading what a
server counts, and for holding it against its readable twin, headgate.budgets."""

from headgate.budgets.native.ledger import NativeHolding, NativeLedger
from headgate.budgets.native.library import load
from headgate.budgets.native.region import RegionView

__all__ = ["NativeHolding", "NativeLedger", "RegionView", "load"]
