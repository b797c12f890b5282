"""How many shells a box has. In a process of its own: it forks nurseries."""

import json
import subprocess
import sys
from pathlib import Path

import sandbox_warden

PROGRAM = """
import json, os, socket, sys, time
from sandbox_warden import commands, state
from sandbox_warden.loop import Loop
from sandbox_warden.meter import Meter

commands.REST_S, commands.OVERLAP_S = 0.3, 60
loop = Loop()
made = commands.Commands(loop, Meter({}, max_pids=0), open_files=0)
made.shells.prepare()
made.carrying.replace(state.ShellState(b"__sandbox_load / '' ''\\n__sandbox_loaded=all\\n", "/"))

def run(text):
    command = made.start(
        text, ident=text, key=None, digest="", timeout_s=None, cwd=None, env={}, stdin=False,
        stdin_open=False, output_limit=1000,
    )
    until(lambda: command.result is not None)
    assert command.result["exit_code"] == 0, command.result

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
print(json.dumps([short, long]))
"""


def test_a_second_shell_is_there_while_it_is_needed() -> None:
    source = str(Path(sandbox_warden.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [1, 2]
