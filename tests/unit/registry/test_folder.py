"""Reading the registry: what files may say, and one line for everything that is wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sandbox_server.registry.entries import KINDS, RegistryError
from sandbox_server.registry.folder import BUILTIN, read_registry
from sandbox_server.registry.yaml_lines import MAX_BYTES

TOOL = "name: t\ndescription: d\n"
TEXT = "parameters:\n  properties:\n    a: {type: string}\n    n: {type: integer}\n"
BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def problems(folder: Path) -> list[str]:
    """What is wrong, with paths relative to the folder."""
    with pytest.raises(RegistryError) as caught:
        read_registry(folder)
    found = [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]
    assert all("\n" not in line for line in found)
    return found


BAD: dict[str, tuple[dict[str, str | bytes], str]] = {
    "a tab": ({"prompts/p.yaml": "name: p\ntext:\n\tx: y\n"}, "prompts/p.yaml:3: a tab: indent"),
    "not closed": ({"prompts/p.yaml": 'name: p\ntext: "x\n'}, "prompts/p.yaml:3: not YAML: while"),
    "two colons": ({"prompts/p.yaml": "name: p\ntext: a: b\n"}, "prompts/p.yaml:2: not YAML: map"),
    "unknown field": (
        {"agents/a.yaml": "name: a\ntool: [bash]\n"},
        'agents/a.yaml:2: no field "tool" (nearest: tools)',
    ),
    "unknown nested field": (
        {"environments/e.yaml": "name: e\nlimits:\n  cpus: 1\n  cpu: 2\n"},
        'environments/e.yaml:4: no field "limits.cpu"',
    ),
    "wrong type": (
        {"agents/a.yaml": "name: a\ntools: bash\n"},
        "agents/a.yaml:2: tools: should be a list, `[one, two]`",
    ),
    "a network that is none": (
        {"environments/e.yaml": "name: e\nnetwork: all\n"},
        "environments/e.yaml:2: network: Input should be 'none', 'allowlist', 'open' or 'bridge'",
    ),
    "hosts that nothing reaches": (
        {"environments/e.yaml": "name: e\nallow: [a.test]\n"},
        "environments/e.yaml:2: allow: has an effect with `network: allowlist` alone",
    ),
    "a host with a space": (
        {"environments/e.yaml": "name: e\nnetwork: allowlist\nallow: [a b]\n"},
        "environments/e.yaml:3: allow.0: String should match pattern",
    ),
    "wrong type of a size": (
        {"environments/e.yaml": "name: e\nlimits:\n  memory: [1]\n"},
        "environments/e.yaml:3: limits.memory: Input should be a valid integer",
    ),
    "no for a text": (
        {"prompts/no.yaml": "name: no\ntext: x\n"},
        "prompts/no.yaml:1: name: Input should be a valid string; YAML reads it as true or false:"
        " put it in quotes",
    ),
    "missing": ({"prompts/p.yaml": "name: p\n"}, "prompts/p.yaml:1: text: missing"),
    "empty": ({"agents/a.yaml": "# nothing yet\n"}, "agents/a.yaml:1: the file is empty"),
    "a list": (
        {"prompts/p.yaml": "- name: p\n"},
        "prompts/p.yaml:1: write fields, one on each line: name, description, text",
    ),
    "a key twice": (
        {"agents/a.yaml": "name: a\ntools: []\nname: a\n"},
        'agents/a.yaml:3: "name" stands here twice',
    ),
    "two documents": (
        {"prompts/p.yaml": "name: p\ntext: x\n---\nname: q\n"},
        "prompts/p.yaml:3: not YAML: expected a single document",
    ),
    "an alias bomb": ({"agents/a.yaml": BOMB}, "more than 10,000 values; does an alias repeat"),
    "an alias of itself": (
        {"agents/a.yaml": "name: a\ntools: &x [*x]\n"},
        "agents/a.yaml:2: nested more than 32 deep",
    ),
    "deep nesting": ({"agents/a.yaml": "[" * 2000}, "agents/a.yaml:1: nested more than 32 deep"),
    "a merge": (
        {"agents/a.yaml": "x: &x {name: a}\n<<: *x\n"},
        "agents/a.yaml:2: `<<` is not supported: write the fields out",
    ),
    "a Python object": (
        {"agents/a.yaml": "name: a\nprompt: !!python/name:os.system\n"},
        "agents/a.yaml:2: the tag !!python/name:os.system is not allowed",
    ),
    "a key that is a list": ({"agents/a.yaml": "? [a]\n: b\n"}, "agents/a.yaml:1: a key has to be"),
    "not UTF-8": (
        {"prompts/p.yaml": b"name: p\ntext: caf\xe9\n"},
        "prompts/p.yaml:2: not UTF-8 (invalid continuation byte)",
    ),
    "a control character": (
        {"prompts/p.yaml": "name: p\ntext: a\x07b\n"},
        r"prompts/p.yaml:2: the character '\x07' is not allowed",
    ),
    "too large": (
        {"prompts/p.yaml": "name: p\ntext: " + "x" * MAX_BYTES},
        "prompts/p.yaml:1: the file is larger than 256 KiB",
    ),
    "another name": (
        {"prompts/p.yaml": "text: x\nname: q\n"},
        "prompts/p.yaml:2: name: \"q\" is not the name of the file, 'p'",
    ),
    "a name that is none": (
        {"prompts/p q.yaml": "name: p q\ntext: x\n"},
        "prompts/p q.yaml:1: name: String should match pattern",
    ),
    "the same name twice": (
        {"prompts/p.yaml": "name: p\ntext: x\n", "prompts/p.yml": "name: p\ntext: y\n"},
        "prompts/p.yml:1: name: p.yaml declares 'p' too",
    ),
    "another kind": ({"agent/a.yaml": "name: a\n"}, "agent:1: no kind 'agent' (nearest: agents)"),
    "outside of a kind": ({"a.yaml": "name: a\n"}, "a.yaml:1: move it into one of environments"),
    "unknown tool": (
        {"agents/a.yaml": "name: a\ntools:\n  - bash\n  - raed_file\n"},
        'agents/a.yaml:4: tools: no tool "raed_file" (nearest: read_file)',
    ),
    "a tool twice": (
        {"agents/a.yaml": "name: a\ntools: [bash, bash]\n"},
        'agents/a.yaml:2: tools: "bash" stands here twice',
    ),
    "unknown environment": (
        {"agents/a.yaml": "name: a\nenvironment: Python\n"},
        'agents/a.yaml:2: environment: no environment "Python" (nearest: Python3)',
    ),
    "unknown prompt": (
        {"agents/a.yaml": "name: a\nprompt: shel\n"},
        'agents/a.yaml:2: prompt: no prompt "shel" (nearest: shell)',
    ),
    "unknown policy": (
        {"agents/a.yaml": "name: a\npolicy: strct\n"},
        'agents/a.yaml:2: policy: no policy "strct" (nearest: strict)',
    ),
    "a bad rule file": (
        {"agents/a.yaml": "name: a\npolicy: r.rules\n", "agents/r.rules": "mode: x\n"},
        "agents/r.rules:1: unknown mode",
    ),
    "image and Dockerfile": (
        {
            "environments/e.yaml": "name: e\nimage: a\ndockerfile: D\n",
            "environments/D": "FROM scratch\n",
        },
        "environments/e.yaml:3: dockerfile: there is image too; give one of them",
    ),
    "no Dockerfile": (
        {"environments/e.yaml": "name: e\ndockerfile: D\n"},
        "environments/e.yaml:2: dockerfile: no file",
    ),
    "not a size": (
        {"environments/e.yaml": "name: e\nlimits:\n  memory: lots\n"},
        "environments/e.yaml:3: limits.memory: 'lots' is not a size",
    ),
    "not a duration": (
        {"tools/t.yaml": f"{TOOL}command: ls\ntimeout: soon\n"},
        "tools/t.yaml:4: timeout: 'soon' is not a duration",
    ),
    "too long a timeout": (
        {"tools/t.yaml": f"{TOOL}command: ls\ntimeout: 2h\n"},
        "tools/t.yaml:4: timeout: more than 0 and at most 3600 seconds",
    ),
    "unknown placeholder": (
        {"prompts/p.yaml": "name: p\ntext: |\n  One.\n\n  Use {tool}.\n"},
        'prompts/p.yaml:5: text: no placeholder "{tool}" (nearest: tools)',
    ),
    "unknown parameter": (
        {"tools/t.yaml": f"{TOOL}{TEXT}command: |\n  ls\n  cat {{{{b}}}}\n"},
        'tools/t.yaml:9: command: no parameter "b"',
    ),
    "unknown parameter of stdin": (
        {"tools/t.yaml": f"{TOOL}{TEXT}command: cat\nstdin: '{{{{b}}}}'\n"},
        'tools/t.yaml:8: stdin: no parameter "b"',
    ),
    "a parameter in quotes": (
        {"tools/t.yaml": f"{TOOL}{TEXT}command: 'grep \"{{{{a}}}}\" x'\n"},
        "tools/t.yaml:7: command: {{a}} stands in quotes: put it outside, where it is quoted for",
    ),
    "a parameter in a here-document": (
        {"tools/t.yaml": f"{TOOL}{TEXT}command: |\n  cat <<END\n  {{{{a}}}}\n  END\n"},
        "tools/t.yaml:9: command: {{a}} stands in a here-document",
    ),
    "a parameter in arithmetic": (
        {"tools/t.yaml": f"{TOOL}{TEXT}command: echo $(( {{{{n}}}} + {{{{a}}}} ))\n"},
        "tools/t.yaml:7: command: {{a}} stands in (( … )), where bash evaluates its value",
    ),
    "not a JSON schema": (
        {
            "tools/t.yaml": f"{TOOL}command: ls\n"
            "parameters:\n  properties:\n    a: {type: strin}\n"
        },
        "tools/t.yaml:6: parameters.properties.a.type: not a JSON schema: 'strin'",
    ),
    "a schema elsewhere": (
        {"tools/t.yaml": f"{TOOL}command: ls\nparameters: {{$ref: 'http://x/y'}}\n"},
        'tools/t.yaml:4: parameters.$ref: "http://x/y" is not in this schema',
    ),
    "a schema of a text": (
        {"tools/t.yaml": f"{TOOL}command: ls\nparameters: {{type: string}}\n"},
        'tools/t.yaml:4: parameters.type: the arguments of a tool are an "object"',
    ),
    "a required property that is not there": (
        {"tools/t.yaml": f"{TOOL}command: ls\nparameters: {{required: [a]}}\n"},
        'tools/t.yaml:4: parameters.required: no property "a"',
    ),
    "a parameter with a bad name": (
        {"tools/t.yaml": f"{TOOL}command: ls\nparameters: {{properties: {{a-b: {{}}}}}}\n"},
        "tools/t.yaml:4: parameters.properties.a-b: 'a-b': use letters, digits and _",
    ),
    "command and code": (
        {"tools/t.yaml": f"{TOOL}command: ls\ncode: x\nlanguage: python\n"},
        "tools/t.yaml:1: a tool has a command or code: give one of them",
    ),
    "nothing to run": ({"tools/t.yaml": TOOL}, "tools/t.yaml:1: a tool has a command or code"),
    "code without a language": (
        {"tools/t.yaml": f"{TOOL}code: x\n"},
        "tools/t.yaml:1: language: code needs one, a command has none",
    ),
    "an unknown language": (
        {"tools/t.yaml": f"{TOOL}code: x\nlanguage: cobol\n"},
        "tools/t.yaml:4: language: Input should be 'python', 'javascript' or 'typescript'",
    ),
    "a tool of ours": (
        {"tools/bash.yaml": "name: bash\ndescription: d\ncommand: ls\n"},
        'tools/bash.yaml:1: name: "bash" is one of our own tools',
    ),
    "a link to nowhere": ({}, "prompts/p.yaml:1: cannot be read: No such file"),
    "a folder for a file": ({"prompts/p.yaml/x": ""}, "prompts/p.yaml:1: cannot be read: Is a dir"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line_with_file_and_line(name: str, tmp_path: Path) -> None:
    files, expected = BAD[name]
    write(tmp_path, files)
    if name == "a link to nowhere":
        (tmp_path / "prompts").mkdir()
        (tmp_path / "prompts/p.yaml").symlink_to("nowhere")
    (line,) = problems(tmp_path)
    assert expected in line


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (line,) = problems(tmp_path / "none")
    assert line.endswith("none:1: cannot be read: No such file or directory")


def test_everything_that_is_wrong_is_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents/a.yaml": "name: a\ntools: [pythn, broken]\nenvironment: x\nprompt: gone\n",
            "tools/broken.yaml": "name: broken\n",
            "tools/python.yaml": "name: python\ndescription: d\ncommand: python3\n",
        },
    )
    assert problems(tmp_path) == [
        'agents/a.yaml:2: tools: no tool "pythn" (nearest: python)',
        'agents/a.yaml:3: environment: no environment "x"',
        'agents/a.yaml:4: prompt: no prompt "gone"',
        "tools/broken.yaml:1: description: missing",
    ]
    with pytest.raises(RegistryError, match=r"\(and 3 more: `sandbox registry check` lists them\)"):
        read_registry(tmp_path)


def test_an_entry_of_the_operator_replaces_a_built_in_one(tmp_path: Path) -> None:
    before = read_registry()
    assert before.agents.keys() == {"code_executor", "shell"}
    assert before.environments.keys() == {"Python3", "Node", "Data", "base", "code-interpreter"}
    write(tmp_path, {"agents/shell.yaml": "name: shell\ntools: [bash, read_file]\n"})
    after = read_registry(tmp_path)
    assert after.agents["shell"].tools == ("bash", "read_file")
    assert after.agents["code_executor"] == before.agents["code_executor"]


def test_what_is_no_entry_is_passed_over(tmp_path: Path) -> None:
    files = {
        "README.md": "x",
        "agents/.a.yaml.swp": "x",
        "agents/.#a.yaml": "x",
        "notes/x.yaml": "",
    }
    assert read_registry(write(tmp_path, dict(files))) == read_registry()


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "environments/e.yaml": "name: e\ndockerfile: e/Dockerfile\n",
            "environments/e/Dockerfile": "FROM scratch\n",
            "agents/a.yaml": "name: a\npolicy: ../rules.txt\n",
            "rules.txt": "mode: allow-all\n",
        },
    )
    found = read_registry(tmp_path)
    assert found.environments["e"].dockerfile == str(tmp_path / "environments/e/Dockerfile")
    assert Path(str(found.agents["a"].policy)).samefile(tmp_path / "rules.txt")


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_a_kind_takes_what_the_reader_takes(kind: str) -> None:
    import yaml

    schema = KINDS[kind].model_json_schema()
    Draft202012Validator.check_schema(schema)
    for path in (BUILTIN / kind).glob("*.yaml"):
        Draft202012Validator(schema).validate(yaml.safe_load(path.read_text()))
    with pytest.raises(Exception, match="Additional properties are not allowed"):
        Draft202012Validator(schema).validate(
            {"name": "x", "description": "d", "text": "t", "y": 1}
        )


def test_agents_and_tools_of_some_tenants_are_hidden_from_others(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents/a.yaml": "name: a\ntools: [t]\ntenants: [acme]\n",
            "tools/t.yaml": f"{TOOL}command: ls\ntenants: [acme]\n",
        },
    )
    found = read_registry(tmp_path)
    assert found.agent("a", "acme").name == "a"
    assert "a" not in found.agents_of("globex")
    assert [*found.tools_of("acme"), *found.tools_of("globex")] == ["t"]
    with pytest.raises(Exception, match=r"no agent 'a'; there are: code_executor, shell$"):
        found.agent("a", "globex")


def test_a_session_keeps_all_that_its_agent_names(tmp_path: Path) -> None:
    """Also through the records of a later version, which may have more fields."""
    write(
        tmp_path,
        {
            "agents/a.yaml": "name: a\ntools: [bash, t]\nprompt: p\n",
            "tools/t.yaml": f"{TOOL}command: ls\n",
            "prompts/p.yaml": "name: p\ntext: hello {agent}\n",
        },
    )
    found = read_registry(tmp_path)
    kept = found.for_session(found.agents["a"], "Python3")
    assert (kept.prompt, kept.tools, kept.environment) == (
        "hello {agent}",
        ("bash", "t"),
        "Python3",
    )
    later: dict[str, Any] = json.loads(kept.model_dump_json(exclude_defaults=True))
    later["declared"][0]["colour"] = later["mood"] = "new"
    assert type(kept).model_validate(later) == kept
