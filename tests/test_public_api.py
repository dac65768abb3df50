"""The public names and signatures. A change here is a change for users: CHANGELOG.md."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gnnjit
import gnnjit.data
import gnnjit.distributed
import gnnjit.geometry
import gnnjit.graph
import gnnjit.interop.dgl
import gnnjit.interop.igraph
import gnnjit.interop.jax_md
import gnnjit.interop.jraph
import gnnjit.interop.networkx
import gnnjit.interop.pyg
import gnnjit.interop.rustworkx
import gnnjit.interop.scipy
import gnnjit.neighborhood
import gnnjit.nn
import gnnjit.partition
import gnnjit.readout
import gnnjit.sample
import gnnjit.sharding
import gnnjit.store
import gnnjit.streaming
import gnnjit.training


def names(module: Any) -> list[str]:
    return sorted(module.__all__)


def signature(fn: Any) -> str:
    """Names, kinds and defaults; annotations are for the type checker."""
    full = inspect.signature(fn)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in full.parameters.values()]
    return str(full.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_names() -> None:
    assert names(gnnjit) == [
        "Bipartite", "Graph", "TypedGraph", "all", "any", "argmax", "argmin", "autotuning", "check",
        "degree", "dropout", "explain", "fold", "keep_memory", "layer", "logsumexp", "max", "mean",
        "median", "memory_budget", "min", "portable", "prod", "quantile", "random_uniform",
        "rebalance", "reference", "shard", "softmax", "sort", "std", "stream", "sum", "top_k",
        "var",
    ]  # fmt: skip


def test_names_of_readout() -> None:
    assert names(gnnjit.readout) == ["max", "mean", "min", "softmax", "std", "sum"]


def test_names_of_partition() -> None:
    assert names(gnnjit.partition) == ["Partition"]


def test_names_of_sharding() -> None:
    assert names(gnnjit.sharding) == ["ShardedGraph", "ShardedTypedGraph"]


def test_names_of_distributed() -> None:
    assert names(gnnjit.distributed) == [
        "DistributedError", "barrier", "broadcast_bytes", "connect", "everywhere", "gather_bytes",
        "is_main",
    ]  # fmt: skip


def test_names_of_training() -> None:
    assert names(gnnjit.training) == [
        "CheckpointError", "Epoch", "Result", "Run", "Sampling", "Summary", "TrainConfig",
        "TrainError", "train",
    ]  # fmt: skip


def test_names_of_sample() -> None:
    assert names(gnnjit.sample) == [
        "Batch", "BatchSource", "ClusterSampler", "EdgeSampler", "Event", "FrontierSampler",
        "GraphSampler", "HopSampler", "InducedSampler", "LinkSample", "LinkSampler", "Loader",
        "NegativeSampler", "Negatives", "NeighborSampler", "Normalized", "Padding", "Report",
        "Sample", "Sampler", "Shapes", "Stored", "TypedLinkSample",
        "TypedLinkSampler", "TypedNeighborSampler", "TypedSample",
        "VertexSampler", "WalkSampler", "Workers",
        "iter_dataset", "plan_graph_shapes", "plan_shapes", "plot_timeline",
    ]  # fmt: skip


def test_names_of_geometry() -> None:
    assert names(gnnjit.geometry) == [
        "Found", "NearestSearch", "RadiusSearch", "displacement", "nearest", "radius",
    ]  # fmt: skip


def test_names_of_neighborhood() -> None:
    assert names(gnnjit.neighborhood) == [
        "HDG", "Records", "Report", "ShardedHDG", "StreamedHDG", "anchors", "direct", "hops",
        "metapaths", "random_walks", "select", "shard", "side_by_side", "stream", "take",
    ]  # fmt: skip


def test_names_of_streaming() -> None:
    assert names(gnnjit.streaming) == [
        "EdgeArray", "StreamedGraph", "StreamedTypedGraph", "VertexArray",
    ]  # fmt: skip


def test_names_of_store() -> None:
    assert names(gnnjit.store) == ["CollectiveStore", "DiskStore", "HostStore", "VertexStore"]


def test_names_of_modules() -> None:
    assert names(gnnjit.nn) == [
        "APPNP", "Cheb", "CommNet", "EdgeConv", "GAT", "GATv2", "GCN", "GGNN", "GIN", "GINE",
        "GatedGCN", "GraphNet", "GraphTransformer", "HAN", "HGT", "JKNet", "LightGCN", "MAGNN",
        "NGCF", "NNConv", "PGNN", "PNA", "PinSage", "RGAT", "RGCN", "SAGE",
    ]  # fmt: skip


def test_names_of_data() -> None:
    assert names(gnnjit.data) == [
        "DATASETS", "Dataset", "EdgeList", "Entry", "Fold", "GraphDataset", "LinkDataset",
        "PairDataset", "ParticleDataset", "SensorDataset", "blogcatalog", "cache_dir", "caveman",
        "citation_full",
        "communities", "deduplicated", "fb15k_237", "gowalla", "imdb", "induced", "karate",
        "lagrange", "largest_component", "lastfm", "metr_la", "molecule_set", "molecules",
        "negative_links", "network", "open_dataset", "own_dataset", "planetoid", "ppi",
        "random_split", "read_edges", "row_normalize", "split_links", "time_split",
        "to_undirected", "training_part", "tu", "with_degrees", "with_laplacian",
        "with_random_walks", "without_self_loops",
    ]  # fmt: skip


def test_names_of_graph() -> None:
    assert names(gnnjit.graph) == [
        "Bipartite", "DegreeStatistics", "Graph", "Statistics", "Structure", "TypedGraph", "batch",
        "coalesce", "symmetrize",
    ]  # fmt: skip


def test_methods_of_graph() -> None:
    public = {name for name in vars(gnnjit.Graph) if not name.startswith("_")}
    assert sorted(public - set(gnnjit.Graph.__dataclass_fields__)) == [
        "at_both_ends", "check", "degree", "from_edges", "gcn_factors", "gcn_norm", "in_degree",
        "num_dropped", "num_graphs", "num_nodes", "num_relations", "out_degree", "pad", "pad_edges",
        "pad_nodes", "reverse", "statistics", "structure", "to_undirected", "with_self_loops",
    ]  # fmt: skip


def test_methods_of_typed_graph() -> None:
    public = {name for name in dir(gnnjit.TypedGraph) if not name.startswith("_")}
    assert sorted(public - set(gnnjit.TypedGraph.__dataclass_fields__)) == [
        "batch", "check_edges", "check_nodes", "from_edges", "from_graphs", "into", "items",
        "lengths", "num_edges", "num_nodes", "out_of", "pad", "pad_edges", "pad_nodes", "relation",
        "reverse", "select", "statistics", "with_relations", "with_reverse", "with_self_relations",
    ]  # fmt: skip


FUNCTIONS = {
    "Bipartite": "(src=None, dst=None)",
    "all": "(value, *, over='in')",
    "any": "(value, *, over='in')",
    "argmax": "(value, *, over='in')",
    "argmin": "(value, *, over='in')",
    "check": "(target, *args, rtol=None, seed=0, **keywords)",
    "degree": "(*, over='in')",
    "dropout": "(value, rate, key)",
    "explain": (
        "(target, *args, backward=True, wrt='all', measure=False, learn=False, **keywords)"
    ),
    "fold": "(step, init, value, *, order=None, over='in')",
    "layer": "(fn=None, *, static_argnames=(), memory_budget=None)",
    "logsumexp": "(value, *, initial=None, over='in')",
    "max": "(value, *, initial=None, over='in')",
    "mean": "(value, *, initial=None, over='in')",
    "median": "(value, *, initial=None, over='in')",
    "memory_budget": "(size)",
    "min": "(value, *, initial=None, over='in')",
    "portable": "()",
    "prod": "(value, *, initial=None, over='in')",
    "quantile": "(value, q, *, initial=None, over='in')",
    "random_uniform": "(key, like)",
    "rebalance": (
        "(graph, sharded, fn, *args, threshold=1.1, cost=None, plans=8, seed=0, repeats=3)"
    ),
    "reference": "()",
    "softmax": "(value, *, over='in')",
    "sort": "(value, size, *, order=None, initial=None, over='in')",
    "std": "(value, *, initial=None, over='in')",
    "sum": "(value, *, initial=None, over='in')",
    "top_k": "(value, k, *, order=None, initial=None, over='in')",
    "var": "(value, *, initial=None, over='in')",
    "Graph.from_edges": (
        "(src, dst=None, num_nodes=None, *, num_src=None, num_dst=None, edge_mask=None, "
        "sorted_by=None, symmetric=False, relation=None, num_relations=None)"
    ),
    "Graph.degree": "(self, space='in')",
    "Graph.gcn_norm": "(self, weights=None)",
    "Graph.gcn_factors": "(self, weights=None)",
    "Graph.pad": (
        "(self, num_nodes=None, num_edges=None, *, num_src=None, num_dst=None, num_graphs=None)"
    ),
    "Graph.pad_edges": "(self, edges)",
    "Graph.pad_nodes": "(self, x)",
    "Graph.reverse": "(self)",
    "Graph.with_self_loops": "(self, edges=None, *, fill=1.0, missing_only=True)",
    "Graph.statistics": "(self)",
    "Graph.to_undirected": "(self)",
    "TypedGraph.batch": "(graphs)",
    "TypedGraph.from_edges": "(edges, num_nodes=None, *, edge_mask=None)",
    "TypedGraph.from_graphs": "(graphs, num_nodes=None)",
    "TypedGraph.pad": "(self, num_nodes=None, num_edges=None)",
    "TypedGraph.with_reverse": "(self, relations=None, *, prefix='rev_')",
    "TypedGraph.with_self_relations": "(self, name='self')",
    "shard": (
        "(graph, mesh, axis=None, *, partition='auto', order='auto', exchange='auto', "
        "features=None, width=64, cost=None, memory_budget=None)"
    ),
    "stream": (
        "(fn=None, *, memory_budget, process=False, parts=None, slices=None, selective=True, "
        "overlapped=True, cached=True, refined=False)"
    ),
    "streaming.StreamedGraph.from_edges": (
        "(src, dst, num_nodes, *, store=None, order='auto', seed=0, graph_index=None, "
        "num_graphs=None, relation=None, num_relations=None)"
    ),
    "streaming.StreamedGraph.put": "(self, name, rows)",
    "streaming.StreamedGraph.put_edges": "(self, name, rows)",
    "streaming.StreamedGraph.array": "(self, name)",
    "streaming.StreamedGraph.edge_array": "(self, name)",
    "streaming.StreamedTypedGraph.from_edges": ("(edges, num_nodes=None, *, parts, store=None)"),
    "store.DiskStore.create": "(folder)",
    "store.DiskStore.open": "(folder)",
    "graph.batch": "(graphs)",
    "readout.max": "(value, *, initial=None)",
    "readout.mean": "(value, *, initial=None)",
    "readout.min": "(value, *, initial=None)",
    "readout.softmax": "(value)",
    "readout.std": "(value, *, initial=None)",
    "readout.sum": "(value, *, initial=None)",
    "graph.coalesce": "(src, dst)",
    "graph.symmetrize": "(src, dst)",
    "data.open_dataset": "(name, data_dir=None, **options)",
    "data.communities": (
        "(num_nodes=10000, num_classes=8, num_features=64, avg_degree=20.0, seed=0, *, "
        "homophily=0.6, exponent=2.5, max_degree=None, separation=2.0, "
        "train_fraction=0.1, val_fraction=0.1)"
    ),
    "data.karate": "(labels='community')",
    "training.train": (
        "(dataset, config=None, *, sampling=None, seeds=1, folds=10, build=None, checkpoint=None, "
        "resume=False, checkpoint_every=10, compare=False, memory_budget=None, store=None, "
        "devices=None, partition='auto', exchange='auto', watcher=None)"
    ),
    "training.TrainConfig": (
        "(model='gat', layers=2, hidden=16, heads=4, out_heads=1, dropout=0.5, lr=0.01, "
        "weight_decay=0.0005, decay='all', optimizer='adam', epochs=200, patience=0, "
        "best_by='accuracy', seed=0, batch_size=0, steps_per_epoch=1, halve_every=0, "
        "normalize_features=False, negatives=1, clip=0.0, evaluate_every=1, "
        "split='given', loss='pairs', select_every=0)"
    ),
    "data.read_edges": (
        "(source, *, kind=None, columns=None, weight=None, time=None, values=(), delimiter=None, "
        "header=None, comments='#%', ids='auto', num_nodes=None, undirected=False, "
        "bipartite=False, key=None, store=None, block_bytes=8388608, progress=False)"
    ),
    "data.split_links": "(edges, *, val=None, test=None, by_time=False, seed=0)",
    "geometry.RadiusSearch.fit": (
        "(positions, cutoff, *, box=None, graph_index=None, mask=None, loops=False, slack=1.25)"
    ),
    "geometry.radius": (
        "(positions, cutoff, *, box=None, graph_index=None, mask=None, loops=False)"
    ),
    "geometry.nearest": ("(positions, k, *, box=None, graph_index=None, mask=None, loops=False)"),
    "geometry.NearestSearch.fit": (
        "(positions, k, *, box=None, graph_index=None, mask=None, loops=False, slack=1.25)"
    ),
    "geometry.displacement": "(a, b, box=None)",
    "interop.jax_md.from_neighbor_list": "(neighbors)",
    "interop.dgl.from_heterograph": "(heterograph)",
    "interop.dgl.to_heterograph": ("(graph, heterograph, nodes=None, edges=None, *, tensor=None)"),
    "interop.jraph.from_graphs_tuple": "(graphs, *, padded=False)",
    "interop.jraph.to_graphs_tuple": (
        "(graph, nodes=None, edges=None, globals=None, n_node=None, n_edge=None)"
    ),
    "interop.pyg.from_hetero_data": "(data)",
    "interop.pyg.to_hetero_data": "(graph, data, nodes=None, edges=None, *, tensor=None)",
    "interop.pyg.from_data": "(data)",
    "interop.pyg.to_data": "(graph, data, nodes=None, edges=None, *, tensor=None)",
    "interop.networkx.from_networkx": "(graph)",
    "interop.networkx.to_networkx": "(graph, empty, nodes=None, edges=None)",
    "interop.igraph.from_igraph": "(graph)",
    "interop.igraph.to_igraph": "(graph, make, nodes=None, edges=None)",
    "interop.rustworkx.from_rustworkx": "(graph)",
    "interop.rustworkx.to_rustworkx": "(graph, empty, nodes=None, edges=None)",
    "interop.scipy.from_scipy": "(matrix, *, bipartite=None)",
    "interop.scipy.to_scipy": "(graph, weights=None)",
    "nn.APPNP.__init__": "(self, steps=10, alpha=0.1, *, dropout=0.0, self_loops=True)",
    "nn.APPNP.__call__": "(self, graph, x, *, edges=None, key=None)",
    "nn.Cheb.__init__": ("(self, in_features, out_features, *, terms=3, lambda_max=2.0, rngs)"),
    "nn.Cheb.__call__": "(self, graph, x, *, edges=None)",
    "nn.CommNet.__init__": "(self, in_features, out_features, *, aggregator='mean', rngs)",
    "nn.CommNet.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.EdgeConv.__init__": "(self, in_features, hidden, out_features, *, rngs)",
    "nn.EdgeConv.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.GAT.__init__": (
        "(self, in_features, out_features, *, heads=1, concat=True, dropout=0.0, "
        "negative_slope=0.2, self_loops=True, edge_features=None, rngs)"
    ),
    "nn.GAT.__call__": "(self, graph, x, /, *, edges=None, globals=None, key=None)",
    "nn.GATv2.__init__": (
        "(self, in_features, out_features, *, heads=1, concat=True, dropout=0.0, "
        "negative_slope=0.2, self_loops=True, edge_features=None, rngs)"
    ),
    "nn.GATv2.__call__": "(self, graph, x, /, *, edges=None, globals=None, key=None)",
    "nn.GCN.__init__": "(self, in_features, out_features, *, self_loops=True, use_bias=True, rngs)",
    "nn.GCN.__call__": "(self, graph, x, *, edges=None)",
    "nn.GGNN.__init__": "(self, features, *, steps=2, edge_types=1, rngs)",
    "nn.GGNN.__call__": "(self, graph, x, *, edges=None)",
    "nn.GIN.__init__": (
        "(self, in_features, hidden, out_features, *, eps=0.0, train_eps=False, "
        "batch_norm=False, edge_features=None, rngs)"
    ),
    "nn.GIN.__call__": "(self, graph, x, *, edges=None, train=False, mask=None)",
    "nn.GINE.__init__": (
        "(self, in_features, hidden, out_features, *, edge_features, eps=0.0, train_eps=False, "
        "batch_norm=False, rngs)"
    ),
    "nn.GINE.__call__": "(self, graph, x, *, edges=None, train=False, mask=None)",
    "nn.GraphNet.__init__": (
        "(self, in_features, hidden, out_features, *, edge_features=None, global_features=None, "
        "rngs)"
    ),
    "nn.GraphNet.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.GraphTransformer.__init__": (
        "(self, in_features, out_features, *, heads=1, concat=True, beta=False, dropout=0.0, "
        "edge_features=None, rngs)"
    ),
    "nn.GraphTransformer.__call__": "(self, graph, x, /, *, edges=None, globals=None, key=None)",
    "nn.GatedGCN.__init__": "(self, in_features, out_features, *, edge_features=None, rngs)",
    "nn.GatedGCN.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.HAN.__init__": (
        "(self, in_features, out_features, *, heads=1, types, relations, semantic_features=128, "
        "dropout=0.0, negative_slope=0.2, rngs)"
    ),
    "nn.HAN.__call__": "(self, graph, x, *, key=None)",
    "nn.HGT.__init__": "(self, in_features, out_features, *, heads=1, types, relations, rngs)",
    "nn.HGT.__call__": "(self, graph, x)",
    "nn.JKNet.__init__": "(self, in_features, out_features, *, hops, jump='max', rngs)",
    "nn.JKNet.__call__": "(self, hdg, x)",
    "nn.LightGCN.__init__": "(self, steps=3, *, weights=None)",
    "nn.LightGCN.__call__": "(self, graph, x, *, edges=None)",
    "nn.MAGNN.__init__": (
        "(self, in_features, out_features, *, hidden, heads=1, types, paths, longest=3, "
        "encoder='rotation', relations=None, semantic_features=128, dropout=0.0, rngs)"
    ),
    "nn.MAGNN.__call__": "(self, hdg, x, *, key=None)",
    "nn.NGCF.__init__": (
        "(self, in_features, hidden, *, form='code', dropout=0.0, negative_slope=0.2, "
        "normalize=False, rngs)"
    ),
    "nn.NGCF.__call__": "(self, graph, x, *, edges=None, key=None)",
    "nn.NNConv.__init__": (
        "(self, in_features, hidden, out_features, *, edge_features, aggregator='sum', rngs)"
    ),
    "nn.NNConv.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.PGNN.__init__": "(self, in_features, out_features, *, rngs)",
    "nn.PGNN.__call__": "(self, hdg, x)",
    "nn.PinSage.__init__": (
        "(self, in_features, out_features, *, hidden=None, normalize=True, rngs)"
    ),
    "nn.PinSage.__call__": "(self, graph, x, *, edges=None)",
    "nn.PNA.__init__": (
        "(self, in_features, out_features, *, aggregators=('mean', 'min', 'max', 'std'), "
        "scalers=('identity', 'amplification', 'attenuation'), delta=None, edge_features=None, "
        "rngs)"
    ),
    "nn.PNA.__call__": "(self, graph, x, *, edges=None)",
    "nn.RGAT.__init__": (
        "(self, in_features, out_features, *, heads=1, types, relations, attention='across', "
        "scores='additive', concat=True, dropout=0.0, negative_slope=0.2, rngs)"
    ),
    "nn.RGAT.__call__": "(self, graph, x, /, *, edges=None, globals=None, key=None)",
    "nn.RGCN.__init__": (
        "(self, in_features, out_features, *, types=None, relations=None, num_relations=None, "
        "bases=None, blocks=None, mean='relation', use_bias=True, rngs)"
    ),
    "nn.RGCN.__call__": "(self, graph, x, /, *, edges=None, globals=None)",
    "nn.SAGE.__init__": (
        "(self, in_features, out_features, *, aggregator='mean', normalize=False, rngs)"
    ),
    "nn.SAGE.__call__": "(self, graph, x, *, edges=None)",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures(name: str) -> None:
    found: Any = gnnjit
    for part in name.split("."):
        found = getattr(found, part)
    assert signature(found) == FUNCTIONS[name]


@pytest.mark.parametrize("name", sorted({*gnnjit.__all__, *gnnjit.nn.__all__}))
def test_public_names_are_documented(name: str) -> None:
    found = getattr(gnnjit, name, None) or getattr(gnnjit.nn, name)
    doc = inspect.getdoc(found) or ""
    assert not doc.startswith(f"{name}("), f"{name} has only the docstring of a dataclass"
    assert len(doc) > 40, f"{name} says too little"


def test_package_data_is_installed() -> None:
    package = Path(gnnjit.__file__).parent
    assert (package / "py.typed").is_file()
    numbers = sorted(p.name[:4] for p in (package / "design").glob("*.md"))
    assert len(numbers) >= 5
    assert numbers == [f"{i:04d}" for i in range(1, len(numbers) + 1)]


@pytest.mark.long
def test_layers_on_small_graphs_do_without_scipy():
    """In a fresh process: it takes a sixth of the time of `import gnnjit`."""
    code = (
        "import sys, gnnjit, jax.numpy as jnp\n"
        "sum_ = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))\n"
        "graph = gnnjit.Graph.from_edges([0, 1, 1], [1, 2, 0], 3)\n"
        "assert sum_(graph, jnp.arange(3.0)).tolist() == [1, 0, 1]\n"
        "assert 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
