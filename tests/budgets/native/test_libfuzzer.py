"""Coverage-guided fuzzing of every parser of bytes from outside, for a moment each, under ASan and
UBSan. For longer: bench/fuzz.sh (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import relaytests
from tests.fixtures.relaytests import LIBFUZZER, Suite

SECONDS = 10
TARGETS = [(suite, name) for suite in LIBFUZZER for name in suite.names("fuzz")]


def test_every_parser_of_bytes_from_outside_has_a_fuzzer() -> None:
    assert {name.removeprefix("fuzz_") for _, name in TARGETS} >= {
        *("encoded", "policy", "region", "text"),  # native/
        *("pg", "my", "gate", "kinds"),  # relay/
    }
    for suite, name in TARGETS:
        corpus = suite.source / "tests" / "corpus" / name.removeprefix("fuzz_")
        assert any(corpus.iterdir()), corpus


@pytest.mark.extended
@pytest.mark.timeout(relaytests.BUILD_S, func_only=True)
@pytest.mark.parametrize(("suite", "name"), TARGETS, ids=[name for _, name in TARGETS])
def test_what_coverage_leads_to(suite: Suite, name: str, tmp_path: Path) -> None:
    reason = relaytests.why_no_libfuzzer()
    if reason:
        pytest.skip(reason)
    corpus = suite.source / "tests" / "corpus" / name.removeprefix("fuzz_")
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={SECONDS}", "-timeout=60", "-max_len=65536", "-rss_limit_mb=3000"]
    program = relaytests.built(suite) / name
    relaytests.run(
        suite, program, *limits, f"-artifact_prefix={tmp_path}/", found, corpus, within_s=600
    )
