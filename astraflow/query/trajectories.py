"""The trajectories of a run as one pyarrow data set.

What is in it: the rows of admitted groups, out of objects that an effective ``Committed`` names. What is not: files
that nobody committed, records that were rejected or lie beyond the cursors, and the rows of attempts that lost, though
they may lie in an object with rows that won. A dropped part's rows are in: join ``parts`` for what became of them.

Where maintenance has copied many objects into one, the copy is read in their place; a row keeps the ``path`` under
which it was committed, so nothing else tells the difference.

Columns are those of a trajectory object, ``policy`` and ``version`` of its path (hive: the part's oldest version) and
``path``, its key, which is also what the lost rows are filtered by.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from astraflow.compacted import read_compacted
from astraflow.query.fold import ObjectView, RunFold
from astraflow.trajectory import SCHEMA
from storage import ObjectStore, open_store
from storage.filesystem import open_filesystem
from storage.keys import RunKeys

TRAJECTORIES = pa.schema(
    [*SCHEMA, pa.field("policy", pa.string()), pa.field("version", pa.int32()), pa.field("path", pa.string())]
)
"""Columns of the data set."""


def trajectories_dataset(store: ObjectStore, keys: RunKeys, fold: RunFold) -> ds.Dataset:
    """The committed and admitted rows of the run; nothing is read but, later, what a scan asks for.

    The filter against lost rows is the data set's own, so it holds for ``to_table``, ``scanner``, ``count_rows`` and
    DuckDB; only single fragments (``get_fragments``) do not know it.
    """
    by_store: dict[str, list[ObjectView]] = {}
    for view in fold.objects.values():
        by_store.setdefault(view.parts.store or store.url, []).append(view)
    children = [
        _of_one_store(store if url == store.url else open_store(url), keys, views)
        for url, views in sorted(by_store.items())
    ]
    dataset = children[0][0] if len(children) == 1 else _union([child for child, _ in children])
    lost = [expression for view in fold.objects.values() if (expression := _lost_rows(view)) is not None]
    if strange := [path for _, paths in children for path in paths]:
        lost.append(ds.field("path").isin(strange))
    return dataset.filter(~functools.reduce(operator.or_, lost)) if lost else dataset


def _union(children: Sequence[ds.Dataset]) -> ds.Dataset:
    if not children:
        return ds.dataset(TRAJECTORIES.empty_table())
    return ds.dataset(list(children), schema=TRAJECTORIES)


def _of_one_store(
    store: ObjectStore, keys: RunKeys, views: Iterable[ObjectView]
) -> tuple[ds.FileSystemDataset, list[str]]:
    """The objects of one store, copies in place of what they cover, and paths in copies that are not the fold's."""
    parquet = ds.ParquetFileFormat()
    filesystem, root = _arrow_filesystem(store.url)
    copies = read_compacted(store, keys).copies
    paths = {view.parts.path: view.parts.size_bytes for view in views}
    covering = {copies[path].key: copies[path] for path in paths if path in copies}
    fragments = [
        parquet.make_fragment(root + path, filesystem, _partition(keys, path), file_size=size_bytes or None)
        for path, size_bytes in paths.items()
        if path not in copies
    ]
    for key, copy in covering.items():
        place = _hive(copy.policy, copy.version)
        fragments.append(parquet.make_fragment(root + key, filesystem, place, file_size=copy.size_bytes))
    strange = [path for copy in covering.values() for path in copy.paths if path not in paths]
    return ds.FileSystemDataset(fragments, TRAJECTORIES, parquet, filesystem), strange


def _arrow_filesystem(url: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a store, and what precedes a key in it."""
    filesystem, root = open_filesystem(url)
    root = f"{root}/" if root else ""
    if "file" in (filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)):
        return pafs.LocalFileSystem(), root
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), root  # type: ignore[abstract]


def _partition(keys: RunKeys, path: str) -> pc.Expression:
    parsed = keys.parse_trajectory(path)
    here = ds.field("path") == path
    if parsed is None:  # no such path passes the manager; its rows would have no policy
        return here
    return here & _hive(parsed.policy, parsed.version)


def _hive(policy: str, version: int) -> pc.Expression:
    return (ds.field("policy") == policy) & (ds.field("version") == pa.scalar(version, pa.int32()))


def _lost_rows(view: ObjectView) -> pc.Expression | None:
    """Rows of ``view``'s object that do not count: groups of which another object's attempt was admitted, or none."""
    lost = sorted(set(view.parts.groups) - view.admitted)
    if not lost:
        return None
    return (ds.field("path") == view.parts.path) & ds.field("group_id").isin(lost)
