"""A real Chromium, driven through chromedriver's WebDriver interface with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
MISSING = "needs Debian's packages chromium and chromium-driver: apt-get install -y chromium chromium-driver"
TAB, SPACE, RIGHT, LEFT = "\ue004", " ", "\ue014", "\ue012"


def installed() -> bool:
    return bool(shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome")))


class Browser:
    """One window; ``with Browser() as browser``. Scripts are functions' bodies and return what JSON can hold."""

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(prefix="opportune-chromium-")
        log = Path(self._folder.name, "driver.log")
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=log.open("w"), stderr=subprocess.STDOUT, text=True
        )
        self._root = f"http://127.0.0.1:{_port(log)}"
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {
                "binary": shutil.which("chromium") or shutil.which("google-chrome"),
                "args": [*FLAGS, f"--user-data-dir={self._folder.name}/profile"],
            },
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._root += f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._folder.cleanup()

    def open(self, path: Path, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Load a file in a window of this size, with the reader's preference for light or dark."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.tell("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script: str) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def console(self) -> list[str]:
        """Warnings and errors since the last call."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        found = [
            json.loads(entry["message"])["message"] for entry in self._call("POST", "/se/log", {"type": "performance"})
        ]
        return [each["params"]["request"]["url"] for each in found if each["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        made = self.tell("Page.captureScreenshot", captureBeyondViewport=whole)
        if whole:
            size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            made = self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(made["data"]))

    def pdf(self, path: Path) -> None:
        made = self.tell("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(made["data"]))

    def tell(self, command: str, **settings: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": settings})

    def _call(self, verb: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._root + path,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{verb} {path}: {error.read().decode()[:2000]}") from error


def _port(log: Path) -> int:
    """chromedriver says which port it took."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for line in log.read_text().splitlines():
            if "started successfully on port" in line:
                return int(line.rstrip(".").rsplit(" ", 1)[1])
        time.sleep(0.1)
    raise RuntimeError(f"chromedriver did not start: {log.read_text()}")
