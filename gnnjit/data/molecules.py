"""Molecules as graphs: SMILES through RDKit, and the tables of SDF files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnjit.config import path_of
from gnnjit.data.files import Fetch, fetch_url, library, locate
from gnnjit.data.tables import text_of
from gnnjit.data.types import GraphDataset
from gnnjit.data.upstream import MOLECULES
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray

ELEMENTS = ("H", "B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Br", "I")
"""The elements that have a feature of their own; all others share one."""
BONDS = ("single", "double", "triple", "aromatic")
"""What `edge_label` numbers."""
_HYBRIDS = ("SP", "SP2", "SP3")
_DEGREES, _HYDROGENS = 6, 5

_SOURCES = {
    "esol": ("Delaney 2004", "measured log solubility in mols per litre"),
    "freesolv": ("Mobley & Guthrie 2014", "expt"),
    "lipophilicity": ("Wu et al. 2018, arXiv:1703.00564", "exp"),
}


class _Molecule(NamedTuple):
    """Atoms and bonds: features [A, F], ends [B, 2] from 0, kinds [B], and where the atoms are."""

    x: HostArray
    bonds: HostArray
    kinds: HostArray
    pos: HostArray | None = None


def molecule_set(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, fetch: Fetch = fetch_url
) -> GraphDataset:
    """Sets of MoleculeNet with a number for each molecule, and small molecules with positions.

    Wu et al., "MoleculeNet: a benchmark for molecular machine learning" (2018), section 3.1, where
    splits are drawn by chance: `GraphDataset.folds` does. The sets of SMILES need RDKit.

    Args:
      name: "esol" (log solubility), "freesolv" (kcal/mol), "lipophilicity" (log D), "gdb1k" (no
        target).
      data_dir: holds the file, or a folder `molecules` with it; see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      1,128; 642; 4,200; and 1,000 molecules, as `molecules` gives them.

    Raises:
      DataError: if the name is unknown, the file is missing or damaged, or RDKit is not installed.
    """
    if name not in MOLECULES:
        raise DataError(f"molecule_set: got {name!r}, expected one of {', '.join(MOLECULES)}.")
    file = MOLECULES[name]
    path = locate(name, "molecules", (file,), data_dir, fetch)[file.name]
    source, target = _SOURCES.get(name, ("Blum & Reymond 2009", None))
    return molecules(path, targets=() if target is None else (target,), name=name, source=source)


def molecules(
    path: str | os.PathLike[str],
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    name: str | None = None,
    source: str = "",
) -> GraphDataset:
    """The molecules of a CSV file with a column of SMILES, or of an SDF file (V2000).

    Features of an atom are its element, one of `ELEMENTS` or another; of SMILES also how many
    neighbours and hydrogens it has, its hybridisation, charge, and whether it is aromatic or in a
    ring. Each bond goes both ways, and `edge_label` numbers `BONDS`. Of SDF, `pos` are the
    positions in the file's unit (Ångström, as a rule), and hydrogens are atoms.

    Args:
      path: the file; what ends with .sdf is one.
      smiles: the column of SMILES, which RDKit reads.
      targets: columns of numbers to predict; of an SDF file its data items.
      name, source: of the dataset; by default the file's name.

    Raises:
      DataError: naming the file and the line with what is wrong in it; or there are SMILES to
        read, and RDKit is not installed.
    """
    path = path_of(path, "molecules", DataError)
    reader = _of_sdf if path.suffix.lower() == ".sdf" else _of_smiles
    found, numbers = reader(path, smiles, tuple(targets))
    return _assembled(name or path.stem, found, numbers, source)


def _assembled(
    name: str, found: Sequence[_Molecule], numbers: Sequence[Sequence[float]], source: str
) -> GraphDataset:
    if not found:
        raise DataError(f"{name}: has no molecules, expected some.")
    atoms = np.cumsum([0, *(len(m.x) for m in found)])
    bonds = np.cumsum([0, *(2 * len(m.bonds) for m in found)])
    ends = [m.bonds.reshape(-1, 2) + start for m, start in zip(found, atoms[:-1], strict=True)]
    both = [np.concatenate([pair, pair[:, ::-1]]) for pair in ends]
    src, dst = np.concatenate(both).T.astype(np.int32)
    positions = [m.pos for m in found if m.pos is not None]
    return GraphDataset(
        name=name,
        node_offsets=atoms.astype(np.int64),
        edge_offsets=bonds.astype(np.int64),
        src=np.ascontiguousarray(src),
        dst=np.ascontiguousarray(dst),
        x=np.concatenate([m.x for m in found]).astype(np.float32),
        y=np.array(numbers, np.float32).reshape(len(found), -1),
        num_classes=0,
        edge_label=np.concatenate([np.tile(m.kinds, 2) for m in found]).astype(np.int32),
        source=source,
        pos=np.concatenate(positions).astype(np.float32) if positions else None,
    )


def _of_smiles(
    path: Path, smiles: str, targets: tuple[str, ...]
) -> tuple[list[_Molecule], list[list[float]]]:
    how = "pip install rdkit, or pass a file of .sdf"
    chem, log = (library(f"rdkit.{part}", path.name, how) for part in ("Chem", "rdBase"))
    reader = csv.DictReader(io.StringIO(text_of(path)))
    missing = [c for c in (smiles, *targets) if c not in (reader.fieldnames or ())]
    if missing:
        columns = ", ".join(reader.fieldnames or ()) or "none"
        raise DataError(f"{path}, line 1: has no column {missing[0]!r}, expected one of {columns}.")
    found, numbers = [], []
    with log.BlockLogs():  # it tells what is wrong on standard error
        for row in reader:
            where, text = f"{path}, line {reader.line_num}", (row[smiles] or "").strip()
            molecule = chem.MolFromSmiles(text) if text else None
            if molecule is None:
                raise DataError(
                    f"{where}: got {text[:80]!r}, expected SMILES that RDKit reads. Correct the "
                    "line, or leave it out."
                )
            found.append(_molecule(molecule))
            numbers.append([_number(where, row[column], column) for column in targets])
    return found, numbers


def _number(where: str, text: str | None, column: str) -> float:
    try:
        return float(text or "")
    except ValueError as error:
        raise DataError(f"{where}: got {text!r}, expected a number, the {column}.") from error


def _one_hot(index: int, count: int) -> list[float]:
    return [float(i == min(index, count - 1)) for i in range(count)]


def _element(symbol: str) -> list[float]:
    found = ELEMENTS.index(symbol) if symbol in ELEMENTS else len(ELEMENTS)
    return _one_hot(found, len(ELEMENTS) + 1)


def _molecule(molecule: Any) -> _Molecule:
    """A molecule of RDKit."""
    rows = []
    for atom in molecule.GetAtoms():
        hybrid = str(atom.GetHybridization())
        rows.append(
            _element(atom.GetSymbol())
            + _one_hot(atom.GetDegree(), _DEGREES)
            + _one_hot(atom.GetTotalNumHs(), _HYDROGENS)
            + _one_hot(_HYBRIDS.index(hybrid) if hybrid in _HYBRIDS else 3, 4)
            + [atom.GetFormalCharge(), float(atom.GetIsAromatic()), float(atom.IsInRing())]
        )
    bonds = list(molecule.GetBonds())
    kinds = [str(bond.GetBondType()).lower() for bond in bonds]
    return _Molecule(
        np.array(rows, np.float32),
        np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in bonds], np.int64),
        np.array([BONDS.index(kind) if kind in BONDS else 0 for kind in kinds], np.int64),
    )


def _of_sdf(
    path: Path, smiles: str, targets: tuple[str, ...]
) -> tuple[list[_Molecule], list[list[float]]]:
    lines = _Lines(path)
    found, numbers = [], []
    while lines.more():
        found.append(_block(lines))
        items = _items(lines)
        missing = [t for t in targets if t not in items]
        if missing:
            raise DataError(
                f"{lines.where()}: the molecule before has no item {missing[0]!r}, expected one of "
                f"{', '.join(items) or 'none'}."
            )
        numbers.append([_number(lines.where(), items[t], t) for t in targets])
    return found, numbers


class _Lines:
    """The lines of a file, one after the other."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._lines = text_of(path).splitlines()

    def more(self) -> bool:
        """Whether there is another line with something in it."""
        return any(line.strip() for line in self._lines[self._at : self._at + 4])

    def next(self) -> str:
        """The next line. Raises DataError at the end of the file."""
        if self._at == len(self._lines):
            raise DataError(f"{self._path}: ends within a molecule. Get the file again.")
        self._at += 1
        return self._lines[self._at - 1]

    def where(self) -> str:
        """The file, and the line that came last."""
        return f"{self._path}, line {self._at}"

    def read(self, parse: Callable[[str], Any], expected: str) -> Any:
        """What `parse` makes of the next line. Raises DataError naming the line."""
        line = self.next()
        try:
            return parse(line)
        except (ValueError, IndexError) as error:
            raise DataError(
                f"{self.where()}: got {line.strip()[:80]!r}, expected {expected}."
            ) from error


