"""The page, in a browser: results while one types, from this host alone."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import resources

import httpx
import pytest

from embedkit import Collection, CrossEncoder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DOCUMENTS = [
    ("bees", "bees find their way home by the sun"),
    ("ships", "ships find their way home by the stars"),
    ("dog", "a good dog sleeps in the garden"),
    ("<b>odd</b>", "<img src=x onerror=\"document.title='broken'\"> markup is shown as text"),
    *(
        (f"number-{n}", f"{word} and {other} in the house")
        for n, (word, other) in enumerate([("salt", "sugar")] * 9)
    ),
]
KEY = "a-key-of-some-length"
LAUNCH = """
import os, sys
reading, writing = (os.dup(os.dup(int(number))) for number in sys.argv[1:3])  # away from 3 and 4
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # Chromium reads from 3 and writes to 4


class Browser:
    """Chromium without a window, controlled over two pipes."""

    def __init__(self, folder):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--window-size=1200,900",
        ]
        quiet = ["--disable-background-networking", "--no-first-run", f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(theirs_in),
                str(theirs_out),
                CHROMIUM,
                *options,
                *quiet,
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, None
        self.events = []
        (page,) = [t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        found = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 65536)
            assert chunk, "the browser has gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, url):
        self.events.clear()
        self.ask("Page.navigate", url=url)

    def run(self, expression):
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, expression):
        deadline = time.monotonic() + 250
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"never: {expression}\n{self.run('document.body?.innerText')}"
            time.sleep(0.02)

    def type(self, text):
        for letter in text:
            self.ask("Input.dispatchKeyEvent", type="char", text=letter)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, name):
        """Save a screenshot if the environment asks for it."""
        if folder := os.environ.get("EMBEDKIT_SCREENSHOTS"):
            content = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            with open(os.path.join(folder, f"{name}.png"), "wb") as file:  # noqa: PTH118, PTH123 - a test's side door
                file.write(base64.b64decode(content))

    def problems(self):
        self.ask("Runtime.evaluate", expression="1")
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [
            event["params"]
            for event in self.events
            if event.get("method") in kinds and "favicon.ico" not in json.dumps(event["params"])
        ]

    def addresses(self):
        return [
            e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"
        ]

    def close(self):
        self._session = None
        with contextlib.suppress(OSError, AssertionError):
            self.ask("Browser.close")
        self._process.wait(60)
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None or os.name != "posix":
        pytest.skip("needs Chromium")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def library(serve, toy_encoder, toy_cross_bundle, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "idx"
    collection = Collection.build(DOCUMENTS, encoder=toy_encoder, path=path, lexical=True, show_progress_bar=False)
    with serve(collection=collection, reranker=CrossEncoder.load(toy_cross_bundle, threads=1)) as url:
        yield url


def test_the_page_loads_nothing_from_elsewhere(url):
    done = httpx.get(url)
    policy = done.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert done.headers["x-content-type-options"] == "nosniff"
    assert "http" not in done.text.replace("http-equiv", "")
    assert httpx.get(f"{url}/page/../settings.py").status_code == 404
    assert httpx.get(f"{url}/page/__init__.py").status_code == 404


@pytest.mark.usefixtures("toy_encoder")
def test_results_appear_as_one_types(browser, library):
    browser.open(library)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("bees find home")
    browser.wait("document.querySelector('#status').textContent.includes('bees find home')")
    titles = browser.run("[...document.querySelectorAll('.column h2')].map((title) => title.textContent)")
    assert titles == ["Dense", "Hybrid", "Re-ranked"]
    first = browser.run("document.querySelector('#columns ol li').dataset.id")
    assert first == "bees"
    times = browser.run("[...document.querySelectorAll('.column > .times')].map((times) => times.textContent)")
    assert "dense" in times[0]
    assert "lexical" in times[1]
    assert "rerank" in times[2]
    browser.wait("document.querySelector('#map-caption').textContent.includes('13 documents')")
    browser.picture("search-light")
    assert browser.problems() == []
    assert {address.split("/")[2] for address in browser.addresses()} == {library.split("/")[2]}


@pytest.fixture(scope="module")
def shelf(serve, toy_encoder, tmp_path_factory):
    documents = [
        {
            "id": f"n{n}",
            "text": f"bees and {word}",
            "year": 2018 + n,
            "lang": "de, at" if n % 2 else "en",
            "tags": ["a"],
        }
        for n, word in enumerate(["ships", "Shipping", "dogs", "salt", "sugar", "the sea"])
    ]
    path = tmp_path_factory.mktemp("page") / "idx"
    collection = Collection.build(documents, encoder=toy_encoder, path=path, lexical=True, show_progress_bar=False)
    with serve(collection=collection) as url:
        yield url


SHOWN = "[...document.querySelectorAll('.column:first-child li')].map((item) => item.dataset.id).sort().join(' ')"


def fill_in(browser, name, value):
    element = f"document.querySelector('#{name}')"
    browser.run(f"{element}.value = {value!r}; {element}.dispatchEvent(new Event('input')); 0")


def test_results_can_be_filtered_and_counted(browser, shelf):
    browser.open(shelf)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("bees ships")
    browser.wait(f"{SHOWN} === 'n0 n1 n2 n3 n4 n5'")
    browser.run("document.querySelector('.field button[title]').click()")
    browser.wait("document.querySelector('#filter').value.startsWith('year = ')")
    fill_in(browser, "filter", 'year >= 2019, lang = "de, at"')
    browser.wait(f"{SHOWN} === 'n1 n3 n5'")
    fill_in(browser, "filter", "year >= 2019, year < 2021, lang != en, tags = a")
    browser.wait(f"{SHOWN} === 'n1'")
    fill_in(browser, "filter", "year 2019")
    browser.wait(
        "document.querySelector('#filter-problem').textContent.startsWith(\"'year 2019' is not a condition\")"
    )
    fill_in(browser, "filter", "nix = 1")
    browser.wait("document.querySelector('#warnings').textContent.includes('nix')")
    fill_in(browser, "filter", "")
    fill_in(browser, "k", "2")
    browser.wait("document.querySelectorAll('.column:first-child li').length === 2")
    entries = [problem["entry"]["text"] for problem in browser.problems()]
    assert [entry for entry in entries if "status of 400" not in entry] == []  # the filters that were refused


def test_hits_show_metadata_and_the_words_of_the_query(browser, shelf):
    browser.open(shelf)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("the bees and a ship")
    browser.wait(f"{SHOWN} === 'n0 n1 n2 n3 n4 n5'")
    marks = "[...document.querySelectorAll('.column:first-child li[data-id=n{}] mark')].map((m) => m.textContent)"
    assert browser.run(marks.format(0)) == ["bees", "ships"]
    assert browser.run(marks.format(1)) == ["bees"]  # Shipping is another word
    for part in ("id", "text"):  # each has the direction of its own script
        assert browser.run(f"document.querySelector('#columns li .{part}').dir") == "auto"
    fields = (
        "[...document.querySelectorAll('.column:first-child li[data-id=n1] .field')].map((f) => f.textContent)"
    )
    assert browser.run(fields) == ["year2019", "langde, at", "tagsa"]
    assert browser.run("document.querySelector('#legend').textContent").count("Hybrid") == 1
    scores = "[...document.querySelectorAll('.column:last-child .score')].map((s) => Number(s.textContent))"
    best = max(browser.run(scores))
    assert browser.run("document.querySelector('.column:first-child meter').max") == 1
    assert browser.run("document.querySelector('.column:last-child meter').max") == pytest.approx(
        max(1, best), abs=1e-3
    )


def test_the_last_answer_wins(browser, library):
    """A late answer does not replace a newer one."""
    browser.open(library)
    browser.wait("document.activeElement?.id === 'query'")
    browser.run(
        "window.before = window.fetch; window.asked = [];"
        "window.fetch = async (path, options) => {"
        "  const query = options?.body && JSON.parse(options.body).query; window.asked.push(query);"
        "  const answer = await window.before(path, {...options, signal: undefined});"
        "  if (query === 'dog') await new Promise((go) => { window.answer = go; });"
        "  return answer; };"
        "const query = document.querySelector('#query'); window.write = (text) => { for (const letter of text) {"
        "  query.value += letter; query.dispatchEvent(new Event('input')); } }; 0"
    )
    browser.run("window.write('dog'), 0")  # without a pause between letters, however busy the machine is
    browser.wait("window.asked.includes('dog') && window.answer")
    browser.run("window.write('s and ships'), 0")
    browser.wait("document.querySelector('#status').textContent.includes('dogs and ships')")
    browser.run("window.answer(), 0")
    time.sleep(0.3)
    assert "dogs and ships" in browser.run("document.querySelector('#status').textContent")
    asked = browser.run("[...new Set(window.asked)]")
    assert asked == ["dog", "dogs and ships"]  # and not one per letter


def test_the_keyboard_suffices(browser, library):
    browser.open(library)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("a good dog")
    browser.wait("document.querySelector('#status').textContent.includes('a good dog')")
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.dataset.id") == "dog"
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    place = "[...document.querySelector('#columns').children].findIndex((c) => c.contains(document.activeElement))"
    assert browser.run(place) == 1
    assert browser.run("document.querySelectorAll('li.same').length") >= 1
    assert browser.run("document.querySelector('#map-text').textContent") != ""
    browser.press("Escape")
    assert browser.run("document.activeElement.id") == "query"
    assert browser.problems() == []


def test_contents_of_documents_are_shown_and_not_executed(browser, library):
    browser.open(library)
    browser.wait("document.activeElement?.id === 'query'")
    fill_in(browser, "k", "13")
    browser.run("document.querySelector('#query').focus()")
    browser.type("markup is shown as text")
    browser.wait("[...document.querySelectorAll('#columns li')].some((item) => item.dataset.id === '<b>odd</b>')")
    assert browser.run("document.querySelectorAll('#columns img, #columns b').length") == 0
    assert browser.run("document.title") == "embedkit"


def test_without_a_collection_the_page_says_so(browser, url):
    browser.open(url)
    browser.wait("document.querySelector('#no-collection')?.offsetParent")
    assert browser.run("document.querySelector('#search').hidden")
    assert browser.problems() == []


def test_a_locked_server_asks_for_its_key(browser, serve):
    with serve(keys=(KEY,)) as url:
        browser.open(url)
        browser.wait(
            "!document.querySelector('#key-form')?.hidden && document.querySelector('#problem')?.innerText"
        )
        browser.picture("key")
        browser.run(f"document.querySelector('#key').value = {KEY!r}")
        browser.run("document.querySelector('#key-form button').click()")
        browser.wait("document.querySelector('#no-collection').offsetParent")
        assert browser.run(
            "document.querySelector('#problem').hidden && document.querySelector('#key-form').hidden"
        )


def test_a_filter_without_hits_can_be_removed(browser, shelf):
    browser.open(shelf)
    browser.wait("document.activeElement?.id === 'query'")
    assert browser.run("document.querySelector('#status').textContent") == "Results appear as you type."
    assert browser.run("document.querySelector('#filter').placeholder") == "field = value"
    assert browser.run("document.querySelector('#effort-label').hidden")  # the index is exact
    browser.type("bees ships")
    browser.wait("document.querySelector('#filter').placeholder.startsWith('year = ')")
    fill_in(browser, "filter", "year = 1999")
    browser.wait("document.querySelector('#status').textContent.startsWith('Nothing found for')")
    assert browser.run("document.querySelector('#columns').hidden")
    browser.run("document.querySelector('#status button').click()")
    browser.wait(f"{SHOWN} === 'n0 n1 n2 n3 n4 n5' && !document.querySelector('#columns').hidden")
    assert browser.problems() == []


def network(browser, *, offline):
    browser.ask(
        "Network.emulateNetworkConditions",
        offline=offline,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )


def test_a_server_that_is_gone_is_said_and_tried_again(browser, shelf):
    browser.open(shelf)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("bees")
    browser.wait(f"{SHOWN} === 'n0 n1 n2 n3 n4 n5'")
    network(browser, offline=True)
    browser.type(" ships")
    browser.wait("!document.querySelector('#problem').hidden")
    assert "The server does not answer" in browser.run("document.querySelector('#problem').innerText")
    assert browser.run("getComputedStyle(document.querySelector('#columns')).opacity") == "0.5"
    network(browser, offline=False)
    browser.run("document.querySelector('#again').click()")
    browser.wait("document.querySelector('#status').textContent.includes('bees ships')")
    assert browser.run("document.querySelector('#problem').hidden && !document.body.matches('.offline')")


def test_a_narrow_screen_shows_one_order_at_a_time(browser, shelf):
    browser.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    browser.open(shelf)
    browser.wait("document.activeElement?.id === 'query'")
    browser.type("bees")
    browser.wait(f"{SHOWN} === 'n0 n1 n2 n3 n4 n5'")
    shown = "[...document.querySelectorAll('.column')].filter((column) => column.offsetParent).length"
    assert browser.run(shown) == 1
    assert browser.run("document.querySelector('.column.chosen h2').textContent") == "Hybrid"
    browser.run("document.querySelector('#tabs button').click()")
    assert browser.run("document.querySelector('.column.chosen h2').textContent") == "Dense"
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.picture("search-narrow")
    browser.ask("Emulation.clearDeviceMetricsOverride")
    assert browser.problems() == []


def test_the_page_keeps_its_key_in_memory_alone():
    files = (resources.files("embedkit.serving.http") / "page").iterdir()
    scripts = [file.read_text() for file in files if file.name.endswith(".js")]
    assert not [
        found for text in scripts for found in re.findall("localStorage|sessionStorage|indexedDB|cookie", text)
    ]
