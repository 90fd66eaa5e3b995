"""What tests in a browser import of Playwright; without it they are skipped."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="playwright is missing: pip install playwright")

from playwright.sync_api import Browser, BrowserContext, Page, Response, expect

__all__ = ["Browser", "BrowserContext", "Page", "Response", "expect"]
