"""Headgate in other people's libraries. Each module needs its library, and none of the others.

    sqlcommenter          who asks, as a comment on the statement or out of band    (pure)
    leave                 when to ask: before a transaction, never within one       (pure)
    drivers               what a driver's connection knows of its transaction       (pure)
    dbapi · psycopg · sqlalchemy · alembic · django     connections that ask
    celery · airflow · dbt                              tasks that ask

A wait within a transaction holds its locks, and everybody who wants them: all of these ask
before a transaction begins, and not again until it is over.
"""
