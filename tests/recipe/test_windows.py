"""Windows: what is open when, and that the schedules which begin and end them agree with that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.windows import DAYS, Window, is_open, time_zone
from storage.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")


def opened(text: str, at: str) -> bool:
    return Window.parse(text).holds(datetime.fromisoformat(at))


def test_a_night_belongs_to_the_day_on_which_it_begins() -> None:
    night = "mon-fri 18:00-08:00"
    assert not opened(night, "2026-03-02 17:59")  # a Monday
    assert opened(night, "2026-03-02 18:00")
    assert opened(night, "2026-03-03 07:59")
    assert not opened(night, "2026-03-03 08:00")
    assert opened(night, "2026-03-07 07:59")  # Saturday, of Friday's night
    assert not opened(night, "2026-03-07 18:00")
    assert not opened(night, "2026-03-02 07:59")  # Sunday's night is none


def test_whole_days_and_hours_of_one_day() -> None:
    assert opened("sat,sun 00:00-24:00", "2026-03-08 23:59")
    assert not opened("sat,sun 00:00-24:00", "2026-03-09 00:00")
    assert opened("00:00-24:00", "2026-03-09 00:00")
    assert opened("fri-mon 09:30-17:00", "2026-03-09 16:59")
    assert not opened("fri-mon 09:30-17:00", "2026-03-10 16:59")
    assert opened("10:00-10:00", "2026-03-10 09:59")  # once around the clock


def test_the_clock_is_that_of_the_zone() -> None:
    windows = [Window.parse("18:00-20:00")]
    assert is_open(windows, BERLIN, datetime(2026, 1, 5, 17, 30, tzinfo=UTC))
    assert not is_open(windows, BERLIN, datetime(2026, 7, 6, 18, 30, tzinfo=UTC))  # 20:30 there
    assert is_open(windows, BERLIN, datetime(2026, 7, 6, 16, 30, tzinfo=UTC))
    assert not is_open([], BERLIN, datetime(2026, 7, 6, 16, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["18-8", "25:00-08:00", "mo 18:00-08:00", "18:00", "18:00-08:61", "mon-fri", "", "24:00-25:00"]
)
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Window.parse(text)
    assert caught.value.kind == "window"


def test_what_is_no_time_zone() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(ConfigError):
            time_zone(name)


TIMES = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))


@settings(deadline=None, max_examples=20)
@given(st.sets(st.sampled_from(DAYS), min_size=1), TIMES, st.one_of(TIMES, st.just("24:00")))
def test_schedules_fall_on_the_changes(days: set[str], begin: str, end: str) -> None:
    """At each minute that a begin names the window is open, and it changes at none that no schedule names."""
    window = Window.parse(f"{','.join(days)} {begin}-{end}")
    crons = [cron.split() for cron in window.crons]
    at = datetime(2026, 3, 2)
    before = window.holds(at - timedelta(minutes=1))
    while at < datetime(2026, 3, 9):
        now = window.holds(at)
        names = [
            (int(minute), int(hour)) == (at.minute, at.hour) and (on == "*" or DAYS[at.weekday()] in on.split(","))
            for minute, hour, _, _, on in crons
        ]
        assert not names[0] or now
        assert now == before or names[0 if now else 1]
        before = now
        at += timedelta(minutes=1)
