import importlib.util

import pytest

from gnnjit.data import DATASETS, Dataset, GraphDataset, LinkDataset, open_dataset
from gnnjit.errors import DataError
from gnnjit.nn.recipes import MODELS_OF

_NAMES = (
    "karate, communities, caveman, cora, citeseer, pubmed, nell, dblp, ppi, gowalla, fb15k-237, "
    "lastfm, blogcatalog, imdb, mutag, proteins, enzymes, esol, freesolv, lipophilicity, gdb1k, "
    "epinions, notredame, ego-twitter, airfoil1, 4elt, wing, lj3d, metr-la"
)


def test_names():
    assert ", ".join(DATASETS) == _NAMES


def test_built_in_and_generated_need_no_directory(tmp_path):
    assert open_dataset("Karate", tmp_path / "no").num_nodes == 34
    data = open_dataset("communities", num_nodes=50, num_features=3, seed=4)
    assert data.x.shape == (50, 3)


def test_options_reach_the_loader(tmp_path, planetoid_parts, write_planetoid):
    write_planetoid(tmp_path, planetoid_parts)
    data = open_dataset("CORA", tmp_path, normalize=True)
    assert isinstance(data, Dataset)
    assert data.x.sum(axis=1)[:7] == pytest.approx(1)


def test_graph_sets(tmp_path, tu_texts, write_tu):
    write_tu(tmp_path / "MUTAG.zip", tu_texts)
    data = open_dataset("mutag", tmp_path, attributes=True)
    assert isinstance(data, GraphDataset)
    assert data.num_features == 5


@pytest.mark.parametrize(
    ("name", "hint"),
    [("coar", " Did you mean 'cora'?"), ("PROTEIN", " Did you mean 'proteins'?"), ("zzz", "")],
)
def test_unknown_name(name, hint):
    with pytest.raises(DataError) as error:
        open_dataset(name)
    assert str(error.value) == f"open_dataset: got {name!r}, expected one of {_NAMES}.{hint}"


def test_unknown_option():
    with pytest.raises(DataError) as error:
        open_dataset("dblp", sed=3)
    assert str(error.value) == (
        "open_dataset: dblp got the option 'sed', expected one of normalize, seed, "
        "train_per_class, val_per_class. Did you mean 'seed'?"
    )


@pytest.mark.parametrize("name", DATASETS)
def test_entries_describe_themselves(name):
    entry = DATASETS[name]
    assert entry.task in {*MODELS_OF, "particles", "sensors"}
    assert entry.summary
    assert not {"name", "data_dir", "fetch"} & set(entry.options())


def test_a_folder_and_a_file_are_known_by_their_names(tmp_path, planetoid_parts, write_planetoid):
    folder = write_planetoid(tmp_path / "any", planetoid_parts)
    for path in (folder, str(folder), folder / "ind.cora.graph"):
        data = open_dataset(path, normalize=True)
        assert isinstance(data, Dataset)
        assert (data.name, data.num_nodes) == ("cora", 12)


def test_a_set_of_tu_that_has_no_entry(tmp_path, tu_texts, write_tu):
    data = open_dataset(write_tu(tmp_path / "set", tu_texts, "OWN"))
    assert repr(data).startswith("GraphDataset(OWN: 3 graphs")


def test_a_folder_of_several_datasets(tmp_path):
    for name in ("wing", "airfoil1"):
        (tmp_path / f"{name}.graph").write_text("3 2\n2\n1 3\n2\n")
    first, wing = (open_dataset(tmp_path, val_links=0, **o) for o in ({}, {"dataset": "wing"}))
    assert isinstance(first, LinkDataset)
    assert (first.name, wing.name, len(first.train), first.num_nodes) == ("airfoil1", "wing", 2, 3)
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path, dataset="cora")
    assert str(error.value) == (
        f"{tmp_path}: has no dataset 'cora', expected one of airfoil1, wing."
    )


def test_a_path_without_a_dataset(tmp_path):
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: has no files of a known dataset, such as ind.cora.graph, dblp.npz, "
        "MUTAG.zip. Pass the file with the edges."
    )
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path / "none")
    assert str(error.value) == (
        f"{tmp_path / 'none'}: no such file or folder, expected one with a dataset."
    )


_OF_SHARED = {
    "blogcatalog": "blogcatalog", "citationfull-dblp": "dblp", "citeseer": "citeseer",
    "cora": "cora", "fb15k-237": "fb15k-237", "gowalla": "gowalla", "imdb-magnn": "imdb",
    "lagrange-lj3d": "lj3d", "lastfm-rec": "lastfm", "meshes": "airfoil1", "metr-la": "metr-la",
    "molecules": "esol", "nell": "ind.nell.0.001.ally is missing",
    "pubmed": "ind.pubmed.allx is missing", "snap-ego-twitter": "ego-twitter",
    "snap-soc-Epinions1": "epinions", "snap-web-NotreDame": "notredame", "toy-ppi": "ppi",
    "tu-enzymes": "ENZYMES", "tu-mutag": "MUTAG", "tu-proteins": "PROTEINS",
}  # fmt: skip
_NEEDS = {"lagrange-lj3d": "h5py", "molecules": "rdkit"}
_SHORT = ("metr-la", "meshes", "nell", "pubmed", "tu-mutag")


@pytest.mark.parametrize(
    "folder", [f if f in _SHORT else pytest.param(f, marks=pytest.mark.long) for f in _OF_SHARED]
)
def test_every_shared_folder_opens_or_says_what_is_missing(real, folder):
    path, said = real(f"{folder}/SOURCE.md") / folder, _OF_SHARED[folder]
    needs = _NEEDS.get(folder)
    if needs and importlib.util.find_spec(needs) is None:
        with pytest.raises(DataError, match=f"needs {needs}: pip install {needs}"):
            open_dataset(path)
    elif said.endswith("is missing"):
        with pytest.raises(DataError, match=said):
            open_dataset(path)
    else:
        assert open_dataset(path).name == said
