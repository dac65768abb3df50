"""`gnnjit data show` and `gnnjit train FILE`: a graph of one's own."""

from __future__ import annotations

import json
import shlex

import pytest

from gnnjit.cli import main


@pytest.fixture
def gnnjit(capsys):
    """Run the command line: the exit code, standard output, standard error."""

    def run(*arguments):
        code = main.main([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return run


def test_show_a_file(gnnjit, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("user;item;stars;time\nann;x;3.5;10\nbob;y;4;20\nann;x;1;30\nbob;bob;2;40\n")
    code, out, _ = gnnjit("data", "show", path, "--option", 'values=["stars"]')
    assert code == 0
    assert (
        out
        == f"""{path}: a graph, read as text
  4 columns with ';' between them, header: user, item, stars, time
  from column user to column item, ids are text, first edge: ann x 3.5 10
  4 vertices, 4 edges
  1 self loops, 1 duplicates, edges one way, largest degree 3
  ids of the source, such as ann, x, bob
  time of each edge: int64[4], 10 to 40
  stars of each edge: float32[4], 1 to 4
  predicted: links
  no labels of vertices: links are predicted. Give labels with --option labels=FILE
  no features of vertices: each learns an embedding. Give them with --option features=FILE, for \
vertices with labels
  users and items have their ids in common: keep them apart with --option bipartite=True, to \
recommend items
read it:  gnnjit.data.read_edges({str(path)!r}, values=['stars'])
train:    gnnjit train {path} --option {shlex.quote("values=['stars']")}
"""
    )
    code, out, _ = gnnjit("data", "show", path, "--json", "-")
    found = json.loads(out)
    assert (code, found["task"], found["layout"]["left out"]) == (0, "link", ["stars"])
    assert found["holds"]["vertices"] == 4


def test_show_a_dataset(gnnjit, tmp_path):
    (tmp_path / "wing.graph").write_text("3 2\n2\n1 3\n2\n")
    code, out, _ = gnnjit("data", "show", tmp_path, "--json", tmp_path / "found.json")
    assert code == 0
    assert "LinkDataset(wing: 3 vertices, 1 relations, 2 train / 0 val / 0 test links)" in out
    assert json.loads((tmp_path / "found.json").read_text())["dataset"] == "wing"
    assert gnnjit("data", "show", tmp_path / "wing.graph")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "show"], "data show: expected the path of a file or folder: gnnjit data show "
         "FILE"),
        (["data", "show", "none.csv"], "no such file or folder, expected one with a dataset."),
        (["train", "./none.csv"], "no such file or folder, expected one with a dataset."),
    ],
)  # fmt: skip
def test_what_is_not_there(gnnjit, arguments, message):
    code, _, err = gnnjit(*arguments)
    assert code == 2
    assert err.rstrip().endswith(message)


def test_a_path_and_a_store(gnnjit, tmp_path):
    (tmp_path / "g.csv").write_text("a,b\n")
    code, _, err = gnnjit("train", tmp_path / "g.csv", "--store", tmp_path / "s", "--devices", "1")
    assert code == 2
    assert err == (
        f"gnnjit: error: --store {tmp_path / 's'}: datasets in a store are made by name, and "
        f"{tmp_path / 'g.csv'} is a path: leave out --store, or pass --data-dir "
        f"{tmp_path / 'g.csv'} and the name\n"
    )


@pytest.mark.long
def test_train_on_a_file(gnnjit, tmp_path):
    """On its links; with labels, on its vertices."""
    ring = "".join(f"v{i} v{(i + k) % 30}\n" for i in range(30) for k in (1, 2))
    (tmp_path / "g.txt").write_text(ring)
    labels = "".join(f"v{i} {'even' if i % 2 else 'odd'}\n" for i in range(30))
    (tmp_path / "y.txt").write_text(labels)
    train = ("train", tmp_path / "g.txt", "--epochs", "2", "--quiet", "--no-compare", "--json", "-")
    code, out, _ = gnnjit(*train, "--hidden", "5", "--batch-size", "20")
    found = json.loads(out)
    assert (code, found["metric"], found["dataset"]["edges"]) == (0, "MRR", 96)
    code, out, _ = gnnjit(*train, "--model", "gcn", "--option", f"labels={tmp_path / 'y.txt'}")
    found = json.loads(out)
    assert (code, found["metric"], found["dataset"]["classes"]) == (0, "accuracy", 2)
