"""What the parts that a matrix of a small model tunes would take of a published size, beside its SR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.sheet import read_document
from vlnbench.training.family.find import find_family
from vlnbench.training.memory.plan import plan
from vlnbench.util.durable.files import write_json


def add_sizes(results: Path, name: str) -> None:
    """Write into matrix.json what one GPU holds at most, by plan, where the same parts of `name` are tuned.

    All other options are those that `vlnbench plan --model NAME` takes by default, for a small model's batches and
    optimizer say nothing of a large one's. Raises UsageError for names that are no published sizes, and for parts
    that these do not have.
    """
    document = read_document(results)
    family, source = chosen = find_family("", name, "--sizes")
    if source.kind != "sizes":
        raise UsageError(f"--sizes {name}: expected published sizes, such as {', '.join(family.sizes)}")
    kind: Any = family.check_plannable()
    for row in document["rows"]:
        try:
            parts, rank = tuple(row["options"]["tunable_parts"]), row["options"]["lora_rank"]
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{results / DOCUMENT}: lacks {error}; run the matrix again to make it anew"
            ) from error
        row["vram"]["sizes"] = plan(kind(model=name, tunable_parts=parts, lora_rank=rank), chosen).peak
    write_json(results / DOCUMENT, {**document, "sizes": name})
