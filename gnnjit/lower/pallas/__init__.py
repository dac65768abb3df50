"""Two lowerings of a traversal to the GPU kernels of `pallas_kernels`.

`run` and `why_not` are those of the Triton backend of Pallas, `mosaic` has those of Mosaic GPU.
Rules say how primitives work on tiles of edges; `tune` chooses the tiles. `lower.choose` calls it.
"""

from gnnjit.lower.pallas import mosaic
from gnnjit.lower.pallas.kernel import run, why_not

__all__ = ["mosaic", "run", "why_not"]
