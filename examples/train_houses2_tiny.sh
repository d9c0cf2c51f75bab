#!/usr/bin/env bash
# Trains a small StreamVLN on houses2 from nothing, on two cores: looking, walking, three rounds beside the expert, every
# round on the walks of all before it. It never walks in the benchmark's own houses, of which it gets the words alone, so that
# trainings that begin with it can be compared by what they add. Each line goes on where it was stopped, and so does the whole.
# Another seed is another training on the same data.
# In the root of a checkout with the extra `train` installed: bash examples/train_houses2_tiny.sh [SEED]
set -euo pipefail
seed=${1:-0}

walks() { vlnbench collect --benchmark houses2-r2r --out "trajectory_data/$1" --frame-width 128 "${@:2}"; }
experts() { walks "$@" --disturbance 0.05 --workers 2; }
beside() {  # a quarter of the steps are the expert's; other instructions in every round
    VLNBENCH_CORES=1 walks "$1" --dagger --relabel 0.25 --agent streamvln --checkpoint "$2" --stop-within 1.5 \
        --longest 120 --tours 1000 --workers 4 --seed "$seed$round" "${@:3}"
}
train() {
    torchrun --nproc-per-node 2 -m vlnbench train --out "runs/houses2-$seed-$1" --checkpoint "$2" --family streamvln \
        --seed "$seed" --frames 128 --wording evaluation --no-augment --no-gradient-checkpointing --group-by-length \
        --zero 0 --optimizer muon --accumulation 1 --schedule cosine --warmup 0.03 --weight-decay 0.05 \
        --adam-beta2 0.98 --packed runs/packed --workers 0 --questions-at-once 3 --mirror 0.5 --semantic-weight 5 "${@:3}"
}
model() { echo "runs/houses2-$seed-$1/model"; }

for other in 1 2; do vlnbench data houses2 --seed $other --data-root houses2-$other; done
vlnbench data questions --benchmark houses2-r2r --data-root houses2-1 --out trajectory_data/Looks --frame-width 128 \
    --views 30000 --semantic --workers 2
experts Others1 --data-root houses2-1
experts Walks2

train look preset:streamvln-tiny --sets Looks Others1:0.1 --vocabulary-of Walks2 --steps 4000 --batch 16 \
    --inflection-weight 3.2 --learning-rate 2e-3
experts Others2 --data-root houses2-2
train walk "$(model look)" --sets Others1 Others2 Looks:0.15 --steps 4000 --batch 4 --learning-rate 1.2e-3

before=walk sets=()
for round in 1 2 3; do
    walking=()
    for other in 1 2; do  # side by side, each on a core
        beside "Beside-$seed-$round-$other" "$(model $before)" --data-root houses2-$other &
        walking+=($!) sets+=("Beside-$seed-$round-$other")
    done
    for each in "${walking[@]}"; do wait "$each"; done
    train "beside$round" "$(model $before)" --sets Others1:0.2 Others2:0.2 "${sets[@]}" Looks:0.1 --steps 2500 --batch 4 \
        --learning-rate 1e-3
    before=beside$round
done
walked() {
    vlnbench eval --benchmark results/matrices/benchmarks/houses2-r2r-128.yaml --split "$1" --agent streamvln \
        --checkpoint "$(model beside3)" "${@:2}"
}
vlnbench data houses2 --look evening textures
for split in val_unseen val_unseen_far val_unseen_evening val_unseen_textures; do walked $split; done
walked val_unseen --frames gray    # what sight is worth
walked val_unseen --told other     # what the instruction is worth
