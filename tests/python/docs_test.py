# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/: blocks of code run, copies are fresh, links and citations lead somewhere."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- include [^\n]*-->\n\Z")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
# Comments of the sources cite headings: docs/math.md#arc-weight.
CITATION = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
PRINTED = re.compile(r"^<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks that run nothing: formulas, drawings, and C++ that is a copy of a file that is compiled.
NOT_RUN = {"text", "cpp"}
# Without PyTorch, the block of a page that imports it is left out.
HAS_TORCH = importlib.util.find_spec("torch") and os.environ.get("TX_SANITIZE", "none") == "none"


def load_update():
    spec = importlib.util.spec_from_file_location("docs_update", ROOT / "docs" / "update.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks_of(page, language):
    text = page.read_text(encoding="utf-8")
    return [m[2] for m in FENCE.finditer(text) if m[1] == language]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def anchors_of(page):
    """Make of the headings what GitHub does: lower case, no punctuation, hyphens for blanks."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def sources():
    folders = ("reference", "cpu", "cuda", "distributed", "python", "tests", "notebooks")
    suffixes = {".hpp", ".cpp", ".cuh", ".cu", ".py", ".ipynb"}
    files = (file for folder in folders for file in (ROOT / folder).rglob("*"))
    return [file for file in files if file.suffix in suffixes]


def leads_nowhere(target, page):
    """Return why a relative link of the page is broken, or None."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{relative(page)}: {target} does not exist"
    if anchor and anchor not in anchors_of(file):
        return f"{relative(page)}: {target} has no such heading"
    return None


PYTHON_PAGES = [page for page in PAGES if blocks_of(page, "python")]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=relative)
def test_python_blocks_run(page, tmp_path):
    """The blocks of a page run in order, as one program: what one defines, the next may use.

    What the page shows as printed, the program prints.
    """
    lines = []
    text = page.read_text(encoding="utf-8")
    if page.stem in ("pytorch", "migration") and not HAS_TORCH:
        pytest.skip("PyTorch is not installed")
    for match in FENCE.finditer(text):
        if match[1] != "python" or ("import torch" in match[2] and not HAS_TORCH):
            continue
        # Blank lines before keep the line numbers of the page in the traceback.
        first = text.count("\n", 0, match.start(2))
        lines += [""] * (first - len(lines)) + match[2].splitlines()
    program = tmp_path / f"{page.stem}_page.py"  # not math.py, which would hide the module
    program.write_text("\n".join(lines), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert run.returncode == 0, f"{relative(page)}:\n{run.stderr}"
    for shown in PRINTED.findall(text):
        assert shown in run.stdout, f"{relative(page)} shows another output than the program's"


MIGRATION = re.compile(r"^```text\n(.*?)^```\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_migrating_changes_the_import_and_nothing_else():
    """Of each pair of blocks the first line is an import, and the others are the same."""
    pairs = MIGRATION.findall((ROOT / "docs" / "migration.md").read_text(encoding="utf-8"))
    assert len(pairs) == 6
    for before, after in pairs:
        old, *old_lines = before.splitlines()
        new, *new_lines = after.splitlines()
        names = [re.fullmatch(r"from ([\w.]+) import (\w+)", line).groups() for line in (old, new)]
        assert names[0][1] == names[1][1]
        assert names[1][0].startswith("flash_transducer.compat.")
        assert old_lines == new_lines


def test_the_picture_of_the_readme_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "lattice.png"
    program = ROOT / "docs" / "images" / "lattice.py"
    run = subprocess.run(
        [sys.executable, str(program), str(picture)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def shell_lines(page):
    for block in blocks_of(page, "sh"):
        for line in block.splitlines():
            command = line.split(" #", 1)[0].strip()
            if command and not command.startswith("#"):
                yield command


CLI_COMMANDS = [
    pytest.param(command, id=command)
    for page in PAGES
    for command in shell_lines(page)
    if command.startswith("flash-transducer")
]


@pytest.fixture
def batch_folder(tmp_path):
    """Make a folder with the batch file that the pages name."""
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    rng = np.random.default_rng(0)
    numpy.save_file(
        {
            "logits": rng.normal(size=(2, 7, 4, 8)).astype(np.float32),
            "targets": np.array([[1, 2, 3], [4, 1, 0]]),
            "logit_lengths": np.array([7, 6]),
            "target_lengths": np.array([3, 2]),
        },
        tmp_path / "batch.safetensors",
    )
    return tmp_path


@pytest.mark.parametrize("command", CLI_COMMANDS)
def test_commands_run(command, batch_folder):
    entry = "import sys; from flash_transducer.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-c", entry, *shlex.split(command)[1:]]
    run = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=batch_folder, timeout=600
    )
    assert run.returncode == 0, run.stderr


def test_make_verbs_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`make ([a-z-]+)", text)
        named += re.findall(r"^make ([a-z-]+)", "\n".join(shell_lines(page)), re.MULTILINE)
        assert set(named) <= verbs, relative(page)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_block_says_what_it_is(page):
    languages = {m[1] for m in FENCE.finditer(page.read_text(encoding="utf-8"))}
    assert languages <= {"python", "sh", *NOT_RUN}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_cpp_blocks_are_copies_of_files(page):
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1] == "cpp":
            line = text.count("\n", 0, match.start()) + 1
            assert COMMENT.search(text[: match.start()]), f"{relative(page)}:{line} names no file"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CONTRIBUTING.md"], ids=relative)
def test_copies_and_generated_tables_are_fresh(page):
    update = load_update()
    text = page.read_text(encoding="utf-8")
    fresh = update.updated(text)
    assert text == fresh, f"{relative(page)} is stale; run {update.COMMAND}"


def test_every_named_variant_is_in_the_readme():
    from flash_transducer import _core

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for variant in _core.named_variants():
        assert f"`ft.{variant['name']}(" in text


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [a or b for a, b in LINK.findall(text)]
    targets = [t for t in targets if not t.startswith(("http://", "https://", "mailto:"))]
    assert not [why for why in (leads_nowhere(t, page) for t in targets) if why]


def test_cited_pages_and_headings_exist():
    cited = {
        (match, relative(file))
        for file in sources()
        for match in CITATION.findall(file.read_text(encoding="utf-8"))
    }
    assert any(match == "docs/math.md#arc-weight" for match, _ in cited)
    broken = [f"{file}: {m}" for m, file in sorted(cited) if leads_nowhere(m, ROOT / "README.md")]
    assert not broken
