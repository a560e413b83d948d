"""What a store URL names, without opening anything.

``runs``, ``~/runs`` and ``file:///data/runs`` are a folder; ``s3://``, ``az://`` and ``gs://`` with ``bucket/prefix``
are a bucket; ``memory://name`` is this process's memory; any other ``scheme://…`` is left to fsspec. An S3 URL may say
which ``profile``, ``region`` or ``endpoint`` is meant. Credentials never stand in a URL: URLs are shown and logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode

from storage.errors import ConfigError

_ALIASES = {"s3a": "s3", "azure": "az", "gcs": "gs"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Buckets, and where the credentials of each are looked for."""
S3_OPTIONS = ("endpoint", "profile", "region")
_SCHEME = re.compile(r"^(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<rest>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed store URL. ``rest`` is what follows ``scheme://`` up to ``options``; of a folder, its absolute path."""

    scheme: str
    rest: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Location:
        """Raises ``ConfigError`` (kind ``store_url``), which never repeats credentials."""
        match = _SCHEME.match(url)
        if match is None:
            if not url or url.startswith("file:"):
                raise _wrong("a store is a folder or a URL", url)
            return cls("file", str(Path(url).expanduser().absolute()))
        scheme = match["scheme"].lower()
        scheme = _ALIASES.get(scheme, scheme)
        rest, _, query = match["rest"].partition("?") if scheme == "s3" else (match["rest"], "", "")
        rest = rest.rstrip("/")
        if scheme == "file":
            if not match["rest"].startswith("/"):
                raise _wrong("a file URL has three slashes and an absolute path", url)
            return cls("file", unquote(rest) or "/")
        if "@" in rest.split("/", 1)[0] and scheme in _CREDENTIALS:
            what = "credentials do not belong in a store URL"
            raise _wrong(what, f"{scheme}://…", f"Set {_CREDENTIALS[scheme]} instead")
        if not rest:
            raise _wrong(f"a {scheme} URL names a bucket or a place after the slashes", url)
        return cls(scheme, rest, _options(query, url) if query else ())

    @property
    def url(self) -> str:
        """The URL in its one canonical form, without a slash at the end."""
        return (
            self.path.as_uri()
            if self.scheme == "file"
            else f"{self.scheme}://{self.rest}{query_of(dict(self.options))}"
        )

    @property
    def shown(self) -> str:
        """The URL for messages and records: without user and password."""
        place, slash, path = self.rest.partition("/")
        return f"{self.scheme}://{place.rpartition('@')[2]}{slash}{path}" if self.scheme != "file" else self.url

    @property
    def path(self) -> Path:
        """The folder of a ``file`` location."""
        return Path(self.rest)

    @property
    def bucket(self) -> str:
        """The bucket of an ``s3``, ``gs`` or ``az`` location."""
        return self.rest.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The part of such a location after the bucket; empty for the bucket itself."""
        return self.rest.partition("/")[2].strip("/")


def query_of(options: Mapping[str, str]) -> str:
    """The options as a URL has them, in one order; empty without any."""
    return f"?{urlencode(sorted(options.items()), safe='/:')}" if options else ""


def _options(query: str, url: str) -> tuple[tuple[str, str], ...]:
    found = parse_qsl(query.rstrip("/"), keep_blank_values=True)
    options = dict(found)
    if "@" in options.get("endpoint", ""):
        raise _wrong("credentials do not belong in a store URL", "s3://…", f"Set {_CREDENTIALS['s3']} instead")
    if len(options) < len(found) or not options or not all(options.values()) or options.keys() - set(S3_OPTIONS):
        raise _wrong("an S3 URL has these options, each once: " + ", ".join(S3_OPTIONS), url)
    return tuple(sorted(options.items()))


def _wrong(
    what: str, url: str, remedy: str = "Use a path, file:///path, s3://bucket/prefix (az://, gs://) or memory://name"
) -> ConfigError:
    return ConfigError(what, where=f"store {url!r}", remedy=remedy, kind="store_url")
