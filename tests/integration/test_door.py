"""A process of a box cannot take the place of a relay, not even under a number that became one's.

Numbers of processes come back after all others were used; here root sets the counter instead.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import aiodocker
import pytest

from sandbox_server.runtime.docker.config import container_name
from sandbox_server.runtime.docker.runtime import DockerBox
from sandbox_server.runtime.warden import WardenClient

from . import test_netns_stream
from .test_netns_stream import box, pid_of

__all__ = ["box"]

pytestmark = test_netns_stream.pytestmark

INTRUDER = r"""
import array, os, select, socket, struct, sys, time

def until(name):
    while not os.path.exists("/tmp/" + name): time.sleep(0.01)

def tell(name, text):
    with open("/tmp/new", "w") as file: file.write(text)
    os.rename("/tmp/new", "/tmp/" + name)

def number_of_dead(act):
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    os.waitpid(pid, 0)
    return str(pid)

def hand_over(answer):
    fds = array.array("i", [for_warden, from_warden])
    sock.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

for_warden, hello = os.pipe()
reply, from_warden = os.pipe()
sock = socket.socket(socket.AF_UNIX)
tell("up", "")
until("stopped")
tell("connected", number_of_dead(lambda: sock.connect("\0sandbox-warden")))
until("taken")
challenge = sock.recv(16) if select.select([sock], [], [], 2)[0] else b"\0"
if sys.argv[1] == "holder":
    hand_over(challenge)
else:
    tell("challenged", "")
    until("stopped-again")
    tell("answered", number_of_dead(lambda: hand_over(challenge)))
    until("taken-again")
os.close(for_warden)
os.close(from_warden)
body = b'{"version": 1, "epoch": 99}'
try: os.write(hello, struct.pack("!IBI", len(body), 1, 1) + body)
except BrokenPipeError: pass
print(os.read(reply, 1000))
"""


class Outside:
    """What whoever runs the box's engine can do to it."""

    def __init__(self, box: DockerBox, pid: int, docker: aiodocker.Docker) -> None:
        self._pid = pid
        self._container = docker.containers.container(container_name(box.id))

    async def take_over(self, *, after: str, stopped: str, dead: str, taken: str) -> None:
        """While the warden does not look, give the number of a dead intruder to a new process."""
        await self.wait_for(after)
        os.kill(self._pid, signal.SIGSTOP)
        await self.tell(stopped)
        await self.start_as(await self.wait_for(dead))
        os.kill(self._pid, signal.SIGCONT)
        await self.tell(taken)

    async def run(self, *command: str) -> str:
        made = await self._container.exec(list(command))
        async with made.start() as stream:
            said = []
            while (message := await stream.read_out()) is not None:
                said.append(message.data.decode())
        return "".join(said)

    async def wait_for(self, name: str) -> str:
        loop = f"until [ -e /tmp/{name} ]; do sleep 0.02; done; cat /tmp/{name}"
        async with asyncio.timeout(30):
            return await self.run("sh", "-c", loop)

    async def tell(self, name: str) -> None:
        await self.run("touch", f"/tmp/{name}")

    async def start_as(self, number: str) -> None:
        """Start a process that has no parent in the box, under the number of one that is dead."""
        last = f"echo {int(number) - 1} >/proc/sys/kernel/ns_last_pid"
        nsenter = ("nsenter", "-t", str(self._pid), "-p", "sh", "-c", last)
        assert await (await asyncio.create_subprocess_exec(*nsenter)).wait() == 0
        made = await self._container.exec(["sleep", "60"])
        await made.start(detach=True)
        about = await self.run("sh", "-c", f"until cat /proc/{number}/stat; do :; done 2>/dev/null")
        assert about.split()[1:4:2] == ["(sleep)", "0"]


@pytest.fixture
async def outside(box: DockerBox) -> AsyncIterator[Outside]:
    pid, _ = await pid_of(box)
    async with aiodocker.Docker() as docker:
        yield Outside(box, pid, docker)


@pytest.mark.parametrize("sender", ["holder", "one that dies"])
async def test_a_number_that_became_a_relays_opens_no_door(
    box: DockerBox, outside: Outside, sender: str
) -> None:
    """Whoever holds the connection answers itself, or has it done by a process whose number is
    then a relay's as well."""
    async with WardenClient(box) as warden:
        program = f"python3 - '{sender}'"
        intruding = asyncio.create_task(warden.run(program, stdin=INTRUDER.encode(), timeout_s=60))
        await outside.take_over(after="up", stopped="stopped", dead="connected", taken="taken")
        if sender != "holder":
            await outside.take_over(
                after="challenged", stopped="stopped-again", dead="answered", taken="taken-again"
            )
        assert (await intruding).output == "b''\n"
        assert (await warden.state()).epoch == 1
