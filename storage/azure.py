"""Azure Blob Storage, through obstore (``storage.bucket``): ``az://container/prefix``.

Account and credentials come from the AZURE_* environment (a key, a shared access signature, a service principal,
workload identity) or from the machine's managed identity; they never stand in a URL or a message. Azure cannot begin a
listing in the middle, so ``after`` costs the whole listing: nothing of a run lists a log.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from obstore.store import AzureStore as Client

from storage.bucket import NO_TOKEN, RETRIES, BucketStore, Provider
from storage.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig

_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"


class AzureStore(BucketStore):
    """The blobs of ``container`` under ``prefix``, in the account of the environment."""

    def __init__(self, container: str, prefix: str = "") -> None:
        emulator = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
        account = os.environ.get(_ACCOUNT)
        if not account and not emulator:
            raise StoreError(
                "the URL names a container, and nothing names the account it is in",
                where=f"az://{container}/{prefix}".rstrip("/"),
                remedy=f"Set {_ACCOUNT}, and AZURE_STORAGE_ACCOUNT_KEY or another of Azure's credentials",
                kind="denied",
            )
        endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURITE_BLOB_STORAGE_URL") or "Azure"

        def client(options: ClientConfig) -> Client:
            options = {"allow_http": endpoint.startswith("http:"), **options}
            return Client(container, client_options=options, retry_config=RETRIES)

        provider = Provider(
            name="Azure",
            scheme="az",
            client=client,
            no_bucket=frozenset({"ContainerNotFound", "ContainerBeingDeleted"}),
            endpoint=endpoint,
            network=f"{_ACCOUNT} and AZURE_STORAGE_ENDPOINT",
            remedy=partial(_remedy, container),
        )
        super().__init__(container, prefix, provider)


def _remedy(container: str, code: str) -> str:
    if code in ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation", NO_TOKEN):
        return f"Check {_ACCOUNT} and its credentials, and this machine's clock"
    if code == "AuthorizationFailure":
        return f"Check {_ACCOUNT}, its credentials, and the account's network rules for this machine"
    return f"Give these credentials the role Storage Blob Data Contributor on container {container!r}"
