"""The version, for the record in every run folder."""

__version__ = "0.2.0"
