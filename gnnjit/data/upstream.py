"""The files that may be downloaded: addresses pinned to a commit, sizes and SHA-256 sums."""

from __future__ import annotations

from gnnjit.data.files import RemoteFile

_RAW = "https://raw.githubusercontent.com"
_PLANETOID = f"{_RAW}/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
_GRAPHDATA = f"{_RAW}/EdisonLeeeee/GraphData/f8022c26b917346f2a461ffec0ec5ae24b36de68/datasets"
_CLUSTER_GCN = f"{_RAW}/benedekrozemberczki/ClusterGCN/629c5e74a49d9900c440930eab9507fb486dc978"
_TU = f"{_RAW}/bknyaz/graph_nn/72eaa1c6bd70a90fde772ad4a21049ccd6bc97a2/data"

# Suffix of ind.<prefix>.<suffix> -> size, SHA-256.
_SUMS: dict[str, dict[str, tuple[int, str]]] = {
    "cora": {
        "allx": (257305, "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543"),
        "ally": (47959, "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71"),
        "graph": (59847, "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d"),
        "test.index": (5000, "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875"),
        "tx": (148025, "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a"),
        "ty": (28135, "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad"),
        "x": (22119, "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab"),
        "y": (4054, "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1"),
    },
    "citeseer": {
        "allx": (595021, "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668"),
        "ally": (55623, "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95"),
        "graph": (61987, "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7"),
        "test.index": (5000, "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4"),
        "tx": (260321, "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21"),
        "ty": (24135, "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce"),
        "x": (31087, "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6"),
        "y": (3014, "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924"),
    },
    "pubmed": {
        "allx": (7578385, "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e"),
        "ally": (224739, "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e"),
        "graph": (471808, "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9"),
        "test.index": (6000, "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5"),
        "tx": (405505, "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d"),
        "ty": (12135, "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd"),
        "x": (23172, "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33"),
        "y": (854, "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3"),
    },
    "nell": {
        "allx": (2710725, "092de8541bfd3a6a9a5364ea73224e08c3b0605033c69dc926f26004a3e93681"),
        "ally": (7494615, "27de2d69a83b0f37272f1189acb209449e59224e6647c296d3b7e27c35d99b1c"),
        "graph": (2285719, "865faeed5d7037fb21122844ec09292b9c8b59710dcf2dc126cc13069a70365b"),
        "test.index": (5811, "c546df8c960fc961b75d9566a1431c16d9a064725effdcd70a615ec0a31fe907"),
        "tx": (295978, "93016916f57043f6402d9c15654328dbda143f8adcf2b1afd2638caff76808bf"),
        "ty": (814095, "07a2a8a95063e14b05592322362011993ce95e7ddb87c8246ebd57607768a5c5"),
        "x": (31104, "284de725538a6703f3b26ac8f252dc1c43a2fd0df46e78a618a2391a0c9ed63a"),
        "y": (88334, "88926c6959052cffd51f1d4218b11c35403c0c43f21a52489fbec4676a6a205e"),
    },
}


def _planetoid(name: str, prefix: str, base: str) -> dict[str, RemoteFile]:
    return {
        suffix: RemoteFile(f"ind.{prefix}.{suffix}", f"{base}/ind.{prefix}.{suffix}", size, sha256)
        for suffix, (size, sha256) in _SUMS[name].items()
    }


# Dataset -> suffix -> file.
PLANETOID: dict[str, dict[str, RemoteFile]] = {
    "cora": _planetoid("cora", "cora", _PLANETOID),
    "citeseer": _planetoid("citeseer", "citeseer", _PLANETOID),
    "pubmed": _planetoid("pubmed", "pubmed", _PLANETOID),
    "nell": _planetoid("nell", "nell.0.001", f"{_GRAPHDATA}/planetoid"),
}

CITATION_FULL: dict[str, RemoteFile] = {
    "dblp": RemoteFile(
        "dblp.npz",
        f"{_GRAPHDATA}/dblp.npz",
        727093,
        "e1c460c864735b88158e230e715715b08a8f7bb7c94f7f6c3b5efc412558877d",
    ),
}
# Part -> file.
PPI: dict[str, RemoteFile] = {
    part: RemoteFile(f"{part}.csv", f"{_CLUSTER_GCN}/input/{part}.csv", size, sha256)
    for part, size, sha256 in (
        ("edges", 2392868, "0ce4aa35b4125796282e5d9d40a269b9977288a3f02d73c1ac7ff84574bc131b"),
        ("features", 2951240, "a736f4f194ed1ea5b27df07862e06dec88ea607fb82f675b9bf86dca802a1499"),
        ("target", 3571326, "71a30bdf04a068e1a167314f7f88236636744c1dfd568830d5555dfeccd77ee5"),
    )
}
TU: dict[str, RemoteFile] = {
    "MUTAG": RemoteFile(
        "MUTAG.zip",
        f"{_TU}/MUTAG.zip",
        24422,
        "20f52db82d6d85d5f67d2fa42c3fb705d05934be44329314ab17b05d0c012f7e",
    ),
    "PROTEINS": RemoteFile(
        "PROTEINS.zip",
        f"{_TU}/PROTEINS.zip",
        457780,
        "fe9d19741637486ea1fd285bf669fce0b117e10b03cdd379f6a5e6197fc830ae",
    ),
    "ENZYMES": RemoteFile(
        "ENZYMES.zip",
        f"{_TU}/ENZYMES.zip",
        536482,
        "0ca7125d7978788346fc6ba5c3cc643b6122153b304220c2230bcb09f99f8ffb",
    ),
}

