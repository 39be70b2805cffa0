"""What a cluster is: machines, the network between them, what they share and how they change."""

from thinwire.cluster._read import cluster_from_toml
from thinwire.cluster._write import cluster_to_toml
from thinwire.cluster.files import PRESETS, load_cluster
from thinwire.cluster.links import LINKS, LinkPreset, link_latency, link_rate
from thinwire.cluster.spec import Cluster, Link, Node, Site
from thinwire.cluster.trace import Trace

__all__ = [
    "LINKS",
    "PRESETS",
    "Cluster",
    "Link",
    "LinkPreset",
    "Node",
    "Site",
    "Trace",
    "cluster_from_toml",
    "cluster_to_toml",
    "link_latency",
    "link_rate",
    "load_cluster",
]
