"""A Django project in one file: settings, URLs, views, and a management command."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("django", reason="Django is not installed")

import django
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from headgate.integrations.django import ThrottledCommand

SHOW = "SELECT current_query()"


def show(request: HttpRequest, order: int) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(SHOW)
        return HttpResponse(cursor.fetchone()[0])


urlpatterns = [path("orders/<int:order>", show, name="orders")]


class Purge(ThrottledCommand):
    throttle_statements = False

    def handle(self, *args: Any, **options: Any) -> str:
        for chunk in self.chunks(range(250), 100):
            with connection.cursor() as cursor:
                cursor.execute(SHOW)
                self.stdout.write(f"{len(chunk)} {cursor.fetchone()[0]}")
        return ""


def set_up(database: str) -> None:
    """Once in a process, as Django has it; later calls only point it at another database."""
    host, _, name = database.removeprefix("postgresql://postgres@").partition("/")
    of_database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": "postgres",
        "HOST": host.partition(":")[0],
        "PORT": host.partition(":")[2],
    }
    if not settings.configured:
        settings.configure(
            DATABASES={"default": of_database},
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["*"],
            MIDDLEWARE=["headgate.integrations.django.TagRequests"],
            HEADGATE={"app": "shop", "database": "main"},
        )
        django.setup()
    connection.close()
    connection.settings_dict.update(of_database)
