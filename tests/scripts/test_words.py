"""The checker of words bites, and its numbers only fall."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headgate.rules.matching import Kind

ROOT = Path(__file__).parent.parent.parent


def _checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("words", ROOT / "scripts" / "words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["words"] = module
    spec.loader.exec_module(module)
    return module


words = _checker()
BRITISH = words.british_spellings()
TERMS = words.glossary_terms()

BAD_PAGE = (
    """# A page

The agent refuses whoever asks
for leave.

- Favour *flumps* (R70).

```
refused in a program's output
```

| a | the client is told, and `refused` is code |
|---|---|

"""
    + " ".join(["One"] * 31)
    + ".\n"
)


def found(path: str, texts: object) -> list[str]:
    return [f"{one.line} {one.what}" for one in words.findings(path, texts, BRITISH, TERMS)]


def test_a_bad_page_is_found_line_by_line() -> None:
    assert found("docs/bad.md", words.markdown_texts(BAD_PAGE)) == [
        "3 “refuses”: write reject, admit",
        "3 “whoever”: write client, identity",
        "4 “for leave”: write permission",
        "6 “Favour”: write favor",
        "6 “R70”: a requirement's number",
        "6 “flumps”: not in the glossary",
        "12 “is told”: write reported, last seen",
        "15 a sentence of 31 words",
    ]


def test_a_bad_name_in_a_reference_is_found() -> None:
    table = (
        "| `asked_s_ago` | a |\n| `lag` | `absence`, `member_aside{why}` |\nthe `asked_at` of it\n"
    )
    assert found("docs/reference/a.md", words.names_in_tables(table)) == [
        "1 “asked”: write check",
        "2 “aside”: write skip",
    ]


def test_a_bad_template_is_found_without_its_code() -> None:
    page = '<p title="Whom it meets">\n{% if refused %}Work {{ asked }} anew{% endif %}</p>'
    page += "\n{{ 'Set it aside' if is_told else 'refused' }}"
    assert found("x.html", words.template_texts(page)) == [
        "3 “aside”: write skip",
        "1 “Whom”: write client, identity",
        "1 “meets”: write matches, applies to",
        "2 “anew”: write plain words",
    ]


def test_phrases_of_the_program_are_found_and_names_are_not() -> None:
    source = 'STATE = "refused"\nraise ValueError(f"{name}: somebody was faster")\n'
    assert found("x.py", words.literal_texts(source)) == ["2 “somebody”: write client, identity"]


def test_comments_are_found_wherever_they_are() -> None:
    source = 'a = "#anew"\nb = 1  # It is made anew.\n# R70: nobody is told.\n'
    assert found("x.py", words.literal_texts(source)) == [
        "2 “anew”: write plain words",
        "3 “is told”: write reported, last seen",
    ]
    unit = "# It is started for ever.\n{{- /* Each by itself. */}}\nExecStart=whoever\n"
    assert found("x.service", words.comment_texts(unit)) == [
        "1 “for ever”: write plain words",
        "2 “by itself”: write automatically, alone",
    ]


def test_comments_and_texts_in_c_are_found_and_code_is_not() -> None:
    source = 'int refused; /* R104: a\n * refusal */\nsay("is told \\" no", "refused");\n'
    assert found("x.c", words.c_texts(source)) == [
        "2 “refusal”: write reject, admit",
        "3 “is told”: write reported, last seen",
    ]


def test_a_clean_page_has_no_findings() -> None:
    page = "The agent rejects the check: *lag* is 9 s. Connection refused is the network's word.\n"
    assert found("docs/good.md", words.markdown_texts(page)) == []


def test_a_finding_fails_the_check_and_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "glossary.md").write_text("| **lag** | x |\n")
    page = tmp_path / "docs" / "a.md"
    page.write_text("Mend it anew.\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert words.main([]) == 1
    assert "docs/a.md:1" in capsys.readouterr().out
    assert words.main(["docs/a.md"]) == 1 and words.main(["docs/b.md"]) == 0
    page.write_text("Fix it.\n")
    assert words.main([]) == 0


def test_the_glossary_has_the_kinds_of_rules_and_what_the_voice_calls_things() -> None:
    assert {kind.value for kind in Kind} <= TERMS
    assert {"check", "admit", "reject", "throttled", "block", "warn", "delay", "client"} <= TERMS
    assert {"permission", "metric", "threshold", "breach", "unavailable", "stale"} <= TERMS
    assert {"rollup", "skip", "idle", "hibernating", "awake", "rogue client", "starved"} <= TERMS
    assert {"server share", "burst limit", "per-query limit", "concurrency limit"} <= TERMS
