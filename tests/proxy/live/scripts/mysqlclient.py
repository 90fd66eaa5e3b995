"""What mysqlclient (libmariadb underneath) does; run with MySQLdb on PYTHONPATH: PORT [CA]."""
# mypy: ignore-errors

import sys

import MySQLdb
from MySQLdb.constants import CLIENT

port = int(sys.argv[1])
tls = {"ssl": {"ca": sys.argv[2]}} if len(sys.argv) > 2 else {}
where = {"host": "127.0.0.1", "port": port, "user": "headgate_test", "database": "parity", **tls}

session = MySQLdb.connect(**where, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS)
cursor = session.cursor()
cursor.execute("SELECT %s, %s, REPEAT('x', 100000)", (7, "seven"))
[row] = cursor.fetchall()
assert row[:2] == (7, "seven") and len(row[2]) == 100000
print("values")

cursor.execute("SELECT 1; SELECT 2")
assert cursor.fetchall() == ((1,),) and cursor.nextset() and cursor.fetchall() == ((2,),)
cursor.nextset()
print("results")

cursor.execute("CREATE TEMPORARY TABLE t (a INT)")
session.autocommit(False)
cursor.execute("INSERT INTO t VALUES (1)")
session.rollback()
cursor.execute("SELECT COUNT(*) FROM t")
assert cursor.fetchall() == ((0,),)
session.commit()
print("transaction")

session.change_user("headgate_app", "", "parity")
cursor = session.cursor()
cursor.execute("SELECT USER()")
assert cursor.fetchall()[0][0].startswith("headgate_app@")
print("change_user")

other = MySQLdb.connect(**where)
other.kill(session.thread_id())
try:
    cursor.execute("SELECT SLEEP(600)")
except MySQLdb.OperationalError:
    print("kill")
other.close()
