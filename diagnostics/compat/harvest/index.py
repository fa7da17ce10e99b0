"""The package index that pip is configured with, asked over its simple interface (PEP 503 and PEP 691)."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPResponse
from urllib.parse import urljoin, urlsplit

from ..releases.versions import UnknownVersion, parse
from .errors import HarvestError

TIMEOUT_S = 60
MAX_INDEX_BYTES = 64 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True)
class RemoteFile:
    """A file of the index: its name, URL, and SHA-256 where the index gives it."""

    name: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class PipSettings:
    """What pip would use: the URLs of its indexes, and a file of certificates."""

    urls: tuple[str, ...]
    certificates: str | None


def pip_settings() -> PipSettings:
    """pip's own settings: environment, configuration files, then its default. Raises HarvestError when pip has none."""
    lines = _pip("config", "list").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)

    def setting(name: str) -> str | None:
        environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        for section in ("", ":env:.", "install.", "download.", "global."):
            value = environment if not section else found.get(section + name, "").strip("'\"")
            if value:
                return value
        return None

    url = setting("index-url") or _default_url()
    extra = (setting("extra-index-url") or "").replace("\\n", " ").split()
    urls = tuple(u for u in (url, *extra) if urlsplit(u).scheme in {"http", "https"})
    if not urls:
        raise HarvestError(
            "pip is configured with no index that can be asked over HTTP; give the release with --source"
        )
    return PipSettings(urls, setting("cert"))


def _pip(*args: str) -> str:
    """What a pip command prints; pip takes no part in the download itself."""
    environment = {**os.environ, "COLUMNS": "1000", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *args],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HarvestError(
            f"pip could not be asked for its index ({error}); give the release with --source"
        ) from error
    return done.stdout


def _default_url() -> str:
    """The index that pip names as its default in its own help."""
    found = re.search(r"--index-url <url>.*?\(default (\S+?)\)", _pip("download", "--help"), re.DOTALL)
    if found is None:
        raise HarvestError("pip names no default index; give the release with --source")
    return found[1]


class Index:
    """One session with pip's index."""

    def __init__(self, settings: PipSettings) -> None:
        self._settings = settings
        self._context = ssl.create_default_context(cafile=settings.certificates)

    def open(self, url: str, headers: dict[str, str] | None = None) -> HTTPResponse:
        """The response to a GET. Raises HarvestError when there is none."""
        request = urllib.request.Request(url, headers={"User-Agent": "camshaft", **(headers or {})})
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context)
        except urllib.error.HTTPError as error:
            raise HarvestError(f"{_without_secrets(url)} answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise HarvestError(
                f"cannot reach {_without_secrets(url)} ({reason}); without a network give the release with --source"
            ) from error

    def files(self, project: str) -> list[RemoteFile]:
        """Every file of a project, from the first index that has it. Raises HarvestError when none has."""
        failures = []
        for base in self._settings.urls:
            url = f"{base.rstrip('/')}/{project}/"
            try:
                with self.open(url, {"Accept": _ACCEPT}) as response:
                    data = response.read(MAX_INDEX_BYTES)
                    kind = response.headers.get("Content-Type", "")
                return _from_json(data, url) if "json" in kind else _from_html(data, url)
            except HarvestError as error:
                failures.append(str(error))
        raise HarvestError("; ".join(failures))


def _from_json(data: bytes, base: str) -> list[RemoteFile]:
    try:
        rows = json.loads(data)["files"]
        return [
            RemoteFile(row["filename"], urljoin(base, row["url"]), row.get("hashes", {}).get("sha256"))
            for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise HarvestError(
            f"the index at {_without_secrets(base)} answered with something that is no file list"
        ) from error


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _from_html(data: bytes, base: str) -> list[RemoteFile]:
    links = _Links()
    links.feed(data.decode("utf-8", "replace"))
    found = []
    for link in links.urls:
        url, _, fragment = urljoin(base, link).partition("#")
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        found.append(RemoteFile(urlsplit(url).path.rsplit("/", 1)[-1], url, sha256))
    return found


def pick(files: list[RemoteFile], project: str, version: str) -> RemoteFile:
    """The release's sdist, or a wheel where it has none. Raises UnknownVersion when the index has neither."""
    wanted = parse(version)
    stem = project.replace("-", "_")
    sdists, wheels = [], []
    released = []
    for file in files:
        found = re.fullmatch(
            rf"{stem}-([^-]+?)(\.tar\.gz|-.+\.whl)", file.name.replace(f"{project}-", f"{stem}-", 1)
        )
        if found is None:
            continue
        try:
            release = parse(found[1].partition("+")[0])
        except UnknownVersion:
            continue
        released.append(release)
        if release == wanted and "+" not in found[1]:
            (sdists if found[2] == ".tar.gz" else wheels).append(file)
    chosen = sdists or sorted(wheels, key=lambda file: "x86_64" not in file.name)
    if not chosen:
        newest = f"; its newest is {max(released)}" if released else ""
        raise UnknownVersion(f"the index has no {project} {version}{newest}")
    return chosen[0]


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]).geturl()
