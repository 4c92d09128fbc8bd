"""Time zones by their names, `Europe/Berlin`, and the one of this machine."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from tzlocal import get_localzone_name

from agentq.core.errors import UsageError
from agentq.core.words import nearest


@cache
def zone_of(name: str) -> ZoneInfo:
    """The zone of this name.

    Raises:
        UsageError: when there is none, with the nearest that there is.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # unknown, none at all, a folder's, or no text
        close = nearest(str(name), available_timezones())
        raise UsageError(
            f"there is no time zone {name!r}{close}",
            hint="for example Europe/Berlin, America/New_York or UTC",
        ) from None


def local_zone() -> str:
    """The name of this machine's zone; UTC where it does not say."""
    try:
        name = get_localzone_name()
    except (LookupError, ValueError, OSError):  # two files of the system disagree, or none is readable
        return "UTC"
    return name if name and name in available_timezones() else "UTC"
