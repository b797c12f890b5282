"""Settings: what there is, what is in force, and what is wrong with it."""

from sandbox_server.settings.catalogue import Entry, entries
from sandbox_server.settings.fields import IN_PROCESS
from sandbox_server.settings.loading import load
from sandbox_server.settings.model import ANY_FOLDER, DEADMAN_MARGIN_S, Settings

__all__ = ["ANY_FOLDER", "DEADMAN_MARGIN_S", "IN_PROCESS", "Entry", "Settings", "entries", "load"]
