"""The hot path: from readings to the answer of a check. Read decide.py first."""
