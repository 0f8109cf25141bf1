# SPDX-License-Identifier: Apache-2.0
"""The site that `./dev docs` made, in a real browser that reaches this machine only. MILLRACE_TEST_SITE is its folder."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser_fixture import Browser

SITE = os.environ.get("MILLRACE_TEST_SITE", "")
pytestmark = pytest.mark.skipif(not SITE, reason="MILLRACE_TEST_SITE is not set (./dev check docs sets it)")


class Page(HTMLParser):
    """Where a page leads to, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag in ("a", "link", "script", "img"):
            self.links += [values[name] for name in ("href", "src") if name in values]


@functools.cache
def page_at(path: Path) -> Page:
    return Page(path)


def newest() -> Path:
    return Path(SITE) / json.loads((Path(SITE) / "versions.json").read_text())[0]["version"]


def html_pages() -> list[Path]:
    """Without the one for wrong addresses, which asks for its style at the root of a server."""
    return [page for page in sorted(newest().rglob("*.html")) if page.name != "404.html"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def dead(page: Path, link: str) -> str | None:
    """What is wrong with a link of a page; None for one that leads somewhere, or to another site."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = urllib.parse.unquote(parts.path)
    target = page.parent / path if path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return f"{target} is not there"
    place = urllib.parse.unquote(parts.fragment)
    if place and target.suffix == ".html" and place not in page_at(target).places:
        return f"no #{place} in {target}"
    return None


def test_no_link_and_no_anchor_is_dead():
    assert len(html_pages()) > 100
    found = {(page, link): dead(page, link) for page in html_pages() for link in page_at(page).links}
    assert len(found) > 5_000
    assert {key: what for key, what in found.items() if what} == {}


def test_every_page_says_whom_it_is_for():
    for page in html_pages():
        assert re.search(r"(<p>|[.] |\n)For ", page.read_text()), page


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_no_page_asks_elsewhere_nor_complains(browser: Browser, address: str):
    for page in html_pages():
        url = f"{address}/{page.relative_to(SITE)}"
        browser.open(url)
        assert browser.driver.title, url
        assert [each for each in browser.requests() if not each.startswith(address)] == [], url
        assert browser.errors() == [], url


def test_the_way_in_leads_to_the_newest_version(browser: Browser, address: str):
    browser.open(f"{address}/index.html")
    eventually(lambda: "Millrace" in browser.driver.title and f"/{newest().name}/" in browser.driver.current_url)
    eventually(lambda: browser.driver.execute_script("return document.querySelector('.md-version') !== null"))
    shown = browser.driver.execute_script("return document.querySelector('.md-version').innerText")
    assert newest().name in shown


# The dialog of the search is in a shadow tree of its own.
SHADOW = "const root = [...document.querySelectorAll('div')].map(each => each.shadowRoot).find(each => each?.querySelector('input'));"


def test_search_finds_a_verb_and_a_name(browser: Browser, address: str):
    for words, place in (
        ("millrace shards check", "reference/command/shards"),
        ("Checkpointer", "reference/python/torch"),
    ):
        browser.open(f"{address}/{newest().name}/index.html")
        browser.driver.find_element("css selector", ".md-search__button").click()
        eventually(lambda: browser.driver.execute_script(SHADOW + "return Boolean(root)"))
        browser.driver.switch_to.active_element.send_keys(words)
        links = SHADOW + "return [...root.querySelectorAll('a')].map(each => each.href)"
        eventually(lambda links=links, place=place: any(place in url for url in browser.driver.execute_script(links)))
        assert browser.errors() == []


def test_dark_is_dark(browser: Browser, address: str):
    colours = {}
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.open(f"{address}/{newest().name}/index.html")
        colours[scheme] = browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = {k: sum(float(n) for n in v.split("(")[1].rstrip(")").split(",")[:3]) for k, v in colours.items()}
    assert brightness["dark"] < 200 < 600 < brightness["light"], colours
