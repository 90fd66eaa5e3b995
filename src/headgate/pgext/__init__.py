"""The Postgres extension, from outside: built and installed, told its policy, read back."""
