#!/usr/bin/env bash
# Brings the small StreamVLN to houses that look otherwise (SPLIT_materials), on two cores: experts' walks, then three rounds beside
# the expert, every round on the walks of all before it. Each line goes on where it was stopped, and so does the whole.
# Another seed is another training and other walks.
# In the root of a checkout with the extra `train` installed: bash examples/adapt_streamvln_tiny.sh [SEED]
set -euo pipefail
seed=${1:-0}

walks() {
    vlnbench collect --benchmark houses-r2r --split train_materials --out "trajectory_data/$1" --frame-width 128 "${@:2}"
}
beside() {  # a quarter of the steps are the expert's; other instructions in every round
    VLNBENCH_CORES=1 walks "$1" --dagger --relabel 0.25 --agent streamvln --checkpoint "$2" --stop-within 1.5 \
        --longest 120 --tours 750 --workers 4 --seed "$3"
}
train() {
    torchrun --nproc-per-node 2 -m vlnbench train --out "runs/adapted-$seed-$1" --checkpoint "$2" --family streamvln \
        --seed "$seed" --frames 128 --wording evaluation --no-augment --no-gradient-checkpointing --group-by-length \
        --zero 0 --optimizer muon --batch 4 --accumulation 1 --schedule cosine --warmup 0.03 --weight-decay 0.05 \
        --adam-beta2 0.98 --learning-rate 1e-3 --packed runs/packed --workers 0 --mirror 0.5 "${@:3}"
}
model() { echo "runs/adapted-$seed-$1/model"; }
walked() {
    vlnbench eval --benchmark results/matrices/benchmarks/houses-r2r-128.yaml --split "$2" --agent streamvln \
        --checkpoint "$(model "$1")" "${@:3}"
}

vlnbench data houses --look materials
walks Materials --disturbance 0.05 --workers 2
train round0 streamvln-tiny --sets Materials --steps 2000
sets=(Materials:0.4)
for round in 1 2 3; do
    walking=()
    for half in 1 2; do  # side by side, each on a core
        beside "Adapted-$seed-$round-$half" "$(model "round$((round - 1))")" "$seed$round$half" &
        walking+=($!) sets+=("Adapted-$seed-$round-$half")
    done
    for each in "${walking[@]}"; do wait "$each"; done
    train "round$round" "$(model "round$((round - 1))")" --sets "${sets[@]}" --steps 1500
done
for round in 0 1 2 3; do walked "round$round" val_unseen_materials; done
walked round3 val_unseen
walked round3 val_unseen_materials --frames gray    # what sight is worth
walked round3 val_unseen_materials --told other     # what the instruction is worth
