"""Which tests of the contract are not run on boxes at E2B, and why. All others are; that what such
boxes lack is refused is in test_e2b_refusals.py."""

from importlib.util import find_spec

import pytest

_USER = "the user is the template's, not sandboxuser"
_LIMITS = "limits are those of the template, and a session that asks for others is refused"
_LATER = "that a box is gone shows with the next call, not by a link that ends"
WHY = {
    "test_checkpoints": "lacks tree",
    "test_undo": "lacks tree, and the disks of these boxes are not here",
    "test_volumes": "volumes are on disks of this machine",
    "test_code": "lacks code",
    "test_connections": "lacks tunnel",
    "test_previews": "lacks tunnel",
    "test_terminals": "lacks pty",
    "test_agents::test_a_session_that_begins_by_itself_is_as_the_lost_one_was": _LIMITS,
    "test_background::test_a_result_outlives_the_link_it_was_asked_over": "is about wardens",
    "test_background::test_input_waits_for_a_command_that_does_not_read": "is about wardens",
    "test_file_operations::test_a_watch": "lacks watch",
    "test_file_operations::test_being_watched_is_no_use": "lacks watch",
    "test_file_operations::test_a_client_iterates_until_the_sandbox_is_lost": "lacks watch",
    "test_file_operations::test_looking_at_a_file": _USER,
    "test_files::test_a_full_disk_is_told": _LIMITS,
    "test_lifetimes::test_a_lifetime_may_end_in_a_pause": "lacks pause",
    "test_lifetimes::test_a_paused_session_can_end": "lacks pause",
    "test_lifetimes::test_a_paused_session_stands_still_until_it_is_used": "lacks pause",
    "test_lifetimes::test_files_and_input_wake_a_session": "lacks pause",
    "test_lifetimes::test_time_limits_stand_still_too": "lacks pause",
    "test_mounts::test_a_lost_box_removes_nothing_here": _LATER,
    "test_mounts::test_a_whole_workspace_and_large_folders": "a folder is sent by GNU tar",
    "test_mounts::test_there_and_back": _USER,
    "test_sandboxes::test_a_session_has_the_limits_it_asks_for": _LIMITS,
    "test_sandboxes::test_file_errors": "a listing there has no pipes",
    "test_sandboxes::test_limits_of_a_session_hold_in_its_box": _LIMITS,
    "test_sandboxes::test_more_than_the_maximum_is_refused_and_the_maximum_named": _LIMITS,
    "test_state::test_it_is_the_user_promised_in_the_workspace": _USER,
}
"""By module, or module and test."""

AGENT_MODULES = {"test_commands", "test_state", "test_files"}
"""Of those about boxes themselves, the ones that are not about wardens."""


def on_e2b(metafunc: pytest.Metafunc, runtimes: list[str]) -> bool:
    """Whether a test is run on e2b, too: where bubblewrap boxes can be behind its door."""
    if "bubblewrap" not in runtimes or find_spec("e2b") is None:
        return False
    module = metafunc.module.__name__.rpartition(".")[2]
    test = metafunc.function.__name__
    if "way" not in metafunc.fixturenames and module not in AGENT_MODULES:
        return False
    return module not in WHY and f"{module}::{test}" not in WHY
