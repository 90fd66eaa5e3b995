"""Advice on what is valid but probably not meant: of a metric, a rule, a budget, a setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    ERROR = "error"
    """Rejected, in the settings file and at run time."""
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Advice:
    severity: Severity
    code: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity.value} {self.place}: {self.message} [{self.code}]"
