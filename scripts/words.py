"""Check the words of everything that people read.  scripts/words.py [PATH…]

Docs, the page's templates, the string literals and comments of src/, the comments of deploy/ and
examples/, and the comments and texts in C are compared with the vocabulary of
docs/reference/glossary.md: no banned words, no British spellings, no requirement numbers, no
sentence of more than 30 words, no term that the glossary lacks, no how-to of more than 80 lines.
The names that the reference lists (fields, metrics, settings, commands) are compared as well.

With PATHs: only their findings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = "docs/reference/glossary.md"
MAX_WORDS = 30
MAX_HOWTO_LINES = 80
COMMENTED = {".logrotate", ".pm", ".service", ".sh", ".sysusers", ".tpl", ".yaml", ".yml"}
# Where the numbers are looked up.
NUMBERED = {"docs/requirements.md"}

# What not to write, and what to write instead.
BANNED = {
    r"refus\w+(?<!connection refused)": "reject, admit",
    r"lets? pass|turn(s|ed)? away|sa(y|ys|id) (OK|no)\b": "admit, reject",
    r"(held|holds?|holding) back|kept out|keeps? out": "throttled, delay",
    r"meets?|met|concerns|(is|are) meant for": "matches, applies to",
    r"who asks|somebody|who(m|ever)": "client, identity",
    r"ask(s|ed|ing)?(?!\s+(for|who set)\b)": "check",
    r"for leave|leave to|no leave|without leave": "permission",
    r"turn(s|ed)? down|tighten(s|ed|ing)?": "ratio, threshold",
    r"absen(t|ces?)": "unavailable",
    r"heard|hears?|told|(is|are|be) told": "reported, last seen",
    r"(sets? |setting )?aside": "skip",
    r"roll-ups?": "rollup",
    r"rests|resting|at rest": "idle, hibernating",
    r"unasked|works? without asking": "rogue client",
    r"gets? nowhere": "starved",
    r"judg(e|es|ed|ing|e?ments?)": "validate, decide",
    r"bears|owe[sd]?": "allowance, debt",
    r"mend(s|ed|ing)?": "fix",
    r"stands|stood|standing": "state, status",
    r"anew|for ever|of late|aloud|lest|whilst|thrice|dear(er|est)?": "plain words",
    r"by (itself|themselves|himself)": "automatically, alone",
}
BANNED_PATTERN = re.compile(
    r"(?<![\w-])(" + "|".join(f"(?P<b{i}>{one})" for i, one in enumerate(BANNED)) + r")(?![\w-])",
    re.IGNORECASE,
)
# A setting's name, and the heading of its causes.
NAMES = {"absence"}
REQUIREMENT = re.compile(r"\bR([1-9]\d?|1\d\d)\b")
# asyncio and Postgres's drivers spell it so in their names, and everybody writes it as they do.
SPELLED_AS_IN_CODE = {"cancelled", "cancelling", "analyse"}


class Finding(NamedTuple):
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Text(NamedTuple):
    """A paragraph, table cell, list item or literal, with the line at which it begins."""

    line: int
    words: str


# ── What people read, file by file ───────────────────────────────────────────


def blanked(pattern: str, text: str, by: str = "") -> str:
    """Without what matches, on as many lines."""
    return re.sub(pattern, lambda m: by + "\n" * m[0].count("\n"), text, flags=re.DOTALL)


def markdown_texts(source: str) -> Iterator[Text]:
    source = blanked(r"<!--.*?-->", source)
    lines: list[str] = []
    fenced = False
    for line in source.splitlines():
        if re.match(r"[ >]*```", line):
            fenced = not fenced
            lines.append("")
        else:
            lines.append("" if fenced else line)
    block: list[str] = []
    begun = 1

    def ended() -> Iterator[Text]:
        if block:
            yield Text(begun, "\n".join(block))
            block.clear()

    for number, line in enumerate(lines, 1):
        if re.match(r"\s*([-*+]|\d+\.)\s|\s*$|\s*[#>|]", line):
            yield from ended()
        if line.lstrip().startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield from (Text(number, cell) for cell in cells if cell.strip(" -:"))
        elif line.strip():
            if not block:
                begun = number
            block.append(line)
    yield from ended()


def names_in_tables(source: str) -> Iterator[Text]:
    """What is code in a reference's table, in words: `member_asides` is read as two of them."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("|"):
            for name in re.findall(r"`([^`\s]+)`", line):
                parts = (part for part in re.split(r"[^A-Za-z]+", name) if part not in NAMES)
                yield Text(number, " ".join(parts))


def template_texts(source: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), 1):
        for expression in re.findall(r"\{[{%](.*?)[%}]\}", line):
            said = re.findall(r"'([^']*)'", expression)
            yield from (Text(number, phrase) for phrase in said if re.search(r"\w .*\w", phrase))
    source = blanked(r"\{#.*?#\}|\{%.*?%\}|<(script|style)\b.*?</\1>", source, " ")
    source = blanked(r"\{\{.*?\}\}", source, "X")
    shown = r"(?:title|alt|placeholder|aria-label|data-confirm)=\"([^\"]*)\""
    for number, line in enumerate(source.splitlines(), 1):
        yield from (Text(number, attribute) for attribute in re.findall(shown, line))
    for number, line in enumerate(blanked(r"<[^>]*>", source, " ").splitlines(), 1):
        if line.strip():
            yield Text(number, line)


