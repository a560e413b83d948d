"""Many small trajectory objects of a closed version into few: copies, by which queries go from then on.

A version is closed when every live pool has gone past it and each of its parts is consumed or dropped; after
``Stopped`` all are. The originals stay until then, since decisions name them. What is copied is exactly what lies in
the originals, lost attempts too: which rows count is the decisions' word, the same for a copy.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from astraflow.compacted import Compacted, Copied, append_entry
from astraflow.query.fold import ObjectView, RunFold
from astraflow.query.kept import KeptObject
from astraflow.records import new_id
from astraflow.trajectory import SCHEMA
from storage.commit_points import commit_point
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import encode_table, hash_bytes, read_table

log = logging.getLogger("astraflow.maintenance")

MOST_BYTES = 64 << 20
"""Of originals in one copy: a few hundred MB as a table in memory."""
_SETTLED = ("consumed", "dropped")


@dataclass(frozen=True, slots=True)
class Bundle:
    """Objects of one policy and version that are to lie in one."""

    policy: str
    version: int
    objects: tuple[KeptObject, ...]

    @property
    def size_bytes(self) -> int:
        return sum(parts.size_bytes for parts in self.objects)


def find_bundles(
    fold: RunFold, keys: RunKeys, url: str, root: str, compacted: Compacted, *, most_bytes: int = MOST_BYTES
) -> list[Bundle]:
    """What of the store at ``url`` is worth copying: two objects or more of a closed version. ``root``: the run's."""
    is_over = fold.state == "stopped"
    unsettled = {
        part.object.path for part in fold.parts.values() if part.object is not None and part.state not in _SETTLED
    }
    groups: dict[tuple[str, int], list[ObjectView]] = {}
    waiting: set[tuple[str, int]] = set()
    for path, view in sorted(fold.objects.items()):
        parsed = keys.parse_trajectory(path)
        if parsed is None or (view.parts.store or root) != url or path in compacted.copies:
            continue
        place = (parsed.policy, parsed.version)
        if not is_over and (path in unsettled or parsed.version >= _passed(fold, parsed.policy)):
            waiting.add(place)
        groups.setdefault(place, []).append(view)
    return [
        Bundle(policy, version, bundle)
        for (policy, version), views in sorted(groups.items())
        if (policy, version) not in waiting
        for bundle in _bundled([view.parts for view in views], most_bytes)
        if len(bundle) > 1
    ]


def copy(store: ObjectStore, keys: RunKeys, bundle: Bundle, compacted: Compacted) -> tuple[Compacted, Copied | None]:
    """Copy a bundle and say so; what the log says then, and the entry if it has an effect.

    Objects that are damaged or gone are left out of it: a copy never hides that.
    """
    tables, paths = _read(store, bundle)
    if len(paths) < 2:
        return compacted, None
    data = encode_table(pa.concat_tables(tables, promote_options="permissive"))
    key = keys.compacted(bundle.policy, bundle.version, uuid.uuid4().hex)
    commit_point("maintenance.before_copy")
    store.put(key, data)
    commit_point("maintenance.after_copy")
    entry = Copied(
        id=new_id(),
        key=key,
        policy=bundle.policy,
        version=bundle.version,
        size_bytes=len(data),
        hash=hash_bytes(data),
        rows=sum(table.num_rows for table in tables),
        paths=paths,
        paths_bytes=sum(parts.size_bytes for parts in bundle.objects if parts.path in set(paths)),
    )
    compacted = append_entry(store, keys, entry, compacted)
    commit_point("maintenance.after_entry")
    if key not in compacted.keys:  # another maintainer was first
        store.delete(key)
        return compacted, None
    return compacted, entry


def _read(store: ObjectStore, bundle: Bundle) -> tuple[list[pa.Table], list[str]]:
    tables, paths = [], []
    for parts in bundle.objects:
        try:
            table = read_table(store, parts.path, hash=parts.hash)
        except (DataError, NotFound) as error:
            log.warning("%s is not copied: %s", parts.path, error)
            continue
        missing = [field for field in SCHEMA if field.name not in table.column_names]
        for field in missing:  # an object of before the column was recorded
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        path = pa.array([parts.path] * table.num_rows, pa.string())
        tables.append(table.append_column(pa.field("path", pa.string()), path))
        paths.append(parts.path)
    return tables, paths


def _passed(fold: RunFold, policy: str) -> int:
    """Versions below this one get no more trajectories: every pool that may still commit has gone past them."""
    pools = [pool for pool in fold.pools.values() if pool.state in ("live", "draining", "lost")]
    return min((pool.applied.get(policy, 0) for pool in pools if policy in pool.joined.policies), default=0)


def _bundled(objects: Sequence[KeptObject], most_bytes: int) -> Iterable[tuple[KeptObject, ...]]:
    """Consecutive objects, at most ``most_bytes`` together unless one alone is larger."""
    bundle: list[KeptObject] = []
    size_bytes = 0
    for parts in objects:
        if bundle and size_bytes + parts.size_bytes > most_bytes:
            yield tuple(bundle)
            bundle, size_bytes = [], 0
        bundle.append(parts)
        size_bytes += parts.size_bytes
    if bundle:
        yield tuple(bundle)
