"""What apt in a box is set up with, whose user is not root and can write few folders."""

from __future__ import annotations

from sandbox_server.runtime.base import HOME

_CONFIG = f"{HOME}/.apt.conf"
APT_ENV = {"APT_CONFIG": _CONFIG}
# apt makes folders itself that it lacks, below one that is there.
APT_FILES = {
    _CONFIG: """\
Dir::State "/workspace/";
Dir::State::lists ".cache/apt/lists/";
Dir::State::status "/var/lib/dpkg/status";
Dir::State::extended_states "/var/lib/apt/extended_states";
Dir::Cache "/workspace/";
Dir::Cache::archives ".cache/apt/archives/";
Dir::Cache::pkgcache ".cache/apt/pkgcache.bin";
Dir::Cache::srcpkgcache ".cache/apt/srcpkgcache.bin";
"""
}