_LIGHTGCN = (
    "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/"
    "947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data"
)
# Name -> file.
GOWALLA: dict[str, RemoteFile] = {
    name: RemoteFile(name, f"{_LIGHTGCN}/gowalla/{name}", size, sha256)
    for name, size, sha256 in (
        ("s_adj_mat.npz", 3635865,
         "6ab3ab7aa1278da3717054c60258d88d2d2d78914fa62db2b13da9321e397cab"),
        ("test.txt", 1372559, "099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3"),
    )
}  # fmt: skip
LASTFM: dict[str, RemoteFile] = {
    name: RemoteFile(name, f"{_LIGHTGCN}/lastfm/{name}", size, sha256)
    for name, size, sha256 in (
        ("data1.txt", 579727, "c82af3228cbbda2f55a39244de09ed93292894f1d0d9f1908ebb57e27598fded"),
        ("test1.txt", 144867, "de4417c0e6123284ce59a0934bcf5288ec1ec8774a18a1eef453c9952dfa48f9"),
    )
}
_SELF_TRAINING = (
    "https://raw.githubusercontent.com/pp413/SelfTraining/"
    "21b86222b47a1323dcd581f4483cd62a9b0d6027/data/FB15k-237"
)
FB15K_237: dict[str, RemoteFile] = {
    name: RemoteFile(name, f"{_SELF_TRAINING}/{name}", size, sha256)
    for name, size, sha256 in (
        ("train2id.txt", 3416118,
         "44fef0b2812c06ae4a61b7f738b3902e844f08c23ece4ecf6bbc0eb8eba56c21"),
        ("valid2id.txt", 222093,
         "9027e9586d3967d401577a40cafbf85be7e3651a70787034eec4b4cc7f8c9281"),
        ("test2id.txt", 259074, "a06e99bcf33128e9149bd8e8044fd4f1fa979a3a709cc1a69482744aba2e52e7"),
        ("entity2id_no_sort.txt", 218557,
         "2df2382d68595f17c638a13557265226d06beaac04b2f4b31c9646d8c3ffe16b"),
        ("relation2id_no_sort.txt", 15526,
         "ecdf2f828ce7ddfdfd4c24d0615638948c28f5f94c3589f33dbf35da762d32f5"),
    )
}  # fmt: skip
IMDB = RemoteFile(
    "movie_metadata.csv",
    "https://raw.githubusercontent.com/cynricfu/MAGNN/b8557f58ae04a7fe3e7a9fde64ea87c81b331efe/"
    "data/raw/IMDB/movie_metadata.csv",
    1489644,
    "74e4a9af314eea255147a6d48a5678ad7d0be3cb8ba3fdb819ef6edddb36e2ca",
)
BLOGCATALOG = RemoteFile(
    "blogcatalog.mat",
    "https://raw.githubusercontent.com/phanein/deepwalk/6e6dff245e4692e9bea47e9017c1034e51afbf29/"
    "example_graphs/blogcatalog.mat",
    1255783,
    "d4f4fb89ce1ccd4b7e2a183386c000773cc9362cc61f1be5b246a6d9c259da8f",
)

