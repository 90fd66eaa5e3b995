"""The loops and the shared state: sampling, checking, recording. Ports are in ports.py."""
