"""One maintenance of one run: what there is to do, and doing it.

While the run goes on, closed versions are copied together and nothing that counts is deleted. After ``Stopped`` what
nobody can need goes: originals that were copied in an earlier maintenance (so that a reader that began before the copy
has long ended), attempts that lost, blobs that no manifest names, old checkpoints, half uploads. Broken off anywhere,
the next one finishes it; two at once do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from astraflow.compacted import Copied, read_compacted
from astraflow.maintenance import compaction, leftovers
from astraflow.maintenance.leftovers import Leftovers
from astraflow.query.listing import runs
from astraflow.query.run import Run
from astraflow.trainer.checkpoint_folders import folders, surplus
from astraflow.weights.garbage import find_garbage
from storage import ObjectStore, open_store
from storage.errors import ConfigError, DataError, StoreError
from storage.uploads import abort, unfinished

log = logging.getLogger("astraflow.maintenance")

KEEP_CHECKPOINTS = 1  # of a run that is over: its last, from which somebody may go on in a new run


@dataclass(slots=True)
class Report:
    """What a maintenance did, or would do. ``copied`` are entries as the log has them; sizes in bytes."""

    run: str
    is_over: bool
    is_dry: bool
    copied: list[dict[str, object]] = field(default_factory=list)
    gone: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> objects, bytes
    damaged: list[str] = field(default_factory=list)  # stayed, because something of it is not whole

    def count(self, found: Leftovers) -> None:
        """Add what goes."""
        entry = self.gone.setdefault(found.kind, {"objects": 0, "bytes": 0})
        entry["objects"] += len(found.keys)
        entry["bytes"] += found.size_bytes

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        return not self.copied and not any(entry["objects"] for entry in self.gone.values())


def maintain(store: ObjectStore, run: str, *, dry_run: bool = False) -> Report:
    """Tidy up one run as far as its state allows; with ``dry_run`` say what would be done.

    Raises ``StoreError`` if the run's store fails; a region's that does is reported, and is for the next time.
    """
    opened = Run(store, run).refresh()
    report = Report(run, opened.fold.state == "stopped", dry_run)
    _rows(opened, store, report)
    for url in _regions(opened):
        _region(opened, url, report)
    if report.is_over:
        for policy in opened.config.policies:
            _weights(opened, policy, report)
            _checkpoints(opened, policy, report)
    return report


def maintain_all(store: ObjectStore, *, dry_run: bool = False) -> list[Report]:
    """Every run of a store, one after the other; one whose data is wrong is reported as damaged and passed over."""
    reports = []
    for entry in runs(store):
        try:
            reports.append(maintain(store, entry.run, dry_run=dry_run))
        except (DataError, ConfigError) as error:
            log.warning("%s is left alone: %s", entry.run, error)
            reports.append(Report(entry.run, is_over=False, is_dry=dry_run, damaged=[str(error)]))
    return reports


def _regions(run: Run) -> list[str]:
    """Stores of regions that hold rows of the run, or may hold what nobody committed."""
    named = {region.store for region in run.config.regions.values() if region.store}
    return sorted((named | {view.parts.store for view in run.fold.objects.values()}) - {"", run.store.url})


def _region(run: Run, url: str, report: Report) -> None:
    """What lies in a region's store. Whatever is wrong with that is reported, and the rest is done."""
    copies: list[leftovers.Mirrored] = []
    with _reported(url, report):
        region = open_store(url)
        _rows(run, region, report)
        if not report.is_over:
            return
        copies += filter(None, (leftovers.find_mirrored(region, run.keys, policy) for policy in run.config.policies))
    for mirrored in copies:
        if not mirrored.is_of(run.store):
            log.warning("%s is not this run's, and left alone", f"{url}/{mirrored.oldest}")
            report.damaged.append(f"{url}/{mirrored.oldest}: another run's weights")
            continue
        report.count(mirrored.found)
        if not report.is_dry:
            with _reported(url, report):
                leftovers.delete(region, mirrored.found.keys)


@contextmanager
def _reported(url: str, report: Report) -> Iterator[None]:
    try:
        yield
    except (ConfigError, DataError, StoreError) as error:
        log.warning("%s: %s", url, error)
        report.damaged.append(f"{url}, a region's store: {error.what}")


def _rows(run: Run, store: ObjectStore, report: Report) -> None:
    """What lies in one store of the run's trajectories, and of uploads that were broken off."""
    _trajectories(run, store, report)
    if report.is_over:
        _uploads(run, store, report)


def _trajectories(run: Run, store: ObjectStore, report: Report) -> None:
    keys, fold = run.keys, run.fold
    compacted = read_compacted(store, keys)
    copies = leftovers.find_copies(store, keys, compacted)
    originals, orphans = leftovers.find_trajectories(store, keys, fold, compacted, root=run.store.url)
    bundles = compaction.find_bundles(fold, keys, store.url, run.store.url, compacted)
    report.count(copies)
    if report.is_over:
        report.count(originals)
        report.count(orphans)
    if report.is_dry:
        report.copied += [_planned(bundle) for bundle in bundles]
        return
    compacted = leftovers.drop_copies(store, keys, copies, compacted)
    if report.is_over:
        report.damaged += leftovers.drop_originals(store, originals, compacted)
        leftovers.delete(store, orphans.keys)
    for bundle in bundles:
        compacted, entry = compaction.copy(store, keys, bundle, compacted)
        if entry is not None:
            report.copied.append(_said(entry))
            log.info("%s: %d objects of version %d copied into one", entry.policy, len(entry.paths), entry.version)
        report.damaged += [
            parts.path for parts in bundle.objects if entry is not None and parts.path not in entry.paths
        ]


def _planned(bundle: compaction.Bundle) -> dict[str, object]:
    rows = sum(len(parts.rewards) for parts in bundle.objects)
    return {
        "policy": bundle.policy,
        "version": bundle.version,
        "objects": len(bundle.objects),
        "rows": rows,
        "bytes_before": bundle.size_bytes,
    }


def _said(entry: Copied) -> dict[str, object]:
    return {
        "policy": entry.policy,
        "version": entry.version,
        "objects": len(entry.paths),
        "rows": entry.rows,
        "bytes_before": entry.paths_bytes,
        "bytes_after": entry.size_bytes,
    }


def _weights(run: Run, policy: str, report: Report) -> None:
    """Blobs and merges that no manifest or record names; the versions stay, ``weights collect`` gives them up."""
    try:
        garbage = find_garbage(run.store, run.keys, policy)
    except DataError as error:
        log.warning("the weights of %s are left alone: %s", policy, error)
        report.damaged.append(run.keys.weights(policy))
        return
    report.count(Leftovers("weights", garbage.keys, garbage.size_bytes))
    if not report.is_dry:
        leftovers.delete(run.store, garbage.keys)


def _checkpoints(run: Run, policy: str, report: Report) -> None:
    for folder in surplus(folders(run.store, run.keys, policy), keep=KEEP_CHECKPOINTS, is_over=True):
        report.count(Leftovers("checkpoints", tuple(folder.keys), folder.size_bytes))
        if not report.is_dry:
            leftovers.delete(run.store, folder.keys)


def _uploads(run: Run, store: ObjectStore, report: Report) -> None:
    try:
        found = unfinished(store, run.keys.root)
        report.count(Leftovers("uploads", tuple(upload.key for upload in found), 0))
        if not report.is_dry:
            for upload in found:
                abort(store, upload)
    except StoreError as error:  # a bucket's own rule may do it: the rest is done all the same
        log.warning("%s", error)
        report.damaged.append("half uploads could not be listed or given up")
