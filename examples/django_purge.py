"""A management command that waits until admitted: <app>/management/commands/purge_orders.py.

HEADGATE = {"app": "shop", "database": "main"}     in the settings
manage.py purge_orders --max-wait 600              checks as purge_orders:shop
"""

from __future__ import annotations

from typing import Any

from django.db import connection

from headgate.integrations.django import ThrottledCommand

PURGE = "DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE total < %s LIMIT 500)"


class Command(ThrottledCommand):
    help = "Delete what is too small to keep."

    def handle(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            while True:
                cursor.execute(PURGE, [6])  # checks before each: a transaction of its own
                if cursor.rowcount == 0:
                    break