def literal_texts(source: str) -> Iterator[Text]:
    """String literals that are phrases: what has a blank in it is no name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield Text(node.lineno, node.value)
    # Tokens are slow: only where a line with a comment may have a finding.
    if any("#" in line and BANNED_PATTERN.search(line) for line in source.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Text(token.start[0], REQUIREMENT.sub("", token.string))


def comment_texts(source: str) -> Iterator[Text]:
    """Of shell, YAML, Perl, units and charts: lines that are comments."""
    for number, line in enumerate(source.splitlines(), 1):
        if re.match(r"\s*(#|\{\{-? ?/\*)", line):
            yield Text(number, line)


def c_texts(source: str) -> Iterator[Text]:
    """Comments, in which requirements may be named, and literals that are phrases."""
    for match in re.finditer(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", source, re.DOTALL):
        line = source.count("\n", 0, match.start()) + 1
        if match[0].startswith("/*"):
            comment = re.sub(r"\n[ \t]*\* ?", "\n", match[0])
            yield Text(line, REQUIREMENT.sub("X", comment))
        elif " " in match[0]:
            yield Text(line, match[0])


def sources() -> Iterator[tuple[str, Iterator[Text]]]:
    for path in sorted(
        [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")]
    ):
        yield str(path.relative_to(ROOT)), markdown_texts(path.read_text())
    for path in sorted(ROOT.glob("docs/reference/*.md")):
        yield str(path.relative_to(ROOT)), names_in_tables(path.read_text())
    for path in sorted(ROOT.glob("src/headgate/**/templates/**/*.html")):
        yield str(path.relative_to(ROOT)), template_texts(path.read_text())
    for path in sorted(ROOT.glob("src/headgate/**/*.py")):
        yield str(path.relative_to(ROOT)), literal_texts(path.read_text())
    for folder in ("deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py":
                yield str(path.relative_to(ROOT)), literal_texts(path.read_text())
            elif path.name == "NOTES.txt":
                yield str(path.relative_to(ROOT)), template_texts(path.read_text())
            elif path.suffix in COMMENTED or path.name == "Dockerfile":
                yield str(path.relative_to(ROOT)), comment_texts(path.read_text())
    for folder in ("native", "relay", "pg_headgate/src"):
        for path in sorted(ROOT.glob(f"{folder}/*.[ch]")):
            yield str(path.relative_to(ROOT)), c_texts(path.read_text())


# ── What is wrong with them ──────────────────────────────────────────────────


def british_spellings() -> dict[str, str]:
    import codespell_lib

    data = Path(codespell_lib.__file__).parent / "data" / "dictionary_en-GB_to_en-US.txt"
    pairs = (line.strip().split("->") for line in data.read_text().splitlines() if "->" in line)
    return {british: american for british, american in pairs if british not in SPELLED_AS_IN_CODE}


def glossary_terms() -> set[str]:
    path = ROOT / GLOSSARY
    heads = re.findall(r"^\| \*\*(.+?)\*\* \|", path.read_text(), re.MULTILINE)
    return {term.strip(" `").lower() for head in heads for term in head.split(",")}


def prose(words: str) -> str:
    """Without what is quoted from the program: code, addresses of links, placeholders."""
    words = blanked(r"`[^`]*`", words, "X")
    words = blanked(r"!\[[^\]]*\]\([^)\s]*\)", words)
    words = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", words)
    return re.sub(r"https?://\S+", "X", words)


def long_sentences(words: str) -> Iterator[tuple[int, int]]:
    """(line within the text, number of words) of each sentence that is too long."""
    start = 0
    for end in re.finditer(r"[.!?…](?=[\s)\"”*]|$)|\s·\s|\Z", words):
        sentence = words[start : end.end()]
        count = len(re.findall(r"\w[\w'’./%-]*", sentence))
        if count > MAX_WORDS:
            blanks = len(sentence) - len(sentence.lstrip())
            yield words[: start + blanks].count("\n"), count
        start = end.end()


def findings(
    path: str, texts: Iterator[Text], british: dict[str, str], terms: set[str]
) -> Iterator[Finding]:
    is_docs = path.endswith(".md")
    for line, raw in texts:
        words = prose(raw)

        def at(offset: int, words: str = words, line: int = line) -> int:
            return line + words[:offset].count("\n")

        for match in BANNED_PATTERN.finditer(words):
            number = next(int(key[1:]) for key, one in match.groupdict().items() if one)
            use = list(BANNED.values())[number]
            yield Finding(path, at(match.start()), f"“{match[0]}”: write {use}")
        for match in re.finditer(r"[A-Za-z]+", words):
            if match[0].lower() in british:
                american = british[match[0].lower()]
                yield Finding(path, at(match.start()), f"“{match[0]}”: write {american}")
        if path not in NUMBERED:
            for match in REQUIREMENT.finditer(words):
                yield Finding(path, at(match.start()), f"“{match[0]}”: a requirement's number")
        if is_docs:
            for offset, count in long_sentences(words):
                yield Finding(path, line + offset, f"a sentence of {count} words")
            for match in re.finditer(r"(?<![*\w])\*([^*\s][^*]*?)\*(?![*\w])", words):
                if match[1].lower() not in terms:
                    yield Finding(path, at(match.start()), f"“{match[1]}”: not in the glossary")


def lengths(path: str) -> Iterator[Finding]:
    if path.startswith("docs/howto/"):
        lines = (ROOT / path).read_text().count("\n")
        if lines > MAX_HOWTO_LINES:
            yield Finding(path, lines, "too long to follow: move edge cases to the reference")


def main(arguments: list[str]) -> int:
    british, terms = british_spellings(), glossary_terms()
    found = [
        finding
        for path, texts in sources()
        if not arguments or path in arguments
        for finding in (*findings(path, texts, british, terms), *lengths(path))
    ]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
