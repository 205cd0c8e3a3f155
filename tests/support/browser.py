"""Headless Chromium; the browser and its driver come from system packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService


@contextmanager
def chromium() -> Iterator[Chrome]:
    """Start the browser; the test fails if the browser does not start."""
    options = ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = Chrome(options=options, service=ChromeService("/usr/bin/chromedriver"))
    except WebDriverException as error:
        pytest.fail(f"Chromium does not start (Debian: apt-get install chromium-driver): {error.msg}")
    with driver:
        yield driver


def resize(browser: Chrome, width: int, *, height: int = 900, is_dark: bool = False) -> None:
    """Set the size and the colour scheme of the page."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
