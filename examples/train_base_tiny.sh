#!/usr/bin/env bash
# Trains a small StreamVLN from nothing, by seed, on two cores in some hours: looking, walking, and rounds of DAgger, each of
# them evaluated. Each line goes on where it was stopped, and so does the whole, in the same version of the code. Another seed is
# another training and other walks of DAgger. It takes 60 GB of disk, most of it packed frames, which are made again where missing.
# In the root of a checkout with the extra `train` installed: bash examples/train_base_tiny.sh [SEED]
# DTYPE=float32 before it is for a CPU without units for bfloat16, where products in it are slow.
set -euo pipefail
seed=${1:-0}
dtype=${DTYPE:-mixed}

walks() { vlnbench collect --out "trajectory_data/$1" --frame-width 128 "${@:2}"; }
experts() { walks "$@" --disturbance 0.05 --workers 2; }
dagger() {  # other instructions in every round
    walks "$1" --dagger --agent streamvln --checkpoint "$2" --stop-within 1.5 --workers 4 --tours "${tours[round]}" \
        --seed "$seed$round" "${@:3}"
}
train() {
    torchrun --nproc-per-node 2 -m vlnbench train --out "runs/base-$seed-$1" --checkpoint "$2" --family streamvln \
        --seed "$seed" --frames 128 --wording evaluation --no-augment --no-gradient-checkpointing --group-by-length \
        --zero 0 --optimizer muon --accumulation 1 --schedule cosine --warmup 0.03 --weight-decay 0.05 \
        --adam-beta2 0.98 --packed runs/packed --workers 0 --questions-at-once 3 --mirror 0.5 --semantic-weight 5 "${@:3}"
}
model() { echo "runs/base-$seed-$1/model"; }
walked() {
    vlnbench eval --benchmark results/matrices/benchmarks/houses-r2r-128.yaml --split val_unseen --agent streamvln \
        --checkpoint "$(model "$1")" "${@:2}"
}

# The benchmark's houses, and other ones. Of the noisy speaker it gets the words alone.
vlnbench data houses --envdrop --envdrop-episodes 2000
for other in 1 2 4; do vlnbench data houses --seed $other --data-root houses$other; done
vlnbench data questions --data-root houses1 --out trajectory_data/Views --frame-width 128 --views 30000 --semantic --workers 2
experts Own
experts Noise --set envdrop --tours 300
experts Other1 --data-root houses1
experts Other2 --data-root houses2

train look preset:streamvln-tiny --sets Views Other1:0.1 --vocabulary-of Own Noise --steps 5000 --batch 16 \
    --inflection-weight 3.2 --learning-rate 2e-3
train round0 "$(model look)" --sets Own Other1:0.5 Other2:0.5 Views:0.15 --steps 7000 --batch 4 --learning-rate 1.2e-3 \
    --dtype "$dtype"
walked round0

# Three rounds in which a quarter of the steps are the expert's, and one of more such walks, beside those of the round before
# alone. What comes of its own errors the model sees in the last, where the expert acts from its first wrong STOP on.
tours=(0 1000 1000 1000 2000 1000)
steps=(0 4000 5000 7000 5000 6000)
views=(0 0.1 0.1 0.1 0.2 0.1)
sets=()
for round in 1 2 3 4 5; do
    before="$(model "round$((round - 1))")"
    who=(--relabel 0.25 --longest 120)
    if ((round > 3)); then sets=("${sets[@]: -4}"); fi
    if ((round > 4)); then who=(--relabel 0 --overrule-stops --longest 200); fi
    for root in data houses1 houses2 houses4; do
        sets+=("Dagger-$seed-$round-$root")
        dagger "Dagger-$seed-$round-$root" "$before" --data-root $root "${who[@]}"
    done
    train "round$round" "$before" --sets Own:0.5 Other1:0.2 Other2:0.2 "${sets[@]}" "Views:${views[round]}" \
        --steps "${steps[round]}" --batch 4 --learning-rate 1e-3 --dtype "$dtype"
    walked "round$round"
done
walked round5 --frames gray    # what sight is worth
walked round5 --told other     # what the instruction is worth
