"""The commands and their typed options, joined for the parser."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import subcommand

from vlnbench.cli.collect import Collect
from vlnbench.cli.data import DATA, Data
from vlnbench.cli.doctor import Doctor
from vlnbench.cli.eval import Eval
from vlnbench.cli.list import List
from vlnbench.cli.matrix import MATRIX, MatrixCommand
from vlnbench.cli.plan import PlanMemory
from vlnbench.cli.results.compare import Compare
from vlnbench.cli.results.export import Export
from vlnbench.cli.results.importing import Import
from vlnbench.cli.results.leaderboard import Leaderboard
from vlnbench.cli.results.rank import Rank
from vlnbench.cli.results.report import Report
from vlnbench.cli.results.rescore import Rescore
from vlnbench.cli.results.view import View
from vlnbench.cli.score import Score
from vlnbench.cli.serve import Serve
from vlnbench.cli.status import Status
from vlnbench.cli.train import Train

Command = (
    Annotated[Eval, subcommand("eval", prefix_name=False)]
    | Annotated[Serve, subcommand("serve", prefix_name=False)]
    | Annotated[Data, subcommand("data", prefix_name=False, description=DATA)]
    | Annotated[Collect, subcommand("collect", prefix_name=False)]
    | Annotated[Train, subcommand("train", prefix_name=False)]
    | Annotated[Score, subcommand("score", prefix_name=False)]
    | Annotated[PlanMemory, subcommand("plan", prefix_name=False)]
    | Annotated[MatrixCommand, subcommand("matrix", prefix_name=False, description=MATRIX)]
    | Annotated[List, subcommand("list", prefix_name=False)]
    | Annotated[Status, subcommand("status", prefix_name=False)]
    | Annotated[Rescore, subcommand("rescore", prefix_name=False)]
    | Annotated[Rank, subcommand("rank", prefix_name=False)]
    | Annotated[Compare, subcommand("compare", prefix_name=False)]
    | Annotated[Leaderboard, subcommand("leaderboard", prefix_name=False)]
    | Annotated[Report, subcommand("report", prefix_name=False)]
    | Annotated[View, subcommand("view", prefix_name=False)]
    | Annotated[Export, subcommand("export", prefix_name=False)]
    | Annotated[Import, subcommand("import", prefix_name=False)]
    | Annotated[Doctor, subcommand("doctor", prefix_name=False)]
)
