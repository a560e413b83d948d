"""S3 as an fsspec filesystem, by s3fs, held to what a caller of a filesystem may expect: an end, and an ``OSError``.

Left alone, s3fs and the client below it try again around each other: for nine minutes where nothing answers, and then
they say it by an error of that client. An upload to a store that hangs would wait for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from botocore.exceptions import BotoCoreError
from botocore.handlers import add_expect_header
from s3fs import S3FileSystem

from storage.s3_access import IGNORE_CONFIGURED, S3Access

READ_TIMEOUT_S = 15.0
"""Without a byte for so long a connection is given up, and another one is tried."""
ATTEMPTS = 5
CALL_TIMEOUT_S = 300.0
"""For one call with all its attempts, such as a part of an upload: what goes out is bounded by nothing else."""


def open_s3_filesystem() -> S3FileSystem:
    """s3fs without its listing cache (others write), for stores with path-style addresses and no trailing checksums."""
    endpoint = S3Access.of({}, where="s3://").endpoint
    return _BoundedS3(
        use_listings_cache=False,
        skip_instance_cache=False,
        endpoint_url=endpoint or None,
        config_kwargs={
            "s3": {"addressing_style": "path" if endpoint else "auto"},
            "max_pool_connections": 64,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "connect_timeout": 5,
            "read_timeout": READ_TIMEOUT_S,
            "retries": {"max_attempts": ATTEMPTS, "mode": "standard"},
            **IGNORE_CONFIGURED,
        },
    )


class _BoundedS3(S3FileSystem):  # type: ignore[misc]
    """Tries once, since the client tries again by itself, and never waits for ever."""

    retries = 1

    async def set_session(self, *arguments: Any, **named: Any) -> Any:
        client = await super().set_session(*arguments, **named)
        # An upload would ask for leave first, and for that answer no timeout holds.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        return client

    async def _call_s3(self, *arguments: Any, **named: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await super()._call_s3(*arguments, **named)
        except (BotoCoreError, TimeoutError) as error:  # of a TimeoutError fsspec takes away the text
            raise ConnectionError(f"S3 gave no answer: {error or type(error).__name__}") from error
