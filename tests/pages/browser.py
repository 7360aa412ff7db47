"""Chromium without a window, asked by its own DevTools protocol over two pipes: no driver, no socket, no package.

Protocol: https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte, read by the
browser from file descriptor 3 and written to 4 (`--remote-debugging-pipe`).
"""

import dataclasses
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")

_SECONDS = 60


def executable() -> str | None:
    """Where Chromium is, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclasses.dataclass
class View:
    """A page as it was opened.

    Attributes:
        value: What the script that looked at it returned.
        requests: Addresses that it asked for, its own left out, and those that it brought along (data:).
        dialogs: Texts of dialogs that it opened.
        errors: What its console said.
    """

    value: Any
    requests: list[str]
    dialogs: list[str]
    errors: list[str]


class Browser:
    """A running Chromium; use it in a `with` block.

    Args:
        folder: An empty folder for its profile.
    """

    def __init__(self, folder: pathlib.Path):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        words = [
            executable(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # A shell puts the two pipes where the browser looks for them.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *words], pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._buffer, self._events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._call("Browser.close")
            self._process.wait(20)
        except (OSError, TimeoutError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def look(self, url: str, script: str, width: int = 1200, scripts: bool = True, dark: bool = False) -> View:
        """Opens a page in a tab of its own and runs a script over it.

        Args:
            url: The page.
            script: An expression of JavaScript; what it is worth comes back.
            width: Of the window, pixels.
            scripts: Whether the page itself may run scripts.
            dark: Whether it is asked for dark colours.
        """
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        tab = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._events.clear()
        for name in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{name}.enable", {}, tab)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size, tab)
        self._call("Emulation.setScriptExecutionDisabled", {"value": not scripts}, tab)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", {"features": scheme}, tab)
        self._call("Page.navigate", {"url": url}, tab)
        self._wait("Page.loadEventFired", tab)
        answer = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True}, tab)
        if "exceptionDetails" in answer:
            raise AssertionError(f"the script that looks at {url} failed: {answer['exceptionDetails']}")
        events = [event for event in self._events if event.get("sessionId") == tab]
        self._call("Target.closeTarget", {"targetId": target})
        asked = _values(events, "Network.requestWillBeSent", "request", "url")
        thrown = _values(events, "Runtime.exceptionThrown", "exceptionDetails", "text")
        return View(
            answer["result"].get("value"),
            [address for address in asked if not address.startswith(("data:", url))],
            _values(events, "Page.javascriptDialogOpening", "message"),
            _values(events, "Log.entryAdded", "entry", "text") + thrown,
        )

    def _call(self, method: str, parameters: Mapping[str, Any] | None = None, tab: str | None = None) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}} | ({"sessionId": tab} if tab else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)
        raise EOFError("the browser ended")

    def _wait(self, name: str, tab: str) -> None:
        if any(event["method"] == name and event.get("sessionId") == tab for event in self._events):
            return
        for message in self._messages():
            self._note(message)
            if message.get("method") == name and message.get("sessionId") == tab:
                return

    def _note(self, message: dict) -> None:
        if "method" not in message:
            return
        self._events.append(message)
        if message["method"] == "Page.javascriptDialogOpening":
            # Closed without waiting for the answer: an open one stops the page, and with it the test.
            self._number += 1
            closing = {"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            os.write(self._write, json.dumps(closing | {"sessionId": message["sessionId"]}).encode() + b"\0")

    def _messages(self) -> Iterator[dict]:
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._buffer:
                message, self._buffer = self._buffer.split(b"\0", 1)
                yield json.loads(message)
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {_SECONDS} s")
            more = os.read(self._read, 2**16)
            if not more:
                raise EOFError("the browser ended")
            self._buffer += more


def _values(events, method: str, *path: str) -> list[str]:
    found = []
    for event in events:
        if event["method"] == method:
            value = event["params"]
            for name in path:
                value = value[name]
            found.append(value)
    return found
