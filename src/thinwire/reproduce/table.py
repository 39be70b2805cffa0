"""The reproductions by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from thinwire.errors import InputError, nearest
from thinwire.reproduce.base import Reproduction
from thinwire.reproduce.gtopk import GTopKPaper
from thinwire.reproduce.lags import LAGSPaper
from thinwire.reproduce.lossless_survey import LosslessSurvey
from thinwire.reproduce.mgwfbp import MGWFBPPaper
from thinwire.reproduce.oktopk import OkTopkVolume

__all__ = ["REPRODUCTIONS", "load_reproduction"]

REPRODUCTIONS: dict[str, Callable[[], Reproduction]] = {
    "gtopk": GTopKPaper,
    "lags": LAGSPaper,
    "lossless-survey": LosslessSurvey,
    "mgwfbp": MGWFBPPaper,
    "oktopk": OkTopkVolume,
}


def load_reproduction(name: str) -> Reproduction:
    """A reproduction of the table, or one of your own as `module:Class`.

    Raises:
        InputError: there is none of that name; the nearest is named.
    """
    if name in REPRODUCTIONS:
        return REPRODUCTIONS[name]()
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise InputError(
            f"reproduction {name!r}: unknown; {nearest(name, REPRODUCTIONS)}, or module:Class"
        )
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        raise InputError(f"reproduction {name!r}: {error}") from error
    except AttributeError:
        raise InputError(f"reproduction {name!r}: {module} has no {attribute}") from None
    made = found() if isinstance(found, type) else found
    if not callable(getattr(made, "run", None)):
        raise InputError(f"reproduction {name!r}: it has no run(), see thinwire.reproduce")
    return made
