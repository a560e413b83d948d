"""Which step a version belongs to, as its manifest says: what lag is counted from."""

from __future__ import annotations

from astraflow.weights.manifest import Manifest, decode_manifest
from storage.errors import NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore


class VersionSteps:
    """Steps of one policy's versions, read from their manifests once and then kept."""

    def __init__(self, store: ObjectStore, keys: RunKeys, policy: str) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._steps: dict[int, int] = {}

    def manifest(self, version: int) -> Manifest | None:
        """The manifest of ``version``, or None if it was never published. Raises ``DataError`` if it is damaged."""
        key = self._keys.manifest(self._policy, version)
        try:
            data = self._store.get(key)
        except NotFound:
            return None
        manifest = decode_manifest(data, where=key, policy=self._policy, version=version)
        self.note(manifest)
        return manifest

    def note(self, manifest: Manifest) -> None:
        """Remember the step of a manifest that is known already."""
        self._steps[manifest.version] = manifest.step

    def step_of(self, version: int) -> int | None:
        """The number of optimizer steps behind ``version``, or None if it was never published."""
        if version < 0:
            return None
        if version not in self._steps and self.manifest(version) is None:
            return None
        return self._steps[version]
