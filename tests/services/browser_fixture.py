# SPDX-License-Identifier: Apache-2.0
"""A real browser without a network, for pages that the product or `./dev docs` makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


class Browser:
    def __init__(self, folder: Path):
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900",
            f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ):  # fmt: skip
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, page: Path | str) -> None:
        """A file, or a URL."""
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(page if isinstance(page, str) else page.as_uri())

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("chrome:", "data:", "blob:"))]

    def errors(self) -> list[str]:
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("chromium is not installed")
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.driver.quit()