_NETWORKIT = f"{_RAW}/networkit/networkit/17427915b5b8d39fdd602e5247cd96bb8138d79c/input"
_SNAP = (
    f"{_RAW}/sumanthratna/cpsc524-final-project/3619e8b2644ba41c389ca24e9a8d2995fbbb75c0/datasets"
)
_JULIA = f"{_RAW}/JuliaGraphs/SNAPDatasets.jl/dadd14a69b908d3dfc824d7c9f8c04f6fda72e59/data"
NETWORKS: dict[str, RemoteFile] = {
    "epinions": RemoteFile(
        "soc-Epinions1.txt.gz",
        f"{_SNAP}/soc-Epinions1.txt.gz",
        1630437,
        "69a2dab71fa5e3a0715487599fc16ca17ddc847379325a6c765bbad6e3e36938",
    ),
    "notredame": RemoteFile(
        "web-NotreDame.txt.gz",
        f"{_SNAP}/web-NotreDame.txt.gz",
        3708538,
        "d4f4916db2b45060d4dde21fca2d6d757f245f4397528f72230eff3bb57e499e",
    ),
    "ego-twitter": RemoteFile(
        "ego-twitter-undirected.jlg",
        f"{_JULIA}/ego-twitter/ego-twitter-undirected.jlg",
        3366507,
        "7f81dda501ad839152246ff328db8108d84b9646534a7236726e8f7e62ef6d11",
    ),
    "airfoil1": RemoteFile(
        "airfoil1.graph",
        f"{_NETWORKIT}/airfoil1.graph",
        116538,
        "77824b11f3f037f457abf75d95f94864fc3bb4cf602767a2394477976a0996ae",
    ),
    "4elt": RemoteFile(
        "4elt.graph",
        f"{_NETWORKIT}/4elt.graph",
        516441,
        "246997040b286050864a4b4ebbe387026e9c317eef504e6fc79a97cc0af5967f",
    ),
    "wing": RemoteFile(
        "wing.graph",
        f"{_NETWORKIT}/wing.graph",
        1482391,
        "72cbca11a17a2231ae9c0a7c5faed8701a361d8800e954717a767cbdbc3be45c",
    ),
}
_DEEPCHEM = f"{_RAW}/deepchem/deepchem/fbe3b911a94a6eb8c84c1a9e7ac67a472c49ea80/datasets"
_ABT = f"{_RAW}/LCY02/ABT-MPNN/63ee5fcdb23747ffe9a2c377b148aafef53192d1/data"
MOLECULES: dict[str, RemoteFile] = {
    "esol": RemoteFile(
        "delaney-processed.csv",
        f"{_DEEPCHEM}/delaney-processed.csv",
        96699,
        "8c06a76f0c6487d29ab0f903e6a7a7139f189ab3c1178f159c8be8964602f189",
    ),
    "freesolv": RemoteFile(
        "freesolv.csv",
        f"{_ABT}/freesolv.csv",
        14180,
        "2bfd85e03c790f40ca511efbde8d6095d2e40bf5a70450e29450cd68aecbef01",
    ),
    "lipophilicity": RemoteFile(
        "Lipophilicity.csv",
        f"{_ABT}/Lipophilicity.csv",
        223301,
        "53f4d75dad1ff26224df1fe0523de4af1ecf867855f18c1794a1a20de44d42da",
    ),
    "gdb1k": RemoteFile(
        "gdb1k.sdf",
        f"{_DEEPCHEM}/gdb1k.sdf",
        1384016,
        "d10b7ebd226f2b4ef9bf47b57c6e03323dd9e023541b8262ad35b225da971a68",
    ),
}
_LAGRANGE = (
    f"{_RAW}/tumaer/lagrangebench/b880a6c84a93792d2499d2a9b8ba3a077ddf44e2/tests/3D_LJ_3_1214every1"
)
LJ3D: dict[str, RemoteFile] = {
    "metadata.json": RemoteFile(
        "metadata.json",
        f"{_LAGRANGE}/metadata.json",
        1163,
        "445387db4f45c0ee32ef19b5cfb7ec835819d981d66b7f90250aa4c687bf5e79",
    ),
    "train.h5": RemoteFile(
        "train.h5",
        f"{_LAGRANGE}/train.h5",
        43329,
        "31a114481e9ce8587499bfbad1dea40eb123c368faecd26a8cde11c65a172e22",
    ),
    "valid.h5": RemoteFile(
        "valid.h5",
        f"{_LAGRANGE}/valid.h5",
        20961,
        "6acb99cf40f9fad80d69f87d4bb70221a5da911dcbbefc863ba4403c265d9462",
    ),
    "test.h5": RemoteFile(
        "test.h5",
        f"{_LAGRANGE}/test.h5",
        20653,
        "5a060eeb9c830e45f49fd50f20ee6f9cc02dd89aaf03c1e0c8bfd08dd8028439",
    ),
}
_DCRNN = f"{_RAW}/liyaguang/DCRNN/602afd9d767d3aa1c9b3eac51710d6aeee12c227/data/sensor_graph"
METR_LA: dict[str, RemoteFile] = {
    "adj_mx.pkl": RemoteFile(
        "adj_mx.pkl",
        f"{_DCRNN}/adj_mx.pkl",
        680459,
        "a35687c6e15aa228dc45027b0ed2a0ea0f4ec78f573deb992c595092d12f61b3",
    ),
    "graph_sensor_locations.csv": RemoteFile(
        "graph_sensor_locations.csv",
        f"{_DCRNN}/graph_sensor_locations.csv",
        6341,
        "eb8ea96e07358b45d0e4ba3b89c2673fa20c54af50150249e627389e749ade6f",
    ),
}
