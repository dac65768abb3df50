"""Flax modules of published graph neural networks, written in gnnjit's public vocabulary.

Each file is one formula; they are meant to be read as examples. `gnnjit.nn.recipes` stacks them
into classifiers, with the hyperparameters that reach the accuracies of the literature. In: a graph
and features. Out: features, or scores of classes. Users and the training commands call it.
"""

from gnnjit.nn.appnp import APPNP
from gnnjit.nn.cheb import Cheb
from gnnjit.nn.commnet import CommNet
from gnnjit.nn.edge_conv import EdgeConv
from gnnjit.nn.gat import GAT
from gnnjit.nn.gated_gcn import GatedGCN
from gnnjit.nn.gatv2 import GATv2
from gnnjit.nn.gcn import GCN
from gnnjit.nn.ggnn import GGNN
from gnnjit.nn.gin import GIN, GINE
from gnnjit.nn.graph_net import GraphNet
from gnnjit.nn.graph_transformer import GraphTransformer
from gnnjit.nn.han import HAN
from gnnjit.nn.hgt import HGT
from gnnjit.nn.jk_net import JKNet
from gnnjit.nn.light_gcn import LightGCN
from gnnjit.nn.magnn import MAGNN
from gnnjit.nn.ngcf import NGCF
from gnnjit.nn.nn_conv import NNConv
from gnnjit.nn.pgnn import PGNN
from gnnjit.nn.pinsage import PinSage
from gnnjit.nn.pna import PNA
from gnnjit.nn.rgat import RGAT
from gnnjit.nn.rgcn import RGCN
from gnnjit.nn.sage import SAGE

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GGNN",
    "GIN",
    "GINE",
    "HAN",
    "HGT",
    "MAGNN",
    "NGCF",
    "PGNN",
    "PNA",
    "RGAT",
    "RGCN",
    "SAGE",
    "Cheb",
    "CommNet",
    "EdgeConv",
    "GATv2",
    "GatedGCN",
    "GraphNet",
    "GraphTransformer",
    "JKNet",
    "LightGCN",
    "NNConv",
    "PinSage",
]
