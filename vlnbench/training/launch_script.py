"""A published launch script read as a command of this project: parsed, never run.

Scripts of Hugging Face trainers share most of their flags; those that a model alone has are in
`FamilySpec.launch_flags`. A flag maps to a text: the name of an option; `+PART`, a part that is trained where the
flag is true; `=OPTION WORDS`, what the published program does whatever the flag says; `@folders`, folders of
training sets; `-REASON`, why there is nothing like it; empty, what happens here anyway.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, get_type_hints

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.options import TrainOptions
from vlnbench.util.durable.limits import regular

MOST_BYTES = 1 << 20
"""Of a script."""
_LEARNS = "-`vlnbench eval` measures, not the training"
COMMON = {
    "model_name_or_path": "checkpoint",
    "output_dir": "out",
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpointing": "gradient_checkpointing",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "adam_beta2": "adam_beta2",
    "max_grad_norm": "clip",
    "warmup_ratio": "warmup",
    "lr_scheduler_type": "schedule",
    "optim": "optimizer",
    "seed": "seed",
    "tf32": "tf32",
    "attn_implementation": "attn",
    "torch_compile": "compile",
    "logging_steps": "log_every",
    "save_steps": "save_every",
    "report_to": "tracker",
    "dataloader_num_workers": "workers",
    "dataloader_pin_memory": "pin_memory",
    "group_by_length": "group_by_length",
    "group_by_modality_length": "group_by_length",
    "lora_r": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "vision_tower_lr": "vision_tower_lr",
    "mm_vision_tower_lr": "vision_tower_lr",
    "mm_projector_lr": "projector_lr",
    "mm_tunable_parts": "tunable_parts",
    "num_generations": "group",
    "beta": "beta",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "num_iterations": "iterations",
    "max_completion_length": "answer_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    **dict.fromkeys(("use_peft", "lora_enable", "lazy_preprocess", "dataloader_drop_last", "run_name"), ""),
    **dict.fromkeys(
        ("torch_compile_backend", "save_strategy", "save_total_limit", "cache_dir", "overwrite_output_dir"), ""
    ),
    **dict.fromkeys(("evaluation_strategy", "eval_strategy", "per_device_eval_batch_size", "eval_steps"), _LEARNS),
    "fp16": "-dtypes are float32 and bfloat16",
    "model_max_length": "-questions are not cut",
    "max_prompt_length": "-prompts are not cut",
    "use_vllm": "-answers are drawn by the trained network itself",
}
"""Flags of Hugging Face's trainer, of LLaVA's and of TRL's."""
LEFT = {
    "per_device_train_batch_size": "8",
    "gradient_accumulation_steps": "1",
    "gradient_checkpointing": "False",
    "num_train_epochs": "3",
    "learning_rate": "5e-5",
    "weight_decay": "0",
    "adam_beta2": "0.999",
    "max_grad_norm": "1",
    "warmup_ratio": "0",
    "lr_scheduler_type": "linear",
    "seed": "42",
}
"""What Hugging Face's trainer takes where a script says nothing; other defaults are not alike here and there."""
_WORDS = {
    "schedule": {"constant_with_warmup": "constant"},
    "optimizer": {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_bnb_8bit": "adamw8bit"},
    "tracker": {"none": ""},
}
_TRUE = ("true", "1", "yes")
FOLDERS = "@folders"
"""What a flag maps to whose value lists folders of training sets."""


@dataclass(frozen=True)
class Command:
    """The training command of a script. launcher: words before the program; flags: name -> value, "true" alone."""

    launcher: tuple[str, ...]
    flags: Mapping[str, str]


def read_script(path: Path) -> Command:
    """The one training command of a launch script, its variables put in.

    Raises UsageError for what cannot be read without running it: loops, conditions, several commands.
    """
    try:
        content = regular(path).read_bytes()
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--from-script {path}: cannot be read ({error})") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"--from-script {path}: expected at most {MOST_BYTES:,} bytes, found {len(content):,}")
    variables: dict[str, str] = {}
    found: list[Command] = []
    for number, line in _lines(text):
        where = f"--from-script {path}: line {number}"
        if re.match(r"(for|while|until|if|case|function|select)\b|\w+\s*\(\)", line):
            raise UsageError(
                f"{where}: {line.split()[0]}: expected assignments and one command; write out the one you mean"
            )
        assigned = re.fullmatch(r"(?:export\s+|local\s+)?([A-Za-z_]\w*)=(.*)", line, re.DOTALL)
        words = _words(line if assigned is None else assigned[2], variables, where)
        if assigned is not None and len(words) <= 1:
            variables[assigned[1]] = words[0] if words else ""
        elif any(word.startswith("--") for word in words) and any(_program(words)):
            found.append(_command(words, where))
    if len(found) != 1:
        raise UsageError(f"--from-script {path}: expected one training command, found {len(found)}")
    return found[0]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash continues, each with its number; without comments and empty ones."""
    held, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        began = began if held else number
        bare = line.rstrip()
        if bare.lstrip().startswith("#"):
            bare = "" if not held else "\\"  # a comment among continued lines
        if bare.endswith("\\"):
            held += bare[:-1] + " "
            continue
        if (held + bare).strip():
            yield began, (held + bare).strip()
        held = ""
    if held.strip():
        yield began, held.strip()


def _words(line: str, variables: Mapping[str, str], where: str) -> list[str]:
    try:
        return shlex.split(_filled(line, variables), comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Variables and sums of whole numbers put in; what only a shell knows stays as it is."""

    def number(match: re.Match[str]) -> str:
        inside = _filled(match[1], variables)
        if not re.fullmatch(r"[\d\s*+/()-]{1,80}", inside) or "**" in inside:
            return match[0]
        try:
            return str(_value(ast.parse(inside.strip(), mode="eval").body))
        except (SyntaxError, ZeroDivisionError, ValueError):
            return match[0]

    text = re.sub(r"\$\(\((.*?)\)\)", number, text)
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: variables.get(m[1] or m[2], m[0]), text)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        a, b = _value(node.left), _value(node.right)
        kinds = {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b, ast.Div: a // b if b else 0}
        if type(node.op) in kinds:
            return kinds[type(node.op)]
    raise ValueError("no sum of whole numbers")


def _program(words: Iterable[str]) -> Iterator[int]:
    """Where a Python file or the module after -m stands."""
    words = list(words)
    yield from (i for i, word in enumerate(words) if word.endswith(".py") or (i and words[i - 1] == "-m"))


def _command(words: list[str], where: str) -> Command:
    at = next(_program(words))
    flags: dict[str, str] = {}
    rest = [word for word in words[at + 1 :] if word.strip()]
    for i, word in enumerate(rest):
        if not word.startswith("--"):
            continue
        name, equal, value = word[2:].partition("=")
        following = list(takewhile(lambda each: not each.startswith("--"), rest[i + 1 :]))
        name = name.replace("-", "_")
        if name in flags:
            raise UsageError(f"{where}: --{name} stands there twice; leave out one")
        flags[name] = value if equal else " ".join(following) or "true"
    return Command(tuple(words[:at]), flags)


def find_family(named: str, command: Command, families: Iterable[FamilySpec]) -> FamilySpec:
    """The family that is named, or the one whose own flags the command has most of. Raises UsageError for none."""
    known = {each.name: each for each in families if each.launch_flags}
    if named:
        if named not in known:
            raise UsageError(f"--family: {unknown('family of launch scripts', named, known)}")
        return known[named]
    counts = {each.name: sum(flag in each.launch_flags for flag in command.flags) for each in known.values()}
    best = max(counts, key=lambda name: counts[name])
    if list(counts.values()).count(counts[best]) > 1:
        raise UsageError(f"--from-script: no flag tells whose script it is; give --family ({', '.join(known)})")
    return known[best]


@dataclass(frozen=True)
class Translated:
    """options: of `vlnbench train`, each with its words. always: flags of what happens here anyway. lost: what is
    not carried over, with reasons."""

    options: Mapping[str, Sequence[str]]
    always: Sequence[str]
    lost: Sequence[str]


def left(command: Command) -> dict[str, str]:
    """Flags that a script leaves to its trainer, with what that takes."""
    own = LEFT
    if "num_generations" in command.flags:  # TRL's trainer
        high = command.flags.get("epsilon", "0.2")
        own = {
            **LEFT,
            "learning_rate": "1e-6",
            "epsilon": "0.2",
            "epsilon_high": high,
            "max_completion_length": "256",
        }
    return {flag: value for flag, value in own.items() if flag not in command.flags}


def translate(command: Command, family: FamilySpec) -> Translated:
    """A script's flags as options of a family's training, and of the objective that they belong to."""
    table = {**COMMON, **family.launch_flags}
    fixed = (meaning[1:].split() for meaning in table.values() if meaning.startswith("="))
    options: dict[str, list[str]] = {name: words for name, *words in fixed}
    always: list[str] = []
    lost: list[str] = []
    for flag, value in {**command.flags, **left(command)}.items():
        meaning = table.get(flag, "-not known here")
        if flag in _SPECIAL:
            _SPECIAL[flag](value, options, lost)
        elif meaning == "" or meaning.startswith("="):
            always.append(flag)
        elif meaning.startswith("-"):
            lost.append(f"{flag} {value}: {meaning[1:]}")
        elif "$" in value or "`" in value:
            lost.append(f"{flag} {value}: only a shell knows what this is")
        elif meaning.startswith("+"):
            options.setdefault("tunable_parts", []).extend([meaning[1:]] if value.lower() in _TRUE else [])
        elif meaning == FOLDERS:
            folders = [Path(each.strip()) for each in value.split(",")]
            options["trajectories"], options["sets"] = [str(folders[0].parent)], [each.name for each in folders]
            lost += [f"{flag}: {each} lies elsewhere" for each in folders if each.parent != folders[0].parent]
        else:
            options |= {meaning: words} if (words := _values(meaning, value)) else {}
    kinds = {name: types_of(get_objective(name).train_options(family.check_training())) for name in OBJECTIVES}
    plain = kinds[TrainOptions.objective]
    name = next(
        (each for each, kind in kinds.items() if ({*options} & {*kind}) - {*plain}), TrainOptions.objective
    )
    if name != TrainOptions.objective:
        options = {"objective": [name], **options}
        lost += [] if "beta" in options else ["beta: its default differs between versions of TRL; give --beta"]
    lost += [
        f"{each} {' '.join(options.pop(each))}: {family.name} has none"
        for each in [*options]
        if each not in kinds[name]
    ]
    return Translated(
        {each: _typed(each, words, kinds[name][each]) for each, words in options.items()}, always, lost
    )


def types_of(kind: type) -> dict[str, Any]:
    """Types of a class of options by name."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _typed(option: str, words: list[str], kind: Any) -> list[str]:
    """The words of an option on a command line."""
    flag = f"--{option.replace('_', '-')}"
    if kind is not bool:
        return [flag, *words]
    return [flag if words[0].lower() in _TRUE else f"--no-{flag[2:]}"]


def _values(option: str, value: str) -> list[str]:
    known = _WORDS.get(option, {})
    found = [part.strip() for part in value.split(",")] if option in ("tunable_parts", "tracker") else [value]
    return [word for each in found if (word := known.get(each, each))]


def _deepspeed(value: str, options: dict[str, list[str]], lost: list[str]) -> None:
    stage = re.search(r"zero[_-]?(?:stage)?([0-3])", Path(value).name)
    if stage is not None:
        options["zero"] = [stage[1]]
    lost.append(f"deepspeed {value}: give --deepspeed FILE for its further keys")


def _half(value: str, options: dict[str, list[str]], lost: list[str]) -> None:
    options["dtype"] = ["bfloat16" if value.lower() in _TRUE else "float32"]


_SPECIAL: Mapping[str, Callable[[str, dict[str, list[str]], list[str]], None]] = {
    "deepspeed": _deepspeed,
    "bf16": _half,
}


def format_command(command: Command, family: FamilySpec) -> str:
    """Our command for a script's, and below it, as comments, what it does not say."""
    found = translate(command, family)
    ranks = re.search(r"--nproc[_-]per[_-]node[= ](\d+)", " ".join(command.launcher))
    start = f"torchrun --nproc-per-node {ranks[1]} -m vlnbench train" if ranks else "vlnbench train"
    lines = [f"{start} --family {family.name}", *(shlex.join(words) for words in found.options.values())]
    text = " \\\n    ".join(lines)
    notes = [f"always so here: {', '.join(found.always)}"] if found.always else []
    defaults = ", ".join(f"{flag} {value}" for flag, value in left(command).items())
    notes += [f"left to the trainer, whose defaults stand above: {defaults}"] if defaults else []
    notes += [f"not carried over: {each}" for each in found.lost]
    needed = ("checkpoint", "out") if "objective" in found.options else ("checkpoint", "out", "sets")
    missing = [f"--{each}" for each in needed if each not in found.options]
    notes += [f"still to be given: {', '.join(missing)}"] if missing else []
    return "\n".join([text, *(f"# {each}" for each in notes)])
