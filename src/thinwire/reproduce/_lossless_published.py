"""The lossless survey's measurements: seven methods, three models, three networks, up to 32 GPUs.

From the authors' benchmark repository (HKBU-HPML/ddl-benchmarks, results of 29 May 2020): samples
per second of all GPUs together. Machines have four GPUs each; parameter servers are as many other
machines as workers' machines.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL_REDUCE", "METHODS", "MODELS", "NETWORKS", "PER_NODE", "RDMA", "SERVERS", "SPREAD",
           "STARTUPS", "STARTUPS_TEN", "TCP", "TEN", "THROUGHPUT", "WORKERS", "Model"]  # fmt: skip

WORKERS = (4, 8, 16, 32)
PER_NODE = 4
"""GPUs of a machine."""

ALL_REDUCE = ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A")
SERVERS = ("BSP-PS", "WFBP-PS", "ByteScheduler-PS")
METHODS = ALL_REDUCE + SERVERS

RDMA, TEN, TCP = "100 Gbit/s RDMA", "10 GbE", "100 Gbit/s TCP/IP"
NETWORKS = (RDMA, TEN, TCP)

STARTUPS = {4: 4.2043e-5, 8: 9.7537e-5, 16: 2.3584e-4, 32: 4.0632e-4}
"""Start-ups of an all-reduce, published for 56 Gbit/s InfiniBand, by number of GPUs."""

STARTUPS_TEN = {4: 4.2043e-5, 8: 5.2303e-4, 16: 9.0810e-4, 32: 1.34764e-3}
"""The same for 10 GbE."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the three models.

    Args:
        title: as published.
        table: its name in `thinwire.models`.
        batch: samples of a GPU in one iteration.
        alone: samples per second of one GPU without communication.
    """

    title: str
    table: str
    batch: int
    alone: float

    @property
    def computing(self) -> float:
        """Seconds of an iteration without communication."""
        return self.batch / self.alone


MODELS = (
    Model(title="ResNet-50", table="resnet50", batch=64, alone=253.1),
    Model(title="BERT-Base", table="bert-base", batch=64, alone=212.8),
    Model(title="BERT-Large", table="bert-large", batch=8, alone=49.0),
)

THROUGHPUT: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("ResNet-50", RDMA, "BSP-A2A"): (920.28, 1821.2, 3602.9, 7126.52),
    ("ResNet-50", RDMA, "WFBP-A2A"): (1014.28, 2017.12, 3946.06, 7326.56),
    ("ResNet-50", RDMA, "MG-WFBP"): (1003.9, 2001.72, 3987.4, 7876.46),
    ("ResNet-50", RDMA, "ByteScheduler-A2A"): (653.8, 1257.66, 2529.14, 4766.38),
    ("ResNet-50", RDMA, "BSP-PS"): (862.96, 1694.9, 3353.23, 6587.63),
    ("ResNet-50", RDMA, "WFBP-PS"): (1010.8, 2008.09, 3988.67, 7977.79),
    ("ResNet-50", RDMA, "ByteScheduler-PS"): (1015.82, 2018.39, 4013.88, 7999.83),
    ("ResNet-50", TEN, "BSP-A2A"): (925.0, 1282.3, 2485.1, 4920.8),
    ("ResNet-50", TEN, "WFBP-A2A"): (1015.4, 1795.7, 3146.8, 5113.2),
    ("ResNet-50", TEN, "MG-WFBP"): (1003.2, 1980.6, 3785.0, 6883.6),
    ("ResNet-50", TEN, "ByteScheduler-A2A"): (658.1, 1319.1, 2701.5, 4754.3),
    ("ResNet-50", TEN, "BSP-PS"): (866.3, 1194.4, 2361.3, 4376.6),
    ("ResNet-50", TEN, "WFBP-PS"): (1017.3, 2021.4, 3812.0, 6945.4),
    ("ResNet-50", TEN, "ByteScheduler-PS"): (1018.4, 2025.6, 3815.6, 6889.0),
    ("ResNet-50", TCP, "BSP-A2A"): (926.0, 1601.4, 3087.2, 5744.8),
    ("ResNet-50", TCP, "WFBP-A2A"): (1015.1, 1985.7, 3650.7, 6141.4),
    ("ResNet-50", TCP, "MG-WFBP"): (1002.7, 1990.7, 3946.0, 7540.9),
    ("ResNet-50", TCP, "ByteScheduler-A2A"): (728.5, 1344.3, 2687.7, 5104.1),
    ("ResNet-50", TCP, "BSP-PS"): (864.1, 1191.7, 2353.2, 4356.0),
    ("ResNet-50", TCP, "WFBP-PS"): (1014.8, 2002.1, 3811.4, 6933.7),
    ("ResNet-50", TCP, "ByteScheduler-PS"): (1015.1, 2017.7, 3996.0, 7982.2),
    ("BERT-Base", RDMA, "BSP-A2A"): (555.7, 1082.42, 2112.96, 4184.38),
    ("BERT-Base", RDMA, "WFBP-A2A"): (631.8, 1195.68, 2217.22, 4098.68),
    ("BERT-Base", RDMA, "MG-WFBP"): (660.42, 1235.04, 2515.3, 4940.08),
    ("BERT-Base", RDMA, "ByteScheduler-A2A"): (621.2, 1223.26, 2379.58, 4521.26),
    ("BERT-Base", RDMA, "BSP-PS"): (557.92, 1040.01, 2077.68, 4162.21),
    ("BERT-Base", RDMA, "WFBP-PS"): (652.78, 1203.5, 2409.28, 4899.63),
    ("BERT-Base", RDMA, "ByteScheduler-PS"): (651.74, 1239.58, 2403.04, 4783.97),
    ("BERT-Base", TEN, "BSP-A2A"): (555.5, 518.9, 984.9, 1926.6),
    ("BERT-Base", TEN, "WFBP-A2A"): (634.1, 582.3, 1069.5, 2013.4),
    ("BERT-Base", TEN, "MG-WFBP"): (659.1, 611.4, 1153.2, 1925.8),
    ("BERT-Base", TEN, "ByteScheduler-A2A"): (623.4, 624.0, 1177.4, 2259.8),
    ("BERT-Base", TEN, "BSP-PS"): (559.3, 505.4, 1022.4, 2028.0),
    ("BERT-Base", TEN, "WFBP-PS"): (653.5, 657.4, 1341.1, 2546.7),
    ("BERT-Base", TEN, "ByteScheduler-PS"): (652.6, 634.7, 1343.5, 2523.8),
    ("BERT-Base", TCP, "BSP-A2A"): (555.4, 804.6, 1504.6, 2815.7),
    ("BERT-Base", TCP, "WFBP-A2A"): (632.6, 933.2, 1671.6, 2987.5),
    ("BERT-Base", TCP, "MG-WFBP"): (658.4, 1021.4, 1880.3, 3540.8),
    ("BERT-Base", TCP, "ByteScheduler-A2A"): (620.6, 992.4, 1792.6, 3303.8),
    ("BERT-Base", TCP, "BSP-PS"): (557.2, 748.8, 1689.0, 3583.8),
    ("BERT-Base", TCP, "WFBP-PS"): (652.5, 1020.6, 2272.0, 4575.8),
    ("BERT-Base", TCP, "ByteScheduler-PS"): (652.8, 956.3, 2181.6, 4517.0),
    ("BERT-Large", RDMA, "BSP-A2A"): (53.08, 99.18, 191.64, 375.22),
    ("BERT-Large", RDMA, "WFBP-A2A"): (56.3, 101.68, 185.42, 339.82),
    ("BERT-Large", RDMA, "MG-WFBP"): (57.5, 106.78, 205.78, 400.16),
    ("BERT-Large", RDMA, "ByteScheduler-A2A"): (49.42, 91.27, 171.9, 326.4),
    ("BERT-Large", RDMA, "BSP-PS"): (51.38, 88.51, 168.22, 355.69),
    ("BERT-Large", RDMA, "WFBP-PS"): (55.3, 89.89, 175.74, 344.02),
    ("BERT-Large", RDMA, "ByteScheduler-PS"): (55.36, 85.52, 148.09, 349.93),
    ("BERT-Large", TEN, "BSP-A2A"): (53.0, 29.0, 54.3, 105.1),
    ("BERT-Large", TEN, "WFBP-A2A"): (56.0, 29.1, 53.4, 102.0),
    ("BERT-Large", TEN, "MG-WFBP"): (57.3, 30.0, 54.3, 105.0),
    ("BERT-Large", TEN, "ByteScheduler-A2A"): (51.3, 30.4, 56.0, 108.8),
    ("BERT-Large", TEN, "BSP-PS"): (51.4, 28.4, 59.2, 118.0),
    ("BERT-Large", TEN, "WFBP-PS"): (55.4, 29.8, 61.3, 118.4),
    ("BERT-Large", TEN, "ByteScheduler-PS"): (55.3, 29.3, 61.2, 116.8),
    ("BERT-Large", TCP, "BSP-A2A"): (52.9, 55.8, 103.3, 187.0),
    ("BERT-Large", TCP, "WFBP-A2A"): (56.0, 54.8, 99.0, 174.8),
    ("BERT-Large", TCP, "MG-WFBP"): (57.5, 62.0, 107.5, 191.5),
    ("BERT-Large", TCP, "ByteScheduler-A2A"): (48.9, 56.0, 99.5, 187.6),
    ("BERT-Large", TCP, "BSP-PS"): (51.5, 27.9, 59.2, 117.9),
    ("BERT-Large", TCP, "WFBP-PS"): (55.3, 29.6, 61.6, 116.7),
    ("BERT-Large", TCP, "ByteScheduler-PS"): (55.4, 50.2, 151.5, 338.1),
}
"""By model, network and method, at 4, 8, 16 and 32 GPUs."""

SPREAD: dict[tuple[str, str], float] = {
    ("ResNet-50", "BSP-A2A"): 15.78,
    ("ResNet-50", "WFBP-A2A"): 12.13,
    ("ResNet-50", "MG-WFBP"): 14.15,
    ("ResNet-50", "ByteScheduler-A2A"): 273.59,
    ("ResNet-50", "BSP-PS"): 51.39,
    ("ResNet-50", "WFBP-PS"): 30.28,
    ("ResNet-50", "ByteScheduler-PS"): 15.85,
    ("BERT-Base", "BSP-A2A"): 16.23,
    ("BERT-Base", "WFBP-A2A"): 4.94,
    ("BERT-Base", "MG-WFBP"): 6.85,
    ("BERT-Base", "ByteScheduler-A2A"): 39.68,
    ("BERT-Base", "BSP-PS"): 19.55,
    ("BERT-Base", "WFBP-PS"): 53.75,
    ("BERT-Base", "ByteScheduler-PS"): 106.85,
    ("BERT-Large", "BSP-A2A"): 1.19,
    ("BERT-Large", "WFBP-A2A"): 0.89,
    ("BERT-Large", "MG-WFBP"): 1.88,
    ("BERT-Large", "ByteScheduler-A2A"): 0.0,
    ("BERT-Large", "BSP-PS"): 8.37,
    ("BERT-Large", "WFBP-PS"): 29.9,
    ("BERT-Large", "ByteScheduler-PS"): 24.25,
}
"""Standard deviation of five tries, at 32 GPUs with RDMA."""
