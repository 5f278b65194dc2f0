"""Every `$ mxgemm` line of the documentation is accepted; the command line page is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mxgemm import cli

pytestmark = pytest.mark.host

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_PAGE = ROOT / "docs" / "how-to" / "command-line.md"
PREPARATION = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    return re.findall(r"^\$ mxgemm (.+)$", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "line", sorted({line for page in PAGES for line in commands(page)}), ids=lambda line: line
)
def test_d71_documented_commands_are_accepted(line: str) -> None:
    arguments = shlex.split(line)
    assert cli._parser(arguments).parse_args(arguments).command == arguments[0]


def test_d71_the_command_lines_page_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = RUN_PAGE.read_text()
    preparation = PREPARATION.search(text)
    assert preparation is not None
    exec(compile(preparation[1], str(RUN_PAGE), "exec"), {})
    lines = commands(RUN_PAGE)
    assert len(lines) > 5
    for line in lines:
        status = cli.main(shlex.split(line))
        captured = capsys.readouterr()
        if status:
            assert captured.err.strip() in text, line
        else:
            # The first line up to a comma: the rest names versions, or backends of this machine.
            first = captured.out.partition(",")[0].splitlines()[0].strip()
            assert first in text, (line, first)
