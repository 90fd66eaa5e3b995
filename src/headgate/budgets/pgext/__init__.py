"""The Postgres extension, from outside: build, install, publish its policy, read its counts."""
