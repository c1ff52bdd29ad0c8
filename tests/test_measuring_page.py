"""The page on measuring names a test for each promise: the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_the_page_names_exists() -> None:
    rows = [
        line for line in (ROOT / "docs/measuring.md").read_text().splitlines() if re.search(r"`test_\w+\.py`", line)
    ]
    named = 0
    for row in rows:
        files = [path for name in re.findall(r"`(test_\w+\.py)`", row) for path in ROOT.glob(f"tests/**/{name}")]
        assert files, row
        sources = "".join(path.read_text() for path in files)
        for test in re.findall(r"`([a-z]\w+)`", row.split("|")[2].replace(".py`", "")):
            named += 1
            assert f"def test_{test}(" in sources, f"no test_{test} in {files}"
    assert named > 15
