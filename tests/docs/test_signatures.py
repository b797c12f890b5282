"""API_REFERENCE.md has the signatures of the SDK as they are."""

from scripts import signatures


def test_the_reference_has_the_signatures_of_today() -> None:
    reference = signatures.REFERENCE.read_text()
    assert reference == signatures.written(reference), "run `python scripts/signatures.py`"
    assert ".execute(command: str, *, check: bool = False" in reference
