"""Where an S3 server is, in which region, and whose credentials ask it.

What a store's URL says holds: ``s3://bucket/prefix?region=us-west-2``, ``?endpoint=https://host:9000``, and
``?profile=west``, which is a profile of this machine's AWS configuration: its credentials, its region and its
``endpoint_url``. So one process can use buckets of several regions and servers. For the rest it is the AWS_*
environment, profiles or the machine's role, as for every AWS tool. Every client asks here and looks for no endpoint
by itself (``IGNORE_CONFIGURED``): else one store's objects would lie on two servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import botocore.exceptions
import botocore.session

from storage.errors import StoreError

DEFAULT_REGION = "us-east-1"
IGNORE_CONFIGURED = {"ignore_configured_endpoint_urls": True}
"""For botocore's client configuration, beside an endpoint that was found here or is AWS itself."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """``endpoint`` is empty for AWS itself."""

    session: botocore.session.Session
    endpoint: str
    region: str

    @classmethod
    def of(cls, options: Mapping[str, str], *, where: str) -> S3Access:
        """The access that a URL's ``options`` name. Raises ``StoreError`` if there is no such profile here."""
        profile = options.get("profile")
        session = botocore.session.Session(profile=profile)
        try:
            configured = session.get_scoped_config()
            usual = session.get_config_variable("region") or DEFAULT_REGION
        except botocore.exceptions.ProfileNotFound as error:
            raise StoreError(
                f"there is no AWS profile {profile!r} on this machine" if profile else str(error),
                where=where,
                remedy="Add it to ~/.aws/config with credentials, region and, for other servers than AWS, endpoint_url",
                kind="denied",
            ) from error
        if profile:  # another's server and region, for which the environment's are not meant
            endpoint, region = configured.get("endpoint_url"), configured.get("region")
        else:
            named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            endpoint = named or configured.get("endpoint_url")
            region = os.environ.get("AWS_REGION") or usual
        return cls(
            session, options.get("endpoint") or endpoint or "", options.get("region") or region or DEFAULT_REGION
        )
