"""A purge with a plain DB-API driver (PyMySQL): every transaction waits until admitted.

MYSQL_PORT=… HEADGATE_URL=http://127.0.0.1:8087 python examples/pymysql_purge.py
"""

from __future__ import annotations

import os

import pymysql

import headgate
from headgate.integrations import dbapi

APP = "orders:purge"


def main() -> None:
    said = os.environ  # noqa: TID251 -- a program's own settings
    server = {"host": "127.0.0.1", "port": int(said["MYSQL_PORT"]), "user": said["MYSQL_USER"]}
    with headgate.Client(APP, database="main", max_wait_s=600) as gate:
        # Both ways to give the identity: a tag on each statement, an attribute of the connection.
        connection = dbapi.connect(pymysql, gate, **server, tags={"app": APP}, program_name=APP)
        with connection.cursor() as cursor:
            while cursor.execute("DELETE FROM shop.orders WHERE total < 600 LIMIT 500"):
                connection.commit()  # the next statement begins a transaction, and checks
        connection.close()


if __name__ == "__main__":
    main()
