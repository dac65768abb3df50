"""Every folder of the shared data is opened by its path, where it is here, and has a row in the
manual's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnnjit.data import open_dataset
from gnnjit.errors import DataError

MANUAL = Path(__file__).parents[2] / "docs" / "datasets.md"

OPENED = {
    "blogcatalog": "Dataset(blogcatalog",
    "citationfull-dblp": "Dataset(dblp",
    "citeseer": "Dataset(citeseer",
    "cora": "Dataset(cora",
    "fb15k-237": "LinkDataset(fb15k-237",
    "gowalla": "LinkDataset(gowalla",
    "imdb-magnn": "Dataset(imdb",
    "lagrange-lj3d": "ParticleDataset(lj3d",
    "lastfm-rec": "LinkDataset(lastfm",
    "meshes": "LinkDataset(airfoil1",
    "metr-la": "SensorDataset(metr-la",
    "molecules": "GraphDataset(gdb1k",
    "snap-ego-twitter": "LinkDataset(ego-twitter",
    "snap-soc-Epinions1": "LinkDataset(epinions",
    "snap-web-NotreDame": "LinkDataset(notredame",
    "toy-ppi": "Dataset(ppi",
    "tu-enzymes": "GraphDataset(ENZYMES",
    "tu-mutag": "GraphDataset(MUTAG",
    "tu-proteins": "GraphDataset(PROTEINS",
}
LARGE = ("fb15k-237", "gowalla", "imdb-magnn", "snap-", "toy-ppi", "tu-proteins", "blogcatalog")
MISSING = {"nell": "ind.nell.0.001.ally", "pubmed": "ind.pubmed.allx"}


def needs(name: str, real) -> Path:  # type: ignore[no-untyped-def]
    return real(f"{name}/SOURCE.md") / name


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long if n.startswith(LARGE) else ()) for n in OPENED],
)
def test_opened_by_its_path(name, real):
    options = {"dataset": "gdb1k"} if name == "molecules" else {}
    assert repr(open_dataset(needs(name, real), **options)).startswith(OPENED[name])


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_file_is_named(name, real):
    with pytest.raises(DataError, match=re.escape(MISSING[name])):
        open_dataset(needs(name, real))


def test_the_manual_has_a_row_for_each():
    rows = re.findall(r"^\| `([a-zA-Z0-9-]+)`", MANUAL.read_text(), flags=re.M)
    assert set(rows) == {*OPENED, *MISSING}
