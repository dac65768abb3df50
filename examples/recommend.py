"""Artists for listeners: LightGCN on LastFM.

    python examples/recommend.py --data-dir ../shared/data

He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation"
(2020): embeddings of users and items are summed over neighbours, `h_{k+1}[v] = sum over (u -> v) of
h_k[u] / sqrt(d[u] d[v])`, and averaged over the steps (equations 3 and 4); the score of an item is
the product of its row and the user's (equation 5); a loss ranks what a user took above what they
did not (BPR, equation 15). Pairs are drawn as in the authors' code, and its numbers are used: 64
wide, 3 steps, a rate of 0.001 and a decay of 1e-4. `gnnjit train lastfm` does it in one line.

The authors give no figures for LastFM. Beside ours stand those of the same training without a graph
(matrix factorisation, Rendle et al. 2009), and of what is most listened to.

Ends with recall and NDCG of the first 20 items, and a picture of both along training.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gnnjit import nn
from gnnjit.data import open_dataset
from gnnjit.sample import NegativeSampler

TOP = 20


def table(links, users, items):
    """bool[users, items]: who took what."""
    found = np.zeros((users, items), bool)
    found[links[:, 0], links[:, 2] - users] = True
    return found


def measured(scores, seen, wanted):
    """Recall and NDCG of the first 20, the mean over the users who have something to be found."""
    first = np.argsort(-np.where(seen, -np.inf, scores), axis=1, kind="stable")[:, :TOP]
    hit, count = np.take_along_axis(wanted, first, axis=1), wanted.sum(axis=1)
    asked, discount = count > 0, 1 / np.log2(np.arange(TOP) + 2)
    best = np.cumsum(discount)[np.minimum(count[asked], TOP) - 1]
    recall = hit[asked].sum(axis=1) / count[asked]
    return recall.mean(), (hit[asked] @ discount / best).mean()


def epochs(data, graph, size, rng):
    """Forever: (users, items, others) of an epoch, int32[batches, size] each. Users are drawn with
    the same chance, then one of their items, and one that they did not take."""
    links = data.train[np.argsort(data.train[:, 0], kind="stable")]
    begin = np.searchsorted(links[:, 0], np.arange(data.num_users + 1))
    active = np.flatnonzero(np.diff(begin))
    choices = np.arange(data.num_users, data.num_nodes, dtype=np.int32)
    sampler = NegativeSampler(graph, destinations=choices, tries=100)
    while True:
        users = rng.choice(active, len(links) // size * size)
        at = begin[users] + rng.random(len(users)) * (begin[users + 1] - begin[users])
        items = links[at.astype(int), 2]
        others = sampler.sample(users, items, int(rng.integers(2**31))).dst[:, 0]
        yield [column.reshape(-1, size).astype(np.int32) for column in (users, items, others)]


def fit(data, hops, args, width, size=2048):
    """Trains; the history of (epoch, recall, NDCG)."""
    graph, model = data.graph(), nn.LightGCN(hops)
    key, rng = jax.random.key(args.seed), np.random.default_rng(args.seed)
    table_ = 0.1 * jax.random.normal(key, (data.num_nodes, width))
    optimizer = optax.adam(1e-3)

    @jax.jit
    def epoch(embedding, state, graph, batches):
        def step(carry, batch):
            embedding, state = carry

            def loss(embedding):
                rows = jnp.stack(batch)
                user, item, other = model(graph, embedding)[rows]
                ranking = jax.nn.softplus((user * (other - item)).sum(axis=1))
                own = jnp.square(embedding[rows]).sum(axis=(0, 2))
                return (ranking + 0.5 * 1e-4 * own).mean()

            value, gradient = jax.value_and_grad(loss)(embedding)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(embedding, updates), state), value

        (embedding, state), losses = jax.lax.scan(step, (embedding, state), batches)
        return embedding, state, losses.mean()

    @jax.jit
    def scores(embedding, graph):
        rows = model(graph, embedding)
        return rows[: data.num_users] @ rows[data.num_users :].T

    seen, wanted = (table(t, data.num_users, data.num_items) for t in (data.train, data.test))
    embedding, state, history = table_, optimizer.init(table_), []
    for i, batches in zip(range(1, args.steps + 1), epochs(data, graph, size, rng), strict=False):
        embedding, state, loss = epoch(embedding, state, graph, batches)
        if i % max(1, args.steps // 8) == 0:
            history.append((i, *measured(np.asarray(scores(embedding, graph)), seen, wanted)))
            print(
                f"  epoch {i:4}: loss {loss:.4f}, recall@20 {history[-1][1]:.4f}, "
                f"ndcg@20 {history[-1][2]:.4f}"
            )
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="a folder with lastfm-rec")
    parser.add_argument("--steps", type=int, default=200, help="epochs of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="recommend.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, args.steps = (8, 2) if args.smoke else (64, args.steps)

    data, found = open_dataset("lastfm", args.data_dir), {}
    print(data)
    for name, hops in (("LightGCN", 3), ("no graph", 0)):
        begun = time.perf_counter()
        print(f"{name}:")
        found[name] = fit(data, hops, args, width)
        print(f"  {time.perf_counter() - begun:.0f} s")
    seen, wanted = (table(t, data.num_users, data.num_items) for t in (data.train, data.test))
    popular = measured(np.broadcast_to(seen.sum(axis=0), seen.shape), seen, wanted)
    print("               recall@20  ndcg@20")
    for name, (recall, ndcg) in {n: h[-1][1:] for n, h in found.items()}.items():
        print(f"{name:14} {recall:9.4f} {ndcg:8.4f}")
    print(f"{'most popular':14} {popular[0]:9.4f} {popular[1]:8.4f}")
    picture(args.picture, found)


def picture(path, found):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, history in found.items():
        epoch, recall, ndcg = np.transpose(history)
        axes.plot(epoch, recall, label=f"{name}, recall@20")
        axes.plot(epoch, ndcg, "--", label=f"{name}, ndcg@20")
    axes.set(xlabel="epoch", title="Artists of LastFM")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
