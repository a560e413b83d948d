"""Hours in which a region's pools run: ``18:00-08:00``, ``mon-fri 18:00-08:00``, ``sat,sun 00:00-24:00``.

A window is written in a time zone's wall-clock time and belongs to the day on which it begins; when its end is not
later than its beginning, it ends on the next day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"^(?:(?P<days>[a-z,-]+) +)?(?P<begin>\d\d:\d\d) *- *(?P<end>\d\d:\d\d)$")
_MIDNIGHT = "24:00"


@dataclass(frozen=True, slots=True)
class Window:
    """One window; ``days`` are those on which it begins, 0 is Monday."""

    begin: time
    end: time
    days: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Window:
        """Raises ``ConfigError`` (kind ``window``)."""
        match = _WINDOW.match(text.strip().lower())
        try:
            if match is None:
                raise ValueError
            end = time(0) if match["end"] == _MIDNIGHT else time.fromisoformat(match["end"])
            return cls(time.fromisoformat(match["begin"]), end, _days(match["days"]))
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a window",
                remedy="Write '18:00-08:00', 'mon-fri 18:00-08:00' or 'sat,sun 00:00-24:00'",
                kind="window",
            ) from None

    @property
    def is_over_midnight(self) -> bool:
        """Whether it ends on the day after the one on which it begins."""
        return self.end <= self.begin

    @property
    def crons(self) -> tuple[str, str]:
        """When it begins and when it ends, as cron expressions in its time zone."""
        ends = frozenset((day + 1) % 7 for day in self.days) if self.is_over_midnight else self.days
        return _cron(self.begin, self.days), _cron(self.end, ends)

    def holds(self, wall: datetime) -> bool:
        """Whether this wall-clock time (without a zone) is in it; its end is not."""
        return any(self._holds_from(wall.date() - timedelta(days=ago), wall) for ago in (0, 1))

    def _holds_from(self, day: date, wall: datetime) -> bool:
        begin = datetime.combine(day, self.begin)
        end = datetime.combine(day + timedelta(days=self.is_over_midnight), self.end)
        return day.weekday() in self.days and begin <= wall < end


def is_open(windows: Sequence[Window], zone: ZoneInfo, now: datetime) -> bool:
    """Whether one of the windows is open at ``now``, a time with a zone."""
    wall = now.astimezone(zone).replace(tzinfo=None)
    return any(window.holds(wall) for window in windows)


def time_zone(name: str) -> ZoneInfo:
    """A zone by its name in the tz database. Raises ``ConfigError``."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"{name!r} is not a time zone", remedy="Write one such as 'Europe/Berlin' or 'UTC'", kind="window"
        ) from None


def _days(text: str | None) -> frozenset[int]:
    """``mon-fri,sun``; a range may go over the weekend. Raises ``ValueError``."""
    if text is None:
        return frozenset(range(7))
    found: set[int] = set()
    for item in text.split(","):
        first, _, last = item.partition("-")
        start, stop = DAYS.index(first), DAYS.index(last or first)
        found |= {(start + day) % 7 for day in range((stop - start) % 7 + 1)}
    return frozenset(found)


def _cron(at: time, days: frozenset[int]) -> str:
    on = "*" if len(days) == len(DAYS) else ",".join(DAYS[day] for day in sorted(days))
    return f"{at.minute} {at.hour} * * {on}"
