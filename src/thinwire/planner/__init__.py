"""What a run will cost before it runs: step times, bytes and advice from closed forms."""

from __future__ import annotations

from thinwire.planner.advise import Plan, plan
from thinwire.planner.better import WORTH, Proposal, choose
from thinwire.planner.crossover import (
    accumulation_where_dense_pays,
    batch_where_dense_pays,
    nodes_where_gtopk_wins,
)
from thinwire.planner.models import MODELS, Model, find_model
from thinwire.planner.predict import METHODS, Prediction, Settings, predict
from thinwire.planner.quick import quick_cluster
from thinwire.planner.render import plan_report, plan_table, scale_table
from thinwire.planner.scale import SCALED_METHODS, Scaled, scale
from thinwire.planner.workload import Workload, make_workload

__all__ = [
    "METHODS",
    "MODELS",
    "SCALED_METHODS",
    "WORTH",
    "Model",
    "Plan",
    "Prediction",
    "Proposal",
    "Scaled",
    "Settings",
    "Workload",
    "accumulation_where_dense_pays",
    "batch_where_dense_pays",
    "choose",
    "find_model",
    "make_workload",
    "nodes_where_gtopk_wins",
    "plan",
    "plan_report",
    "plan_table",
    "predict",
    "quick_cluster",
    "scale",
    "scale_table",
]
