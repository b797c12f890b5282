"""A shell that has just told the end of its command is still closing a descriptor."""

import os

from sandbox_warden import processes


def test_a_descriptor_that_closes_meanwhile_is_closed() -> None:
    """Listing one's own folder of descriptors opens one more, which is closed after that."""
    before = {int(name) for name in os.listdir("/proc/self/fd")}
    found = processes.descriptors(os.getpid())
    assert found.keys() < before
    assert found[0] == os.readlink("/proc/self/fd/0")
