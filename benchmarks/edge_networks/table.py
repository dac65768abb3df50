"""All networks by name."""

from __future__ import annotations

from edge_networks import convolutions, irreps, molecules, simulators, vectors
from edge_networks.network import Network

NETWORKS: dict[str, Network] = {
    "gns": simulators.GNS, "graphcast": simulators.GRAPHCAST, "egnn": molecules.EGNN,
    "forces": molecules.FORCES, "forces-directed": molecules.DIRECTED_FORCES,
    "painn": molecules.PAINN, "mace": molecules.MACE, "gvp": vectors.GVP,
    "nequip": irreps.NEQUIP,
    "nnconv": convolutions.NNCONV, "edgeconv": convolutions.EDGECONV,
}  # fmt: skip
