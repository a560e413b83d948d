"""What a store URL names, without opening anything.

``runs``, ``~/runs`` and ``file:///data/runs`` are a folder; ``s3://``, ``az://`` and ``gs://`` with ``bucket/prefix``
are a bucket; ``memory://name`` is this process's memory; any other ``scheme://…`` is left to fsspec. Credentials
never stand in a URL: URLs are shown and logged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from storage.errors import ConfigError

_ALIASES = {"s3a": "s3", "azure": "az", "gcs": "gs"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Buckets, and where the credentials of each are looked for."""
_SCHEME = re.compile(r"^(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<rest>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed store URL. ``rest`` is what follows ``scheme://``; of a folder, its absolute path."""

    scheme: str
    rest: str

    @classmethod
    def parse(cls, url: str) -> Location:
        """Raises ``ConfigError`` (kind ``store_url``), which never repeats credentials."""
        match = _SCHEME.match(url)
        if match is None:
            if not url or url.startswith("file:"):
                raise _wrong("a store is a folder or a URL", url)
            return cls("file", str(Path(url).expanduser().absolute()))
        scheme, rest = match["scheme"].lower(), match["rest"].rstrip("/")
        scheme = _ALIASES.get(scheme, scheme)
        if scheme == "file":
            if not match["rest"].startswith("/"):
                raise _wrong("a file URL has three slashes and an absolute path", url)
            return cls("file", unquote(rest) or "/")
        if "@" in rest.split("/", 1)[0] and scheme in _CREDENTIALS:
            what = "credentials do not belong in a store URL"
            raise _wrong(what, f"{scheme}://…", f"Set {_CREDENTIALS[scheme]} instead")
        if not rest:
            raise _wrong(f"a {scheme} URL names a bucket or a place after the slashes", url)
        return cls(scheme, rest)

    @property
    def url(self) -> str:
        """The URL in its one canonical form, without a slash at the end."""
        return self.path.as_uri() if self.scheme == "file" else f"{self.scheme}://{self.rest}"

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


def _wrong(
    what: str, url: str, remedy: str = "Use a path, file:///path, s3://bucket/prefix (az://, gs://) or memory://name"
) -> ConfigError:
    return ConfigError(what, where=f"store {url!r}", remedy=remedy, kind="store_url")
