"""Headgate in other people's libraries. Each module needs its library, and none of the others.

    sqlcommenter          the client's identity, as a comment on the statement      (pure)
    leave                 when to check: before a transaction, never within one     (pure)
    drivers               what a driver's connection knows of its transaction       (pure)
    dbapi · psycopg · sqlalchemy · alembic · django     connections that check
    celery · airflow · dbt                              tasks that check

A wait within a transaction keeps its locks, and blocks all others that want them. So all of these
check before a transaction begins, and not again until it is over.
"""
