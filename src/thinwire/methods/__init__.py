"""The training methods, one a file, each reading like its paper."""

from thinwire.methods.alone import Alone
from thinwire.methods.asgd import ASGD
from thinwire.methods.base import Method, Paper, Traits
from thinwire.methods.bytescheduler import ByteScheduler
from thinwire.methods.dgc import DGC
from thinwire.methods.gtopk import GTopK
from thinwire.methods.lags import LAGS
from thinwire.methods.localsgd import LocalSGD
from thinwire.methods.oktopk import OkTopk
from thinwire.methods.powersgd import PowerSGD
from thinwire.methods.qsgd import QSGD
from thinwire.methods.ssgd import SSGD
from thinwire.methods.table import METHODS, build_method, load_method
from thinwire.methods.topk import TopK
from thinwire.methods.wfbp import WFBP

__all__ = [
    "ASGD",
    "DGC",
    "LAGS",
    "METHODS",
    "QSGD",
    "SSGD",
    "WFBP",
    "Alone",
    "ByteScheduler",
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
