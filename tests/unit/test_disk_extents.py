"""How much of a clone is its own."""

from sandbox_server.runtime.disk_reading import Extent, _shared


def test_what_is_shared_may_be_cut_differently() -> None:
    one = [Extent(0, 100, 1000), Extent(200, 300, 5000)]
    assert _shared(one, one) == 200
    cut = [Extent(0, 40, 1000), Extent(40, 100, 1040), Extent(200, 300, 5000)]
    assert _shared(one, cut) == _shared(cut, one) == 200
    moved = [Extent(0, 40, 1000), Extent(40, 100, 7000)]
    assert _shared(one, moved) == _shared(moved, one) == 40
    assert _shared(one, []) == _shared([], one) == 0
    assert _shared([Extent(50, 60, 1050)], one) == 10
