"""The site builds strictly, links and anchors included, and has every public name."""

import importlib
import inspect
import re
import subprocess
import sys
from functools import partial

import pytest

from docs.site import pictures
from tests.support.pages import PAGES, ROOT, run_page

MODULES = (
    *("simgpu", "simgpu.comm", "simgpu.errors", "simgpu.strategies"),
    *("dataparallel", "dataparallel.comm"),
)
# What would show where it was built: folders of a machine, and hosts of package indexes.
FOREIGN = re.compile(r"/tmp/|/home/|/root/|/opt/|file://|127\.0\.0\.1")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site needs the extra: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def public_names(module):
    """The names that a module has for its users, as they are imported from it."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if inspect.isclass(value) and not name.startswith("_") and value.__module__ == module
    ]
    return [f"{module}.{name}" for name in names if not inspect.ismodule(getattr(found, name))]


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_an_entry(site, module):
    pages = "".join(page.read_text("utf-8") for page in site.glob("api_*/index.html"))
    names = public_names(module)
    assert len(names) > 2
    # A function may be in a module of its own name, by which its entry is known.
    entries = {name: (name, f"{name}.{name.rpartition('.')[2]}") for name in names}
    missing = [
        name
        for name, ids in entries.items()
        if not any(f'id="{entry}" class="doc doc-heading"' in pages for entry in ids)
    ]
    assert missing == []


def test_site_shows_no_machine(site):
    pages = {page.parent.name: page.read_text("utf-8") for page in site.glob("**/index.html")}
    shown = {name: FOREIGN.findall(text) for name, text in pages.items()}
    assert not any("May import:" in text for name, text in pages.items() if name[:4] == "api_")
    assert {name: found for name, found in shown.items() if found} == {}


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_picture_shows_the_printed_text(name):
    """Drawn by `python -m docs.site.pictures`."""
    assert (pictures.FOLDER / name).read_text("utf-8") == pictures.DRAWN[name]()


WITH_RACES = ("races", "asynchronous")
IN_DEFAULT = ("README",)  # tests/project/test_docs.py runs it

pages = partial(pytest.mark.parametrize, "path", ids=lambda path: path.stem)


@pages([path for path in PAGES if path.stem not in WITH_RACES + IN_DEFAULT])
def test_page_works(path, reader):
    run_page(path, *reader)


@pytest.mark.without("--races", reason="races on purpose")
@pages([path for path in PAGES if path.stem in WITH_RACES])
def test_page_with_races_works(path, reader):
    run_page(path, *reader)
