"""Names in the results of the evaluator that StreamVLN wrote and JanusVLN and InternNav took over."""

from __future__ import annotations

from vlnbench.importing.formats import LENGTH

BY_SCENE = {
    "success": "success",
    "spl": "spl",
    "os": "oracle_success",
    "ne": "distance_to_goal",
    "ndtw": "ndtw",
    "steps": "steps",
}
"""Of a line about an episode; only newer versions write nDTW."""

BY_SCENE_TOTALS = {
    "sucs_all": "success",
    "spls_all": "spl",
    "oss_all": "oracle_success",
    "ones_all": "distance_to_goal",
    "nes_all": "distance_to_goal",
    "ndtws_all": "ndtw",
    "length": LENGTH,
}
"""Of the line of means that ends an evaluation."""

HABITAT = {
    "success": "success",
    "spl": "spl",
    "oracle_success": "oracle_success",
    "distance_to_goal": "distance_to_goal",
    "ndtw": "ndtw",
    "path_length": "path_length",
    "steps_taken": "steps",
}
"""Measures of VLN-CE, as its evaluator and those made from it write them; collisions are a share, no count."""
