import pytest

from gnnjit.data import DATASETS, Dataset, GraphDataset, open_dataset
from gnnjit.errors import DataError
from gnnjit.nn.recipes import MODELS_OF

_NAMES = (
    "karate, communities, cora, citeseer, pubmed, nell, dblp, ppi, gowalla, fb15k-237, lastfm, "
    "blogcatalog, imdb, mutag, proteins, enzymes"
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
    assert entry.task in MODELS_OF
    assert entry.summary
    assert not {"name", "data_dir", "fetch"} & set(entry.options())
