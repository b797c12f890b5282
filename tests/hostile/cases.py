"""What a sandbox for untrusted commands is judged by, and which tests show it.

`python -m tests.hostile` runs them and writes docs/security.md. A test is `file::name` below
tests/, or a whole file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    number: int
    title: str
    tests: tuple[str, ...]
    not_on: tuple[str, ...] = ()
    """The runtimes it cannot happen on."""


_RESOURCES = "hostile/test_resources.py::test_"
_PROCESSES = "hostile/test_processes.py::test_"
_KERNEL = "hostile/test_kernel.py::test_"
_NETWORK = "hostile/test_network.py::test_"
_EGRESS = "hostile/test_egress.py::test_"
_HOSTILE_FILES = "hostile/test_files.py::test_"
_RACES = "hostile/test_races.py::test_"
_COMMANDS = "contract/test_commands.py::test_"
_STATE = "contract/test_state.py::test_"
_FILES = "contract/test_files.py::test_"
_BOUNDS = "contract/test_file_bounds.py::test_"
_RECOVERY = "contract/test_recovery.py::test_"
_SANDBOXES = "contract/test_sandboxes.py::test_"
_ERRORS = "api/test_errors.py::test_"
_ACCESS = "api/test_access.py::test_"
_UPLOAD = "api/test_upload.py::test_"

CASES = (
    # Resources
    Case(1, "A fork bomb: the limit of processes stops it, its timeout ends it", (
        f"{_RESOURCES}a_fork_bomb_is_bounded_and_gone_at_its_timeout",
        f"{_RESOURCES}a_fork_bomb_in_the_background_leaves_the_session_alone",
        f"{_RESOURCES}threads_count_as_processes",
        f"{_RESOURCES}a_fork_bomb_without_a_limit_hurts_its_own_box_alone",
    )),
    Case(2, "Endless output: cut, told, and little memory of the server", (
        f"{_RESOURCES}endless_output_is_cut_and_told_and_costs_the_server_little",
    )),
    Case(3, "A memory hog: exit code 137, reason `oom`, the warden survives", (
        f"{_RESOURCES}a_memory_hog_is_killed_and_told",
        f"{_RESOURCES}memory_that_outlives_its_process_leaves_the_session_alone",
        f"{_RESOURCES}a_memory_hog_takes_its_gvisor_box_along",
    )),
    Case(4, "A file of 10 GB: ENOSPC at the limit, the host's disk unchanged", (
        f"{_RESOURCES}a_large_file_ends_at_the_disk_limit",
    )),
    Case(5, "A million empty files: a cap of inodes", (
        f"{_RESOURCES}empty_files_are_counted", f"{_RESOURCES}empty_files_in_memory_are_counted",
    )),
    Case(6, "Eight spinners: the CPU limit and no more, the neighbour is fine", (
        f"{_RESOURCES}spinners_get_the_cpu_limit_and_no_more",
    )),
    Case(7, "/dev/shm and /tmp filled: bounded, charged to the box", (
        f"{_RESOURCES}files_in_memory_are_bounded_and_charged_to_the_box",
    )),
    Case(8, "A million open files: EMFILE", (f"{_RESOURCES}open_files_are_counted",)),
    Case(9, "Terminals, inotify, keyrings, descriptors in flight used up: others have their own", (
        f"{_RESOURCES}terminals_of_a_neighbour_are_its_own",
        f"{_RESOURCES}inotify_of_a_neighbour_is_its_own",
        f"{_RESOURCES}descriptors_in_flight_do_not_stop_a_neighbour",
        f"{_RESOURCES}descriptors_in_flight_do_not_stop_the_session",
        f"{_KERNEL}calls_that_reach_into_the_kernel_are_denied",
    )),
    Case(10, "A flood on the box's own stdout: no log grows", (
        f"{_RESOURCES}nothing_that_a_box_writes_ends_up_in_a_log",
    )),
    # Processes
    Case(11, "`kill -9 -1`, `kill -STOP 1`: the warden survives", (
        f"{_PROCESSES}no_signal_reaches_the_warden",
        f"{_PROCESSES}a_command_after_everything_was_killed_runs_once",
        f"{_PROCESSES}killing_the_warden_ends_its_gvisor_box_alone",
        f"{_RECOVERY}processes_of_the_box_killing_everything_they_can",
        f"{_RECOVERY}processes_of_the_box_stopping_everything_they_can",
    )),
    Case(12, "ptrace of PID 1, its descriptors, memory, environment: denied", (
        f"{_PROCESSES}the_warden_cannot_be_traced",
        f"{_PROCESSES}descriptors_of_the_warden_are_out_of_reach",
        f"{_PROCESSES}memory_of_the_gvisor_warden_is_out_of_reach",
        f"{_PROCESSES}a_box_cannot_speak_to_its_own_warden",
    )),
    Case(13, "A child in the background that holds stdout: the call returns at once", (
        f"{_COMMANDS}background_children_do_not_hold_the_call",
    )),
    Case(14, "setsid and a double fork: gone at the timeout", (
        f"{_COMMANDS}a_timeout_reaches_daemons",
    )),
    Case(15, "A process that ignores SIGTERM: SIGKILL", (f"{_COMMANDS}a_timeout_reaches_daemons",)),
    Case(16, "Reading stdin: its end at once", (f"{_COMMANDS}stdin_is_empty_unless_given",)),
    Case(17, "A timeout in the middle of output: the output so far, and the flag", (
        f"{_COMMANDS}a_timeout_ends_everything_and_keeps_the_output",
    )),
    Case(18, "A storm of zombies: reaped", (f"{_PROCESSES}zombies_are_reaped",)),
    Case(19, "`exit 7`, `exec false`, `kill $$`, `exec 1>&-`, traps: the exit code is right", (
        f"{_STATE}exit_codes_are_exact_and_the_session_goes_on",
    )),
    # Kernel
    Case(20, "mount, unshare, setns, pivot_root: denied", (
        f"{_KERNEL}calls_that_reach_into_the_kernel_are_denied",
        f"{_KERNEL}gvisor_answers_a_few_calls_in_its_own_kernel",
        f"{_KERNEL}tools_for_more_power_fail",
    )),
    Case(21, "keyctl, bpf, perf_event_open, userfaultfd, io_uring: denied", (
        f"{_KERNEL}calls_that_reach_into_the_kernel_are_denied",
        f"{_KERNEL}gvisor_answers_a_few_calls_in_its_own_kernel",
    )),
    Case(22, "/proc/sys, core_pattern, sysrq, release_agent: cannot be written", (
        f"{_KERNEL}settings_of_the_kernel_cannot_be_written",
    )),
    Case(23, "Sockets of engines, the file system of the host: not there", (
        f"{_KERNEL}what_is_of_the_host_is_not_there",
    )),
    Case(24, "setuid programs gain nothing, and there are no capabilities", (
        f"{_KERNEL}there_is_no_power_to_gain",
    )),
    Case(25, "Devices, raw and packet sockets, AF_VSOCK: denied", (
        f"{_KERNEL}devices_cannot_be_made", f"{_KERNEL}devices_made_on_gvisor_lead_nowhere",
        f"{_KERNEL}sockets_of_odd_kinds_cannot_be_opened",
    )),
    Case(26, "/proc/kcore, /sys/firmware, /dev/mem and what tells of the machine: hidden", (
        f"{_KERNEL}windows_into_the_machine_are_closed", f"{_KERNEL}the_machine_is_not_described",
    )),
    Case(27, "Writing outside of /workspace, /tmp, /dev/shm and the home: read-only", (
        f"{_KERNEL}nothing_can_be_written_outside_of_the_writable_places",
        f"{_KERNEL}files_of_the_system_stay_as_they_are",
    )),
    # Network
    Case(28, "Metadata, gateways, ports of the host, other boxes: unreachable; no resolver", (
        f"{_NETWORK}there_is_only_the_loopback",
        f"{_NETWORK}metadata_gateways_and_the_internet_are_unreachable",
        f"{_NETWORK}ports_of_the_host_are_unreachable",
        f"{_NETWORK}sockets_of_the_host_are_unreachable",
        f"{_NETWORK}another_box_is_unreachable", f"{_NETWORK}there_is_no_resolver",
    )),
    # Files
    Case(29, "A link to /etc/shadow or /proc/1/environ, then a download: never the host's", (
        f"{_HOSTILE_FILES}the_wardens_own_entry_in_proc_is_never_read",
        f"{_HOSTILE_FILES}walking_through_proc_passes_the_warden_by",
        f"{_HOSTILE_FILES}a_link_to_the_wardens_entry_swapped_in_meanwhile",
        f"{_HOSTILE_FILES}the_warden_may_read_no_more_than_the_user",
    )),
    Case(30, "Writing to `../../etc/x`, absolute paths; NUL, 5,000 characters, no UTF-8: refused", (
        f"{_FILES}outside_the_writable_places_nothing_is_written",
        f"{_FILES}a_swapped_link_is_never_written_through",
        f"{_FILES}names_that_are_not_text_do_not_break_a_listing",
        "contract/test_races.py::test_paths_that_are_not_text",
    )),
    Case(31, "Download of a FIFO, a device, /proc/kmsg: refused at once", (
        f"{_FILES}what_is_not_a_file_is_refused_at_once",
        f"{_HOSTILE_FILES}devices_and_kernel_files_are_refused_at_once",
    )),
    Case(32, "An upload too large or cut off: nothing is stored", (
        f"{_UPLOAD}too_large_is_not_stored", f"{_UPLOAD}cut_off_half_way_stores_nothing",
        f"{_FILES}too_large_is_refused_and_leaves_nothing",
        f"{_FILES}an_upload_cut_off_leaves_nothing",
    )),
    # API and tenants
    Case(33, "thread_id with `../`, CRLF, `*`, `{}`, 10 KB, look-alikes: 422", (
        f"{_ERRORS}bad_thread_ids",
    )),
    Case(34, "Escapes and newlines in names and commands: one escaped line in the log", (
        "integration/test_logs.py::test_nothing_that_callers_send_breaks_a_line",
        f"{_ACCESS}path_is_logged_escaped_and_short",
    )),
    Case(35, "A foreign thread: exactly the answer of a missing one", (
        f"{_ERRORS}foreign_session_is_a_missing_one", f"{_ACCESS}tenants_do_not_meet",
        "contract/test_background.py::test_sessions_of_others_do_not_show",
    )),
    Case(36, "API keys: hashed, compared in constant time, never logged", (
        f"{_ACCESS}keys_are_not_kept", f"{_ACCESS}bad_keys_are_not_shown",
        f"{_ACCESS}failure_is_logged_without_what_was_sent",
        "api/test_secrets.py::test_keys_are_compared_in_constant_time",
    )),
    Case(37, "Slow clients, huge bodies, deep JSON: 408, 413, 422; others are served", (
        f"{_ERRORS}slow_body_holds_nobody_up", f"{_ERRORS}huge_body", f"{_ERRORS}bad_json",
        "api/test_execute.py::test_reader_that_does_not_read_holds_nobody_up",
    )),
    Case(38, "Output that is no UTF-8, with NULs, a line of 50 MB: never a 500", (
        f"{_HOSTILE_FILES}output_of_any_kind_is_text", f"{_COMMANDS}a_line_of_fifty_megabytes",
        f"{_COMMANDS}bytes_that_are_not_text_are_replaced",
    )),
    # Races and faults
    Case(39, "50 creates of one thread at once: one box", (
        f"{_SANDBOXES}fifty_concurrent_creates_make_one_box",
    )),
    Case(40, "execute against cleanup against expiry: never another thread's box", (
        "contract/test_races.py::test_execute_against_cleanup_against_expiry",
    )),
    Case(41, "Expiry while a command runs: does not happen", (
        f"{_SANDBOXES}a_running_command_keeps_its_session",
        "contract/test_background.py::test_a_session_does_not_expire_under_a_background_command",
    )),
    Case(42, "Nothing of a former user is in a box", (
        f"{_RACES}nothing_of_a_former_user_is_there_for_the_next",
        f"{_RACES}boxes_made_and_ended_at_once_do_not_mix",
    )),
    Case(43, "kill -9 of the server at any step: no leak, no lost session", (
        "chaos/test_server_killed.py", f"{_RECOVERY}adoption_after_the_server_was_killed",
        f"{_RECOVERY}a_cancelled_creation_leaves_nothing",
    )),
    Case(44, "Redis down: served until the lease ends, then 503; no two owners", (
        "fleet/test_failures.py::test_without_redis_known_threads_are_served_until_the_lease_ends",
        "fleet/test_lease.py::test_without_redis_it_serves_until_its_time_is_over",
        "fleet/test_lease.py::test_one_that_was_superseded_stops_for_good",
    )),
    Case(45, "The engine restarted in the middle of a command: its result, or `session_lost`", (
        "fleet/test_machines.py::test_an_engine_is_restarted_and_later_its_machine_dies",
    ), not_on=("bubblewrap",)),
    Case(46, "The wall clock set an hour back or forth: nothing expires early or lives on", (
        f"{_RACES}a_clock_that_jumps_ends_nothing_early",
        f"{_RACES}the_warden_never_asks_the_wall_clock",
        "contract/test_races.py::test_a_clock_that_jumps_moves_no_expiry",
    )),
    # Found by trying
    Case(47, "`sandbox cp` of hostile links, several times: nothing outside of its target", (
        "unit/test_unpack.py", "cli/test_copy.py",
    )),
    Case(48, "Commands and variables too large for a message: refused before they are sent", (
        "contract/test_large_requests.py", "contract/test_files_over_http.py",
    )),
    Case(49, "A chain of 1,500 links, any handler that fails: no warden ends by it", (
        f"{_BOUNDS}a_chain_of_links_is_followed_as_far_as_the_kernel_would",
        f"{_BOUNDS}links_of_every_shape",
        "unit/test_warden_failures.py", "unit/test_warden_loop.py",
    )),
    Case(50, "A child that holds the output of a shell that has ended: can be killed", (
        "contract/test_settling.py", "unit/test_warden_pipes.py",
    )),
    Case(51, "A kill in the middle of a fork, of a storm of forks: nothing is left", (
        "contract/test_kills.py",
    )),
    Case(52, "Functions and constants named as what the shell needs: told, or harmless", (
        "contract/test_poison.py",
    )),
    Case(53, "A folder that cannot be entered: the command does not run elsewhere", (
        "contract/test_poison.py::test_a_command_does_not_run_in_another_folder_than_asked",
        "contract/test_poison.py::test_a_folder_that_closes_as_the_command_starts",
    )),
    Case(54, "Huge listings: bounded on both sides, and what is left out is told", (
        f"{_BOUNDS}the_first_names_of_a_large_folder",
        f"{_BOUNDS}a_listing_of_long_paths_is_bounded",
        f"{_BOUNDS}what_is_too_deep_or_too_long_is_left_out_and_told",
        f"{_BOUNDS}a_command_runs_while_a_large_folder_is_listed",
        "unit/test_walk.py", "unit/test_remote_listing.py",
    )),
    Case(55, "Odd times, unreadable files, files that change while they are sent: told", (
        f"{_BOUNDS}times_beyond_the_calendar",
        f"{_BOUNDS}what_cannot_be_read_is_left_out_of_a_tar_and_told",
        f"{_BOUNDS}a_file_rewritten_while_it_is_sent_never_looks_whole",
    )),
    Case(56, "A box that says it is another, after a restart: not believed", (
        "integration/test_adoption.py", "unit/test_adoption.py",
    )),
    Case(57, "A hostile warden, lies in every field: typed errors, no growth, no stall", (
        "unit/test_hostile_warden.py", "contract/test_protocol.py",
    )),
    Case(58, "Sparse files larger than the disk, strangers at the warden's door: refused", (
        f"{_BOUNDS}a_file_cannot_be_larger_than_the_disk",
        f"{_HOSTILE_FILES}a_huge_sparse_file_cannot_be_made",
        "integration/test_netns_stream.py::test_a_process_that_is_not_the_containers_is_no_way",
        "integration/test_door.py",
    )),
    Case(59, "Escapes for terminals in what a box names: shown escaped", ("cli/test_escapes.py",)),
    Case(60, "Web pages of other sites, DNS rebinding: refused by a server without keys", (
        "api/test_origin.py",
    )),
    Case(61, "Half a header, idle connections: not waited for, and bounded", (
        "api/test_connections.py",
    )),
    Case(62, "What a server writes down: for its owner's eyes alone", (
        "integration/test_private.py",
    )),
    Case(63, "Commands made to be hard to judge: counted steps, little memory, no stall", (
        "unit/policy/test_effort.py", "unit/policy/test_random.py",
    )),
    Case(64, "Redis fails in the middle of vouching: done again, never two live sessions", (
        "fleet/test_vouching.py", "fleet/test_lease.py::test_a_vouch_that_fails_is_done_again",
        "fleet/test_lease.py::test_a_gap_is_made_good_though_redis_fails_as_it_is_noticed",
        "fleet/test_lease.py::test_one_that_was_away_stays_so_until_it_has_vouched",
    )),
    Case(65, "Sessions that live for weeks: not forgotten by Redis", (
        "fleet/test_registry.py::test_a_live_session_is_never_forgotten",
    )),
    Case(66, "One session that goes wrong: the watch over the others goes on", (
        "integration/test_worker.py",
    )),
    Case(67, "Redis comes and goes under load: nothing lost, doubled or left", (
        "chaos/test_redis.py", "fleet/test_outages.py", "fleet/test_uptime.py",
    )),
    Case(68, "Parts of another version side by side: no session lost", (
        "compat/test_upgrade.py", "unit/test_later_versions.py",
    )),
    Case(69, "Settings that cannot hold what they promise: refused at the start", (
        "integration/test_start.py",
    )),
    # The way out
    Case(70, "A name that changes its address, redirects inwards: the judged address alone", (
        f"{_EGRESS}a_name_that_changes_its_address",
        f"{_EGRESS}redirects_to_what_is_private",
    )),
    Case(71, "Host, TLS server name or URL that name another host: refused, and told", (
        f"{_EGRESS}a_host_header_that_says_another_name",
        f"{_EGRESS}a_server_name_that_says_another_name", f"{_EGRESS}a_handshake_that_is_none",
        f"{_EGRESS}users_and_passwords_in_a_url",
    )),
    Case(72, "Metadata and private addresses, mapped, decimal, octal, hex: refused", (
        f"{_EGRESS}addresses_in_every_spelling", "unit/network/test_addresses.py",
    )),
    Case(73, "Requests inside of requests, lines inside of headers: refused or written anew", (
        f"{_EGRESS}requests_inside_of_requests", f"{_EGRESS}lines_in_what_becomes_a_header",
    )),
    Case(74, "10,000 connections, slow readers, half requests: bounded, others are served", (
        f"{_EGRESS}ten_thousand_connections", f"{_EGRESS}whoever_does_not_read_holds_up_nobody",
        f"{_EGRESS}half_a_request_is_not_waited_for_for_ever",
    )),
    Case(75, "A header that the operator adds to requests: in no box, error or log", (
        f"{_EGRESS}a_secret_is_in_no_error_and_no_log",
        "contract/test_egress.py::test_a_secret_is_added_outside_of_the_box",
    )),
    # One request, one answer
    Case(76, "Requests that can be read in two ways, also behind proxies: refused, and the last", (
        "api/test_one_reading.py", "deploy/test_one_answer.py",
        "api/test_preview_hostile.py::test_requests_that_can_be_read_in_two_ways",
        f"{_EGRESS}a_tunnel_begins_behind_its_request",
    )),
    Case(77, "Files and output of every size: no frame too large, no byte more than granted", (
        "contract/test_sizes.py", "unit/test_channel_sizes.py", "unit/test_tree_sizes.py",
    )),
)  # fmt: skip


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = TESTS / file
    return path.is_file() and (not name or f"def {name}(" in path.read_text())
