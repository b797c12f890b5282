"""The console in a real browser, on a real server."""

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from sandbox_sdk.protocol.models import CreateSessionRequest, Target
from sandbox_sdk.testing import FakeBackend
from sandbox_server.main import make_app
from sandbox_server.settings import load
from tests.browser import Browser, Page
from tests.console.conftest import run
from tests.server_process import ServerProcess, running, served
from tests.tenants import Fakes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

SCREEN = ".xterm-rows"
KEYS = ".xterm-helper-textarea"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def address(server: ServerProcess, *parts: str) -> str:
    return f"{server.url}/console/#/{'/'.join(parts)}"


async def enter(page: Page, text: str, selector: str) -> None:
    await page.type(text, selector)
    await page.press("Enter")


async def new_terminal(page: Page, server: ServerProcess, session_id: str) -> None:
    await page.open(address(server, "session", session_id, "terminal"))
    await page.click_text("New terminal")
    await page.until("document.querySelector('[data-link=open]') !== null")


# The list


async def test_sessions_come_and_go_in_the_list(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    await page.open(f"{server.url}/console")
    await page.until_shows("Live", ".connection")
    await run(http, "list-one", "true")
    await page.until_shows("list-one", ".table")
    await run(http, "list-two", "true")
    await page.until_shows("list-two", ".table")
    # What a box uses is told for rows that are seen.
    await page.until("/MiB|KiB/.test(document.querySelector('.rows').innerText)")
    await http.post("/cleanup", json={"thread_id": "list-two"})
    await page.until("!document.querySelector('.table').innerText.includes('list-two')")


async def test_the_keyboard_alone(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    session_id = await run(http, "keyboard-wanted", "true")
    await run(http, "keyboard-other", "true")
    await page.open(address(server, "sessions"))
    await page.until_shows("keyboard-other", ".table")
    await page.press("/")
    await page.type("keyboard-wanted bubblewrap")
    await page.until("document.querySelectorAll('.rows .row').length === 1")
    await page.press("Enter")  # Leaves the search for the first row.
    await page.until("document.activeElement?.textContent === 'keyboard-wanted'")
    await page.press("Enter")
    await page.until_shows("No terminal is open in this session.")
    await page.press("c")
    await page.until(f"location.hash === '#/session/{session_id}/commands'")
    await page.press("?")
    await page.until_shows("next and previous session", "dialog")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")
    await page.press("Escape")
    await page.until("document.querySelectorAll('.rows .row').length >= 2")
    # Two keys at once, faster than the page is drawn.
    pressed = "dispatchEvent(new KeyboardEvent('keydown', { key: 'j' }))"
    await page.evaluate(f"{pressed}; {pressed}")
    chosen = "document.activeElement === document.querySelectorAll('.rows .row a')[{place}]"
    await page.until(chosen.format(place=1))
    await page.press("k")
    await page.until(chosen.format(place=0))


async def test_a_session_is_ended_after_a_question(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    session_id = await run(http, "to-end", "true")
    await page.open(address(server, "session", session_id))
    await page.click_text("End")
    await page.until_shows("End this session?", "dialog")
    await page.click_text("Cancel")
    await page.until("document.querySelector('dialog') === null")
    assert (await http.get("/session", params={"session_id": session_id})).status_code == 200
    await page.click_text("End")
    await page.click_text("End it")
    await page.until("location.hash === '#/sessions'")
    assert (await http.get("/session", params={"session_id": session_id})).status_code == 404
    await page.open(address(server, "session", session_id))
    await page.until_shows("This session has ended.")
    await page.click_text("What is remembered of it")
    await page.until_shows("true", ".log")


CANCEL_AND_ASK_AGAIN = """(async () => {
    const buttons = () => [...document.querySelectorAll('button')];
    const button = text => buttons().find(each => each.innerText.trim() === text);
    button('Cancel').click();
    while (document.querySelector('dialog')) await null;
    button('Go back').click();
    for (let n = 0; n < 5; n++) await new Promise(done => setTimeout(done, 20));
    return document.querySelector('dialog h2')?.innerText;
})()"""
"""Asked again before the browser has told that the first dialog is closed."""


async def test_checkpoints(server: ServerProcess, http: httpx.AsyncClient, page: Page) -> None:
    session_id = await run(http, "checkpoints", "echo 1 > a")
    await page.open(address(server, "session", session_id))
    await page.until_shows("No terminal is open in this session.")
    await page.press("p")
    await page.until_shows("No checkpoint.")
    await enter(page, HOSTILE, "input[aria-label='Name of the checkpoint']")
    await page.until_shows(HOSTILE, ".list")
    await run(http, "checkpoints", "echo 2 > a")
    await page.click_text("Take a checkpoint")
    await page.until("document.querySelectorAll('.list-item').length === 2")
    await page.click_text("Delete")  # The newest, which comes first.
    await page.until_shows("Delete this checkpoint?", "dialog")
    await page.click_text("Delete it")
    await page.until("document.querySelectorAll('.list-item').length === 1")

    await page.click_text("Go back")
    await page.click_text("Cancel")
    await page.until("document.querySelector('dialog') === null")
    await page.click_text("Go back")
    await page.until_shows("Go back to this checkpoint?", "dialog")
    assert await page.evaluate(CANCEL_AND_ASK_AGAIN) == "Go back to this checkpoint?"
    await page.click_text("Go back to it")
    await page.until(f"location.hash !== '#/session/{session_id}/checkpoints'")
    await page.until_shows(HOSTILE, ".list")
    back = await http.post("/execute", json={"thread_id": "checkpoints", "command": "cat a"})
    assert (back.json()["output"], back.json()["generation"]) == ("1\n", 2)

    await page.click_text("Fork")
    await page.until_shows("checkpoints.fork-", "h1")
    name = await page.evaluate("document.querySelector('h1').innerText")
    forked = await http.post("/execute", json={"thread_id": name, "command": "cat a"})
    assert forked.json()["output"] == "1\n"
    for thread in ("checkpoints", name):
        await http.post("/cleanup", json={"thread_id": thread})


# A terminal


async def test_a_terminal_and_a_second_tab_on_it(
    server: ServerProcess, http: httpx.AsyncClient, page: Page, browser: Browser
) -> None:
    session_id = await run(http, "terminal", "cd /tmp; word=carried")
    await new_terminal(page, server, session_id)
    await enter(page, "echo $((40+2)) $word $PWD", KEYS)
    await page.until_shows("42 carried /tmp", SCREEN)
    await enter(page, "stty size", KEYS)
    rows = await page.evaluate(f"document.querySelector('{SCREEN}').children.length")
    await page.until_shows(f"{rows} ", SCREEN)
    # Keys that are no text reach what runs: Ctrl-C ends sleep.
    await enter(page, "sleep 1000; echo ended=$?", KEYS)
    await page.until_shows("echo ended=", SCREEN)
    await page.press("c", control=True)
    await page.until_shows("^C", SCREEN)

    second = await browser.tab()
    await second.look(width=900, height=600)
    await second.open(await page.evaluate("location.href"))
    await second.until_shows("42 carried /tmp", SCREEN)
    await enter(second, "echo from the second", KEYS)
    await page.until_shows("\nfrom the second", SCREEN)
    await enter(page, "echo from the first", KEYS)
    await second.until_shows("\nfrom the first", SCREEN)
    await enter(second, "exit 3", KEYS)
    for tab in (page, second):
        await tab.until_shows("The terminal has ended with exit code 3.")
    assert second.complaints == []


async def test_a_terminal_that_is_flooded(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    session_id = await run(http, "flood", "true")
    await new_terminal(page, server, session_id)
    await enter(page, "yes abcdefghij | head -c 12000000; echo the-$((1+1))nd-line", KEYS)
    await page.until_shows("the-2nd-line", SCREEN)


async def test_what_a_terminal_asked_is_not_answered_again(
    server: ServerProcess, http: httpx.AsyncClient, page: Page, browser: Browser
) -> None:
    session_id = await run(http, "asks", "true")
    await new_terminal(page, server, session_id)
    # Asks for the position of the cursor, and reads the answer.
    ask = r"printf '\033[6n'; IFS=R read -rs -d R -t 5 at; echo asked=${at#*[}"
    await enter(page, ask, KEYS)
    await page.until("/asked=\\d+;\\d+/.test(document.querySelector('.xterm-rows').innerText)")
    second = await browser.tab()
    await second.open(await page.evaluate("location.href"))
    await second.until_shows("asked=", SCREEN)
    await enter(second, "echo still fine", KEYS)
    await second.until_shows("\nstill fine", SCREEN)
    text = await second.evaluate(f"document.querySelector('{SCREEN}').innerText")
    assert "not found" not in text


# Commands


async def test_commands_are_run_watched_and_killed(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    session_id = await run(http, "commands", "echo before; exit 3")
    await page.open(address(server, "session", session_id, "commands"))
    await page.until_shows("echo before; exit 3", ".list")
    await page.until_shows("exit 3", ".list .pill-bad")
    # The policy is asked while the command is written, and nothing runs.
    await page.type("rm -rf /", "#command")
    await page.until_shows("rejected", ".run-about")
    await page.press("Enter")
    await page.until_shows("rule remove-root rejects", ".run-about")
    await page.evaluate("document.querySelector('#command').select()")
    await page.type("echo first; until [ -e go ]; do sleep 0.05; done; echo second", "#command")
    await page.until_shows("allowed", ".run-about")
    await page.press("Enter")
    await page.until_shows("first", ".output pre")
    await page.until_shows("Running…", ".output-end")
    await run(http, "commands", "touch go")
    await page.until_shows("second", ".output pre")
    await page.until_shows("Exit code 0", ".output-end")
    # One that somebody else has started is seen with its text, and killed.
    started = {"thread_id": "commands", "command": "echo endless; sleep 1000", "background": True}
    await http.post("/execute", json=started)
    await page.until_shows("echo endless; sleep 1000", ".list")
    await page.click(".list .list-item")
    await page.until_shows("endless", ".output pre")
    await page.click_text("Kill")
    await page.until_shows("Exit code 137", ".output-end")


async def test_hostile_output_is_text(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    title = r"\033]0;owned\007\033]52;c;b3duZWQ=\007\033]8;;javascript:alert(1)\007link\033]8;;\007"
    command = f"printf '%s\\n' {json.dumps(HOSTILE)}; printf '{title}\\033[2J\\033[?1049h\\n'"
    session_id = await run(http, "hostile", f"{command}; head -c 1000000 /dev/zero | tr '\\0' x")
    await page.open(address(server, "session", session_id, "commands"))
    await page.click(".list .list-item")
    await page.until_shows("Exit code 0", ".output-end")
    await page.until_shows("characters are not shown here", ".output")
    await run(http, "hostile", command)
    await page.until("document.querySelectorAll('.list .list-item').length === 2")
    await page.click(".list .list-item")
    await page.until_shows(HOSTILE, ".output pre")
    await page.until_shows("link", ".output pre")
    # In a terminal too, with a line of a megabyte.
    await new_terminal(page, server, session_id)
    await enter(page, f"{command}; printf '\\033[?1049l'", KEYS)
    await enter(page, "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo out-$((6*7))", KEYS)
    await page.until_shows("out-42", SCREEN)
    assert await page.evaluate("document.title") == "Sandboxes"
    assert await page.evaluate("document.querySelectorAll('script, img').length") == 1
    assert all(url.startswith(server.url) for url in page.requested), page.requested


# Files


async def test_files_go_in_and_out(
    server: ServerProcess, http: httpx.AsyncClient, page: Page, tmp_path: Path
) -> None:
    session_id = await run(http, "files", "mkdir -p data; echo deep > data/note.txt")
    await page.downloads_to(tmp_path)
    await page.open(address(server, "session", session_id, "files"))
    picked = tmp_path / "picked.bin"
    picked.write_bytes(bytes(range(256)) * 500)
    await page.choose_files("#upload", picked)
    await page.until_shows("picked.bin is uploaded.")
    # Dropped, as a person does with the mouse.
    await page.evaluate("""{
        const files = new DataTransfer();
        files.items.add(new File(['name,count\\n"a, b",2\\n'], 'dropped.csv'));
        document.querySelector('.files-panel').dispatchEvent(
            new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));
    }""")
    await page.until_shows("dropped.csv is uploaded.")
    await page.until_shows("dropped.csv", ".list")
    await page.click_text("dropped.csv", ".file-name")
    await page.until("document.querySelector('.csv td')?.innerText === 'a, b'")

    picked.unlink()
    await page.click("[aria-label='Download picked.bin']")
    async with asyncio.timeout(30):
        while not picked.exists():
            await asyncio.sleep(0.05)
    assert picked.read_bytes() == bytes(range(256)) * 500

    await page.click_text("data/", ".file-name")
    await page.click_text("note.txt", ".file-name")
    await page.until_shows("deep", ".preview pre")


async def test_previews_of_pictures_and_pages(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    dot = (
        "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8Dwn4GBgYmBgYGBAQAKBgIB"
        "2x8bKwAAAABJRU5ErkJggg=="
    )
    vector = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"'
        " onload=\"parent.document.title='owned'\"><script>alert(1)</script></svg>"
    )
    pdf, drawing = (base64.b64encode(each).decode() for each in (_pdf("hello"), vector.encode()))
    session_id = await run(
        http,
        "previews",
        f"echo {dot} | base64 -d > dot.png; echo {drawing} | base64 -d > drawing.svg;"
        f" echo {pdf} | base64 -d > page.pdf;"
        f" printf '%s' {json.dumps(HOSTILE)} > page.html; head -c 100 /dev/urandom > noise;"
        " head -c 3000000 /dev/zero > large.txt;"
        " touch $'\\e[31mred\\n<b>bold\\u202egnp.exe'",
    )
    await page.open(address(server, "session", session_id, "files"))
    await page.click_text("drawing.svg", ".file-name")
    await page.until("document.querySelector('.preview img')?.naturalWidth === 9")
    await page.click_text("page.html", ".file-name")
    await page.until_shows(HOSTILE, ".preview pre")
    await page.click_text("noise", ".file-name")
    await page.until_shows("It is not text", ".preview")
    await page.click_text("large.txt", ".file-name")
    await page.until_shows("up to 2.0 MiB are shown", ".preview")
    await page.click_text("page.pdf", ".file-name")
    await page.until("document.querySelector('.preview iframe') !== null")
    assert await page.evaluate("document.title") == "Sandboxes"
    assert "U+202E" in await page.evaluate("document.querySelector('.list').innerText")
    assert await page.evaluate("document.querySelectorAll('.list b').length") == 0


def _pdf(text: str) -> bytes:
    content = f"BT /F1 24 Tf 20 100 Td ({text}) Tj ET".encode()
    parts = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R"
        b"/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
    ]
    body = b"".join(b"%d 0 obj%s endobj\n" % each for each in enumerate(parts, start=1))
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n%%EOF\n"


# Policy and history


async def test_the_policy_page_shows_the_parts_of_a_command(
    server: ServerProcess, page: Page
) -> None:
    await page.open(address(server, "policy"))
    await page.type("echo hi && sudo rm -rf / | cat", "#judged")
    await page.until_shows("rejected", "main")
    assert await page.evaluate("document.querySelector('mark').innerText") == "sudo rm -rf /"
    assert await page.evaluate("document.querySelectorAll('.parts li').length") == 4
    assert await page.evaluate("document.querySelector('.part-bad').innerText") == (
        "rm -rf / run by sudo"
    )


async def test_the_history_has_ended_sessions(
    server: ServerProcess, http: httpx.AsyncClient, page: Page
) -> None:
    await run(http, "was-here", "echo remembered-output")
    await http.post("/cleanup", json={"thread_id": "was-here"})
    await page.open(address(server, "history"))
    await page.type("remembered-output", ".search")
    await page.until("document.querySelectorAll('.list li').length === 1")
    await page.until_shows("cleaned", ".list")
    await page.click(".list a")
    await page.click(".log summary")
    await page.until_shows("remembered-output", ".log pre")


# The server goes


async def test_a_server_that_is_lost_and_comes_back(
    real_parts: None, state_dir: Path, page: Page
) -> None:
    async with running("bubblewrap", state_dir) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            session_id = await run(http, "stays", "true")
            await new_terminal(page, server, session_id)
            await enter(page, "word=kept; echo ready", KEYS)
            await page.until_shows("\nready", SCREEN)
            await server.stop()
            await page.until_shows("The connection to the server is lost.", "body")
            await page.until("document.querySelector('[data-link=lost]') !== null")
            await server.start()
            await server.ready()
        await page.until("document.querySelector('[data-link=open]') !== null")
        await page.until_shows("Live", ".connection")
        await enter(page, "echo the word is $word", KEYS)
        await page.until_shows("the word is kept", SCREEN)
        text = await page.evaluate(f"document.querySelector('{SCREEN}').innerText")
        assert text.count("\nready") == 1, "nothing is shown twice"
    page.complaints.clear()  # The browser tells of every attempt that failed.


async def test_signing_in(real_parts: None, state_dir: Path, page: Page, browser: Browser) -> None:
    keys = {"acme": "schlüssel-eins", "globex": "key-two"}
    told = ",".join(f"{tenant}:{key}" for tenant, key in keys.items())
    async with running("bubblewrap", state_dir, SANDBOX_API_KEYS=told) as server:
        await server.ready()
        own = [(b"X-API-Key", keys["acme"].encode())]
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=own) as http:
            session_id = await run(http, "of-acme", "true")
        await page.open(address(server, "sessions"))
        await enter(page, "wrong", "#key")
        await page.until_shows("does not know the API key")
        await page.evaluate("document.querySelector('#key').select()")
        await enter(page, keys["acme"], "#key")
        await page.until_shows("of-acme", ".table")
        await new_terminal(page, server, session_id)
        await enter(page, "echo signed $((1+1))", KEYS)
        await page.until_shows("signed 2", SCREEN)
        # The key is of this tab alone, and a tenant sees its own.
        other = await browser.tab()
        await other.open(address(server, "sessions"))
        await enter(other, keys["globex"], "#key")
        await other.until_shows("No session is live.")
        await page.click_text("Sign out")
        await page.until("document.querySelector('#key') !== null")
        assert await page.evaluate("sessionStorage.length") == 0


# Reading aloud


async def test_everything_has_a_name_for_a_screen_reader(
    server: ServerProcess, http: httpx.AsyncClient, page: Page, subtests: pytest.Subtests
) -> None:
    session_id = await run(http, "aloud", "echo x > file.txt")
    places = ("sessions", "fleet", "policy", "history", f"history/{session_id}")
    tabs = ("terminal", "commands", "files", "artifacts")
    await page.open(address(server, "sessions"))
    await page.until_shows("aloud", ".table")
    for place in (*places, *(f"session/{session_id}/{tab}" for tab in tabs)):
        with subtests.test(place):
            await page.evaluate(f"location.hash = '#/{place}'")
            await page.until("document.querySelector('main section') !== null")
            await page.until("!document.querySelector('main').innerText.includes('Loading')")
            nodes = (await page.command("Accessibility.getFullAXTree"))["nodes"]
            roles = {node["role"]["value"] for node in nodes if "role" in node}
            assert {"main", "navigation", "banner"} <= roles
            acting = {"button", "link", "textbox", "searchbox", "combobox", "tab", "image"}
            for node in nodes:
                if node.get("role", {}).get("value") in acting and not node["ignored"]:
                    assert node.get("name", {}).get("value"), node


# Many


async def test_a_thousand_sessions(page: Page, browser: Browser) -> None:
    """Only what is on the screen is in the page, and is asked for."""
    fake = FakeBackend(capacity=1000)
    threads = [f"conv-{number:04}" for number in range(1000)]
    for thread in threads:
        await fake.create_session(CreateSessionRequest(thread_id=thread))
    async with served(make_app(Fakes(fake), load())) as url, AsyncExitStack() as stack:
        stack.push_async_callback(browser.close_tabs)  # The server waits for its streams.
        await page.open(f"{url}/console/")
        await page.until_shows("1000", ".bar .muted")
        await page.until("document.querySelectorAll('.rows .row').length > 10")
        assert await page.evaluate("document.querySelectorAll('.rows .row').length") < 60
        await page.type("conv-07", ".search")
        await page.until_shows("100 of 1000", ".bar .muted")
        await page.click_text("Thread")
        await page.until_shows("conv-0700", ".rows")
        await page.evaluate("document.querySelector('.rows').scrollTop = 1e6")
        await page.until_shows("conv-0799", ".rows")
        await fake.cleanup(Target(thread_id="conv-0799"))
        await page.until_shows("99 of 999", ".bar .muted")
        asked = [each for each in page.requested if "/session?" in each]
        assert len(asked) < 200, "not one for each session"
