"""The user's cache: downloads, and what was compiled."""

from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of the user's cache; it may not exist."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        return Path.home() / ".cache" / "tunefree"
    return Path(pooch.os_cache("tunefree"))
