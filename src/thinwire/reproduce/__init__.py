"""Published results, each in a file: the publication's figures beside ours."""

from thinwire.reproduce.base import Reproduction, result_of
from thinwire.reproduce.line import KINDS, Kind, Line, Result
from thinwire.reproduce.picture import picture_page, picture_svg
from thinwire.reproduce.render import list_table, report
from thinwire.reproduce.table import REPRODUCTIONS, load_reproduction

__all__ = [
    "KINDS",
    "REPRODUCTIONS",
    "Kind",
    "Line",
    "Reproduction",
    "Result",
    "list_table",
    "load_reproduction",
    "picture_page",
    "picture_svg",
    "report",
    "result_of",
]
