"""The public names, in the order of the API reference.

`tests/docs` checks that every `__all__` of these packages, and every error, is here. Where a
package moves, this is the one place of the manual to change.
"""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    """One page of the reference's contents.

    Attributes:
        page: its file name.
        title: of the page.
        about: what these names are for, in MyST.
        package: where the names are found.
        names: separated by blanks. What has the form `module:name` is found in another module.
    """

    page: str
    title: str
    about: str
    package: str
    names: str


SECTIONS = (
    Section(
        "layers",
        "Layers",
        "The decorator, and what is asked of a layer. A layer `f` has two methods, `f.explain` and "
        "`f.check`, which take the arguments of a call of it, as the functions of these names do "
        "after the layer.",
        "gnnjit",
        "layer explain check reference portable "
        "gnnjit.compiler.explain:LayerExplanation gnnjit.compiler.explain:Explanation "
        "gnnjit.compiler.explain:Rewrite "
        "gnnjit.compiler.explain:Buffer gnnjit.compiler.explain_traversals:Kernel "
        "gnnjit.compiler.plan_tables:PlanExplanation "
        "gnnjit.compiler.plan_tables:TableRow gnnjit.compiler.check:CheckReport "
        "gnnjit.compiler.check:CheckReports "
        "gnnjit.compiler.check:Difference",
    ),
    Section(
        "vocabulary",
        "Vocabulary",
        "What a layer says beside JAX itself. Reductions run over the incoming edges of a vertex, "
        "or its outgoing ones, and take a pytree of values of any shape.",
        "gnnjit",
        "sum mean max min var std logsumexp prod any all degree softmax argmax argmin median "
        "quantile top_k sort fold dropout random_uniform",
    ),
    Section(
        "readouts",
        "Readouts",
        "What a layer says of whole graphs: reductions over the vertices, or the edges, of each "
        "graph of a batch. They take a pytree of values of any shape.",
        "gnnjit.readout",
        "sum mean max min std softmax",
    ),
    Section(
        "graphs",
        "Graphs",
        "Edges in two sorted structures, padding, batching, self loops, normalisation, statistics.",
        "gnnjit.graph",
        "gnnjit:Graph gnnjit:Bipartite gnnjit:TypedGraph "
        "batch coalesce symmetrize Structure Statistics "
        "DegreeStatistics",
    ),
    Section(
        "memory",
        "Memory and plans",
        "What limits and tunes the plans of layers.",
        "gnnjit",
        "memory_budget autotuning keep_memory",
    ),
    Section(
        "sample",
        "Mini-batches",
        "Samplers, what they draw, and the loader that makes padded batches of it.",
        "gnnjit.sample",
        "Loader Batch Report NeighborSampler TypedNeighborSampler TypedSample "
        "TypedLinkSampler TypedLinkSample "
        "FrontierSampler WalkSampler VertexSampler EdgeSampler "
        "Normalized ClusterSampler HopSampler GraphSampler LinkSampler LinkSample NegativeSampler "
        "Negatives Sampler InducedSampler Sample Workers "
        "Shapes Padding plan_shapes plan_graph_shapes Stored Event plot_timeline BatchSource "
        "iter_dataset",
    ),
    Section(
        "neighborhood",
        "Neighbourhoods",
        "What selects neighbourhoods that are not edges, and the levels that they are aggregated "
        "over.",
        "gnnjit.neighborhood",
        "HDG direct hops random_walks metapaths anchors select Records Report shard ShardedHDG "
        "stream StreamedHDG take side_by_side",
    ),
    Section(
        "geometry",
        "Edges from positions",
        "All pairs within a radius, or the nearest of each, in open and periodic boxes.",
        "gnnjit.geometry",
        "RadiusSearch NearestSearch Found radius nearest displacement",
    ),
    Section(
        "streaming",
        "Larger than memory",
        "Functions of a graph whose rows lie in a store, run block by block.",
        "gnnjit.streaming",
        "gnnjit:stream gnnjit.streaming.compile:StreamedFunction "
        "gnnjit.streaming.explain:GridExplanation "
        "StreamedGraph StreamedTypedGraph VertexArray EdgeArray",
    ),
    Section(
        "stores",
        "Stores",
        "Where streamed rows lie: in memory, on one computer's disk, or shared by processes.",
        "gnnjit.store",
        "VertexStore HostStore DiskStore CollectiveStore",
    ),
    Section(
        "sharding",
        "Many devices",
        "One graph over the devices of a mesh.",
        "gnnjit.sharding",
        "gnnjit:shard gnnjit:rebalance gnnjit.sharding.rebalance:shard_seconds ShardedGraph "
        "ShardedTypedGraph gnnjit.sharding.report:ShardReport gnnjit.partition:Partition",
    ),
    Section(
        "distributed",
        "Many processes",
        "Processes of one job: connected, agreed, and stopped together.",
        "gnnjit.distributed",
        "connect is_main barrier everywhere broadcast_bytes gather_bytes",
    ),
    Section(
        "nn",
        "Modules for Flax nnx",
        "Published layers, each one file in the public vocabulary.",
        "gnnjit.nn",
        "GCN SAGE GAT GATv2 GIN GatedGCN CommNet GGNN EdgeConv GINE NNConv GraphNet PNA "
        "GraphTransformer Cheb APPNP LightGCN NGCF RGCN RGAT HGT HAN PinSage MAGNN PGNN JKNet",
    ),
    Section(
        "linen",
        "Modules for Flax linen",
        "The same formulas for `flax.linen`.",
        "gnnjit.nn.linen",
        "GCN SAGE GAT GIN",
    ),
    Section(
        "recipes",
        "Classifiers and recipes",
        "Stacks of modules, and hyperparameters from the literature.",
        "gnnjit.nn.recipes",
        "Classifier GraphClassifier Embedded TypedClassifier LinkPredictor "
        "PathPredictor Recommender "
        "HopClassifier MetapathClassifier PositionModel build build_graph MODELS MODELS_OF "
        "RECIPES Recipe recipe_for data_options",
    ),
    Section(
        "data",
        "Datasets",
        "Built in, generated, read from the files of their papers, or your own graph.",
        "gnnjit.data",
        "open_dataset read_edges own_dataset molecules DATASETS Entry "
        "Dataset GraphDataset LinkDataset PairDataset ParticleDataset SensorDataset EdgeList Fold "
        "split_links negative_links random_split time_split training_part to_undirected "
        "deduplicated without_self_loops largest_component induced with_degrees with_random_walks "
        "with_laplacian row_normalize cache_dir karate communities caveman "
        "planetoid ppi citation_full blogcatalog imdb fb15k_237 gowalla lastfm tu network "
        "molecule_set lagrange metr_la "
        "gnnjit.data.stored.prepare:prepare gnnjit.data.stored.prepare:keep "
        "gnnjit.data.stored.dataset:StoredDataset",
    ),
    Section(
        "training",
        "Training",
        "The training loop of `gnnjit train`, as a function.",
        "gnnjit.training",
        "train TrainConfig Sampling Result Run Epoch Summary",
    ),
    Section(
        "jraph",
        "Jraph",
        "`GraphsTuple`s to graphs, and back.",
        "gnnjit.interop.jraph",
        "from_graphs_tuple to_graphs_tuple FromGraphsTuple",
    ),
    Section(
        "pyg",
        "PyG",
        "`Data` to graphs, `HeteroData` to typed graphs, and back.",
        "gnnjit.interop.pyg",
        "from_data to_data from_hetero_data to_hetero_data gnnjit.interop.typed:FromHetero "
        "gnnjit.interop.plain:FromObject",
    ),
    Section(
        "dgl",
        "DGL",
        "Heterographs to typed graphs, and back.",
        "gnnjit.interop.dgl",
        "from_heterograph to_heterograph",
    ),
    Section(
        "jax-md",
        "jax-md",
        "Neighbour lists to graphs.",
        "gnnjit.interop.jax_md",
        "from_neighbor_list",
    ),
    Section(
        "networkx",
        "networkx",
        "Graphs of networkx to graphs, and back.",
        "gnnjit.interop.networkx",
        "from_networkx to_networkx",
    ),
    Section(
        "igraph",
        "igraph",
        "Graphs of igraph to graphs, and back.",
        "gnnjit.interop.igraph",
        "from_igraph to_igraph",
    ),
    Section(
        "rustworkx",
        "rustworkx",
        "Graphs of rustworkx to graphs, and back.",
        "gnnjit.interop.rustworkx",
        "from_rustworkx to_rustworkx",
    ),
    Section(
        "scipy",
        "SciPy",
        "Sparse matrices to graphs, and back.",
        "gnnjit.interop.scipy",
        "from_scipy to_scipy",
    ),
    Section(
        "errors",
        "Errors and warnings",
        "Each message says where, what came, what was expected, and what to do.",
        "gnnjit.errors",
        "GnnjitError LayerError GraphError DataError PlanError CostError StoreError StreamError "
        "SampleError OutputError VerifyError CheckError gnnjit.ir.lines:ParseError "
        "gnnjit.distributed.launch:LaunchError gnnjit.training:TrainError "
        "gnnjit.training:CheckpointError "
        "gnnjit.distributed:DistributedError GnnjitWarning",
    ),
)


def qualified(section: Section) -> list[tuple[str, str]]:
    """Module and name of each."""
    found = []
    for word in section.names.split():
        module, _, name = word.rpartition(":")
        found.append((module or section.package, name))
    return found
