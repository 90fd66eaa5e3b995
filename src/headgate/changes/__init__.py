"""One log for everything that an operator changes."""
