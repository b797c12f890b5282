"""A program with some version of e2b's SDK, which is first in PYTHONPATH: the two addresses and the
key are in the environment, as for its users. Prints its version."""

import importlib.metadata

from e2b import CommandExitException, NotFoundException, Sandbox

box = Sandbox.create(timeout=120, metadata={"made": "by smoke.py"})
try:
    assert box.is_running()
    assert box.commands.run("echo hi; echo $A", envs={"A": "1"}).stdout == "hi\n1\n"
    codes = []
    try:
        box.commands.run("exit 3")
    except CommandExitException as failed:
        codes.append(failed.exit_code)
    assert codes == [3]
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "typed")
    assert [each.pid for each in box.commands.list()] == [handle.pid]
    assert handle.kill()
    box.files.write("a/b.txt", "text")
    assert box.files.read("a/b.txt") == "text"
    assert [each.name for each in box.files.list("a")] == ["b.txt"]
    assert box.files.exists("a")
    assert not box.files.exists("b")
    box.files.rename("a/b.txt", "c.txt")
    box.files.remove("a")
    watch = box.files.watch_dir(".")
    box.files.make_dir("d")
    assert "d" in [each.name for each in watch.get_new_events()]
    watch.stop()
    box.set_timeout(200)
    assert box.get_info().metadata == {"made": "by smoke.py"}
    found = Sandbox.list().next_items()
    assert box.sandbox_id in [each.sandbox_id for each in found]
    again = Sandbox.connect(box.sandbox_id)
    assert again.files.read("c.txt") == "text"
    try:
        box.files.read("missing")
    except NotFoundException:
        codes.append(404)
    assert codes == [3, 404]
finally:
    assert box.kill()
assert not box.is_running()
print(importlib.metadata.version("e2b"))
