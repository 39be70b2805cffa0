"""The training methods, one a file, each reading like its paper."""

from thinwire.methods.alone import Alone
from thinwire.methods.asgd import ASGD
from thinwire.methods.base import Method, Paper, Traits
from thinwire.methods.dgc import DGC
from thinwire.methods.gtopk import GTopK
from thinwire.methods.localsgd import LocalSGD
from thinwire.methods.oktopk import OkTopk
from thinwire.methods.powersgd import PowerSGD
from thinwire.methods.qsgd import QSGD
from thinwire.methods.ssgd import SSGD
from thinwire.methods.table import METHODS, build_method, load_method
from thinwire.methods.topk import TopK

__all__ = [
    "ASGD",
    "DGC",
    "METHODS",
    "QSGD",
    "SSGD",
    "Alone",
    "GTopK",
    "LocalSGD",
    "Method",
    "OkTopk",
    "Paper",
    "PowerSGD",
    "TopK",
    "Traits",
    "build_method",
    "load_method",
]