def _block(lines: _Lines) -> _Molecule:
    """Three lines of a header, the counts, atoms and bonds: BIOVIA's "CTfile formats", V2000."""
    for _ in range(3):
        lines.next()
    atoms, bonds = lines.read(
        lambda line: (int(line[:3]), int(line[3:6])), "the numbers of atoms and bonds, of V2000"
    )
    rows = [lines.read(_atom, "the position of an atom, and its element") for _ in range(atoms)]
    pairs = []
    for _ in range(bonds):
        pair = lines.read(
            lambda line: (int(line[:3]) - 1, int(line[3:6]) - 1, int(line[6:9]) - 1), "a bond"
        )
        if not all(0 <= atom < atoms for atom in pair[:2]) or not 0 <= pair[2] < len(BONDS):
            raise DataError(
                f"{lines.where()}: joins atoms {pair[0] + 1} and {pair[1] + 1} by bond "
                f"{pair[2] + 1}, expected atoms from 1 to {atoms} and bonds from 1 to {len(BONDS)}."
            )
        pairs.append(pair)
    table = np.array(pairs, np.int64).reshape(-1, 3)
    return _Molecule(
        np.array([_element(symbol) for *_, symbol in rows], np.float32),
        table[:, :2],
        table[:, 2],
        np.array([row[:3] for row in rows], np.float32),
    )


def _atom(line: str) -> tuple[float, float, float, str]:
    symbol = line[31:34].strip()
    if not symbol.isalpha():
        raise ValueError(symbol)
    return float(line[:10]), float(line[10:20]), float(line[20:30]), symbol


def _items(lines: _Lines) -> dict[str, str]:
    """The data items up to the end of the molecule."""
    items, name = {}, None
    for line in _until_end(lines):
        if line.startswith(">"):
            name = line[line.find("<") + 1 : line.rfind(">")]
        elif name is not None and line.strip():
            items.setdefault(name, line.strip())
    return items


def _until_end(lines: _Lines) -> Iterator[str]:
    while (line := lines.next()).strip() != "$$$$":
        yield line
