"""Launch scripts read as commands: what they say is carried over, what they leave and what is lost is said."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlnbench.cli import main
from vlnbench.cli.commands import Command as Commands
from vlnbench.cli.selected import parse
from vlnbench.errors import UsageError
from vlnbench.training.family.find import every_family, get_family
from vlnbench.training.launch_script import LEFT, find_family, read_script, translate

VIDEO = r"""#!/bin/bash
#SBATCH --gres=gpu:8
MASTER=`scontrol show hostname | head -n1`
PORT=$((RANDOM % 101 + 20001))
FOLDERS="data/walks/R2R","data/walks/RxR"
BASE="org/base"   # a comment
CLEAN="${BASE//\//_}"
echo "starting: ${BASE}"
srun torchrun --nnodes=$NODES --nproc_per_node=8 --rdzv_endpoint=$MASTER:$PORT train/some_train.py \
    --deepspeed scripts/zero2.json \
    --model_name_or_path $BASE \
    --video_folder ${FOLDERS} \
    \
    --num_history 4 --num_frames 16 \
    --mm_tunable_parts="mm_mlp_adapter,mm_language_model" \
    --image_grid_pinpoints "(1x1),...,(6x6)" \
    --bf16 True --tf32 True \
    --output_dir out/${BASE} \
    --per_device_train_batch_size 1 \
    --lr_scheduler_type "constant_with_warmup" \
    --something_new 3 \
    --report_to none \
"""
PARTS = """
python -m some.train --model_name_or_path x --output_dir y --tune_mm_llm True --tune_mm_vision False \\
    --tune_mm_mlp True --gradient_checkpointing --max_pixels $((576*28*28)) # --seed 3
"""
TOWER = """
deepspeed --include localhost:0,1 train_mem.py --deepspeed ./scripts/zero2.json --model_name_or_path zoo/base \\
    --version imgsp_v1 --data_path data/all.json --tune_vision_encoder True --compress_type "grid:2" --bf16 True \\
    --output_dir y --model_max_length 2048
"""
CHANCE = """
torchrun --nproc_per_node 6 grpo.py --model_name_or_path m --output_dir y --num_generations 4 \\
  --per_device_train_batch_size 8 --beta 0.04 --reward_funcs accuracy format --max_pixels 401408
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.sh"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_of_one_family_is_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--from-script", str(written(tmp_path, VIDEO))]) == 0
    text, _, notes = capsys.readouterr().out.partition("\n#")
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:7] == ["torchrun", "--nproc-per-node", "8", "-m", "vlnbench", "train", "--family"]
    joined = " ".join(words)
    for part in (
        "--family streamvln --zero 2 --checkpoint org/base --trajectories data/walks --sets R2R RxR --history 4",
        "--frames 16 --tunable-parts mm_mlp_adapter mm_language_model --dtype bfloat16 --tf32 --out out/org/base",
        "--batch 1 --schedule constant --accumulation 1 --no-gradient-checkpointing --epochs 3",
    ):
        assert part in joined
    assert "--tracker" not in joined
    assert "something_new 3: not known here" in notes
    assert "always so here: image_grid_pinpoints" in notes
    assert "gradient_accumulation_steps 1" in notes  # a default of the trainer


@pytest.mark.parametrize(
    ("text", "family", "expected"),
    [
        (PARTS, "janusvln", {"tunable_parts": ["mm_llm", "mm_mlp"], "gradient_checkpointing": [], "seed": ["42"]}),
        (
            TOWER,
            "uninavid",
            {"tunable_parts": ["mm_projector", "language_model"], "zero": ["2"], "longest_text": ["2048"]},
        ),
        (CHANCE, "qwen_vl", {"objective": ["grpo"], "group": ["4"], "batch": ["8"], "max_pixels": ["401408"]}),
    ],
)
def test_flags_tell_the_family_and_the_objective(
    tmp_path: Path, text: str, family: str, expected: dict[str, list[str]]
) -> None:
    command = read_script(written(tmp_path, text))
    chosen = find_family("", command, every_family())
    assert chosen.name == family
    found = translate(command, chosen)
    options = found.options
    assert not any(each.startswith("beta") for each in found.lost)  # is given, or not asked for
    assert {name: [*options[name]][1:] for name in expected} == expected


@pytest.mark.parametrize("text", [VIDEO, PARTS, TOWER, CHANCE])
def test_the_command_parses(tmp_path: Path, text: str) -> None:
    command = read_script(written(tmp_path, text))
    family = find_family("", command, every_family())
    options = {**translate(command, family).options}
    options["checkpoint"] = ["--checkpoint", f"preset:{family.presets[0]}"]
    words = [word for each in options.values() for word in each]
    parsed = parse(Commands, ["train", "--family", family.name, *words])
    assert parsed.batch == int(options["batch"][1])
    assert parsed.learning_rate == float(options["learning_rate"][1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for x in 1 2; do\npython a.py --seed 1\ndone", "line 1: for: expected assignments and one command"),
        ("if true; then\npython a.py --b 1\nfi", "line 1: if: expected"),
        ("echo hi", "expected one training command, found 0"),
        ("python a.py --seed 1\npython b.py --seed 2", "expected one training command, found 2"),
        ("python a.py --seed 1 --seed 2", "line 1: --seed stands there twice"),
        ("python a.py --name 'open", "line 1: No closing quotation"),
        ("python a.py --seed 1", "no flag tells whose script it is; give --family"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--from-script", str(written(tmp_path, text))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_default_that_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    command = read_script(written(tmp_path, CHANCE.replace("--beta 0.04 ", "")))
    assert (
        "beta: its default differs between versions of TRL; give --beta"
        in translate(command, get_family("qwen_vl")).lost
    )


def test_what_only_a_shell_knows_is_not_made_up(tmp_path: Path) -> None:
    command = read_script(
        written(tmp_path, "N=$(nproc)\npython a.py --seed $N --num_history 3 --max_steps $((2**9))")
    )
    found = translate(command, get_family("streamvln"))
    assert "seed" not in found.options
    assert "steps" not in found.options
    assert sum("only a shell knows" in each for each in found.lost) == 2


@given(st.text(max_size=300))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.sh")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            command = read_script(path)
        except UsageError:
            return
        translate(command, get_family("streamvln"))


def test_what_is_left_to_the_trainer_are_its_defaults() -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.TrainingArguments.__dataclass_fields__
    defaults = {flag: known[flag].default for flag in LEFT if flag in known}  # transformers 5 has other warm-ups
    assert len(defaults) > 9
    assert {flag: float_or_text(each) for flag, each in defaults.items()} == {
        flag: float_or_text(LEFT[flag]) for flag in defaults
    }


def float_or_text(value: object) -> object:
    try:
        return float(str(value))
    except ValueError:
        return str(getattr(value, "value", value or False))  # transformers 5 has None for False
