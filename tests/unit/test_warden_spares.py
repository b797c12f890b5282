"""How many shells a box has. In a process of its own: it forks nurseries."""

import json
import subprocess
import sys
from pathlib import Path

import sandbox_warden

PROGRAM = """
import errno, json
from sandbox_warden import carrying, commands, nursery_process, state
from sandbox_warden.loop import Loop
from sandbox_warden.meter import Meter
from sandbox_warden.output import OutputLog

commands.REST_S, commands.OVERLAP_S = 0.3, 60
commands.WORN = 3
loop = Loop()
made = commands.Commands(loop, Meter({}, max_pids=0), open_files=0)
made.shells.prepare()
made.carrying.replace(state.ShellState(b"__sandbox_load / '' ''\\n__sandbox_loaded=all\\n", "/"))

def run(text):
    command = made.start(
        text, ident=str(made.ran), key=None, digest="", timeout_s=None, cwd=None, env={},
        stdin=False, stdin_open=False, output_limit=1000,
    )
    until(lambda: command.result is not None)
    assert command.result["exit_code"] == 0, command.result
    return waiting()

def waiting():
    return made.carrying.waiting_shell and made.carrying.waiting_shell.pid

def until(true):
    while not true():
        loop.turn()

def shells():
    return len([each for each in made.shells._nurseries if each.alive])

def tick():
    loop.after(0.02, tick)  # Or a turn waits for what does not come.

tick()
run("true")
run("true")
short = shells()
commands.OVERLAP_S = 0.02
run("sleep 0.2")
long = shells()
until(lambda: shells() == 1)
run("exit 0")
until(lambda: made.shells._spares)

worn = [run("true") for _ in range(3)]
until(lambda: made.carrying.waiting_shell is None)
until(lambda: shells() == 1)
rested = run("true")

served = []
made.start_service("read", ident="bridge", env={}, log=OutputLog(10), on_end=served.append)
before = [run("true") for _ in range(3)]
until(lambda: made.carrying.waiting_shell is None)
beside = [before[-1], run("true"), len(served)]
made.shells.end_spares()

def refuse(*_more, **_options):
    raise BlockingIOError(errno.EAGAIN, "no process left")

spawn, nursery_process._spawn = nursery_process._spawn, refuse
made.shells.prepare()
made.carrying.renew(0)
refused = [waiting()]
until(lambda: not made.shells._spares)
made.carrying.renew(0)
refused.append(waiting())
nursery_process._spawn = spawn
made.shells.end_idle()
made.shells.prepare()
until(made.shells.have_spare)
made.carrying.renew(0)
refused += [waiting(), run("true")]

commands.REST_S, commands.NEXT_STARTS, carrying.NEXT_TAKES_OVER = 60, 3, 5
pids = [refused[-1], *(run("true") for _ in range(3))]
until(made.shells.have_spare)
pids += [run("true") for _ in range(4)]
print(json.dumps([short, long, [*worn, rested], beside, refused, pids]))
"""


def test_a_box_has_the_shells_that_it_needs() -> None:
    source = str(Path(sandbox_warden.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE, timeout=60, check=True,
    )  # fmt: skip
    short, long, worn, beside, refused, pids = json.loads(done.stdout)
    assert (short, long) == (1, 2)
    # After a rest there is a new shell instead of one with many commands.
    assert worn[0] == worn[1] == worn[2] != worn[3]
    # Also where a kernel waits for cells.
    worn_beside, rested_beside, ended = beside
    assert worn_beside != rested_beside
    assert not ended
    # None is ended for a spare one that may not start.
    assert refused[0] == refused[1] == rested_beside
    assert refused[2] is None
    assert refused[3] != rested_beside
    # The next shell takes over after five, and is there by then.
    assert pids[0] == pids[4] != pids[5] == pids[7]
