"""The host of a GPU as offloading sees it: the link to it, its memory, and who shares them."""

from typing import NamedTuple

from traincast.hardware.gpu import Gpu

LINK_SHARE = 0.83
"""Share of the rate of a host link that large copies of pinned memory reach: the median of four machines, each the mean
of both directions. PCIe 4: 0.79 (A100, forums.developer.nvidia.com/t/352186); PCIe 5: 0.88 (H200) and NVLink-C2C: 0.82
(GB300), both stas00/ml-engineering, network/README.md; NVLink-C2C: 0.75 of GH200 (Fusco et al. 2024,
arXiv 2408.11556)."""

ADAM_SHARE = 0.24
"""Share of the peak rate of host memory that DeepSpeed's CPU-Adam reaches with 30 bytes for each parameter: the median
of three machines. 0.46 of a DGX-2's, one process on both sockets (10 billion parameters in 2.57 s, Ren et al. 2021,
arXiv 2101.06840, table 4, recalled); 0.24 and 0.20 of nodes of 8 H200 and 8 B200, one process for each GPU: what steps
of Llama 3.1 8B of 8,192 tokens take with it, 3.0 and 2.5 s, beyond computation and transfers
(stas00/ml-engineering, insights/when-to-upgrade-gpus). Cores, NUMA placement and threads decide, which nothing here
says."""

USUAL_LINK_BYTES_PER_S = 31.5e9
"""PCIe 4 x16, where nothing says the link of a GPU."""
USUAL_GPUS = 8
USUAL_MEMORY_BYTES = 1_000_000_000_000
USUAL_MEMORY_BYTES_PER_S = 409.6e9
"""The host of a DGX A100 of 40 GB (2 x 8 channels of DDR4-3200), where nothing says that of a GPU."""


class Host(NamedTuple):
    """One GPU's share of its host while others use theirs."""

    link_bytes_per_s: float
    """Rate at which copies go each way: that of the link, at most that of its share of the memory."""
    adam_bytes_per_s: float
    """Rate at which an optimizer on the host goes through its share of the memory."""
    memory_bytes: float
    """Its share of the memory."""
    assumed: tuple[str, ...] = ()
    """What nothing says of this GPU, in words."""


def host_of(gpu: Gpu, ranks: int) -> Host:
    """Return what a GPU has of its host where so many ranks are placed on a node, which share hosts evenly."""
    sharing = max(1, min(gpu.host_gpus or USUAL_GPUS, ranks))
    rate = (gpu.host_memory_bytes_per_s or USUAL_MEMORY_BYTES_PER_S) / sharing
    link = LINK_SHARE * (gpu.host_bytes_per_s or USUAL_LINK_BYTES_PER_S)
    found = {
        "link of PCIe 4 x16": gpu.host_bytes_per_s,
        "two sockets for 8 GPUs, 410 GB/s": gpu.host_memory_bytes_per_s,
        "1 TB of memory": gpu.host_memory_bytes,
    }
    return Host(
        link_bytes_per_s=min(link, rate),
        adam_bytes_per_s=ADAM_SHARE * rate,
        memory_bytes=(gpu.host_memory_bytes or USUAL_MEMORY_BYTES) / sharing,
        assumed=tuple(name for name, said in found.items() if said is None),
    )
