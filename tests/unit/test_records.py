"""What a warden remembers is bounded, whatever has been run."""

import pytest

from sandbox_warden.command import KEPT_BYTES, KEPT_COMMANDS, SUMMARIES, Command, Records
from sandbox_warden.errors import Refused
from sandbox_warden.frames import MAX_PAYLOAD, REPLY, encode_json
from sandbox_warden.output import STDOUT, OutputLog


def finished(number: int, output: bytes) -> Command:
    command = Command(f"c{number}", "digest", OutputLog(1 << 20), 0.0)
    command.key = f"k{number}"
    command.log.append(STDOUT, output)
    command.result = {"exit_code": 0}
    return command


def filled(count: int, output: bytes) -> Records:
    known = Records()
    for number in range(count):
        command = finished(number, output)
        known.add(command)
        known.finished(command)
    return known


def test_results_are_kept_up_to_a_number() -> None:
    known = filled(KEPT_COMMANDS + 500, b"x")
    assert len(known._by_id) == KEPT_COMMANDS
    told, more = known.summaries()
    assert (len(told), more) == (SUMMARIES, True)
    assert len(known._with_output) == KEPT_COMMANDS
    assert known._kept_bytes == KEPT_COMMANDS
    assert known.known("c0", "k0", "digest") is None
    with pytest.raises(Refused, match="no command c0"):
        known.get("c0")


def test_what_runs_is_told_however_much_ended_since() -> None:
    known = Records()
    known.add(Command("running", "digest", OutputLog(1 << 20), 0.0))
    for number in range(SUMMARIES + 20):
        command = finished(number, b"x")
        known.add(command)
        known.finished(command)
    told = [summary["command_id"] for summary in known.summaries()[0]]
    assert told[:2] == ["running", "c21"]
    assert len(told) == SUMMARIES


def test_what_is_told_fits_into_a_frame() -> None:
    known = Records()
    for number in range(SUMMARIES):
        command = finished(number, b"x")
        command.key = "\x01" * 196 + f"{number:04}"
        known.add(command)
    told, more = known.summaries()
    assert (len(told), more) == (SUMMARIES, False)
    assert len(encode_json(REPLY, 1, {"commands": told})) < MAX_PAYLOAD - (64 << 10) - (16 << 10)


def test_outputs_are_kept_up_to_a_size_and_results_beyond() -> None:
    known = filled(20, bytes(1 << 20))
    assert known._kept_bytes <= KEPT_BYTES
    assert known.get("c0").log.retained == 0
    assert known.get("c0").log.truncated
    assert not known.get("c19").log.truncated


def test_a_key_belongs_to_one_command() -> None:
    known = filled(1, b"")
    assert known.known("other-id", "k0", "digest") is known.get("c0")
    with pytest.raises(Refused) as caught:
        known.known("other-id", "k0", "another digest")
    assert caught.value.code == "idempotency_mismatch"
