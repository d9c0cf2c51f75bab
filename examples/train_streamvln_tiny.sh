#!/usr/bin/env bash
# Trains streamvln-tiny, the checkpoint that comes with vlnbench, from nothing on two cores (about five hours). Each line goes
# on where it was stopped, and so does the whole. What the stages take and bring: docs/how-to/train.md, "The small model".
# In the root of a checkout with the extra `train` installed: bash examples/train_streamvln_tiny.sh
set -euo pipefail

walks() { vlnbench collect --out "trajectory_data/$1" "${@:2}"; }
experts() { walks "$@" --frame-width 128 --disturbance 0.05; }
alone() { walks "$1" --dagger --relabel 0 --agent streamvln --checkpoint "${@:2}"; }
overruled() {
    alone "$1" runs/dagger2/model --overrule-stops --stop-within 1.5 --longest 200 --frame-width 128 --seed 3 \
        --tours 2700 --workers 4 "${@:2}"
}
beside() {  # a quarter of the steps are the expert's
    walks "$1" --dagger --relabel 0.25 --agent streamvln --checkpoint "$2" --stop-within 1.5 --longest 120 \
        --frame-width 128 --tours 2000 --workers 4 "${@:3}"
}
train() {
    torchrun --nproc-per-node 2 -m vlnbench train --out "runs/$1" --checkpoint "$2" --family streamvln \
        --frames 128 --wording evaluation --no-augment --no-gradient-checkpointing --group-by-length --zero 0 \
        --optimizer muon --accumulation 1 --schedule cosine --warmup 0.03 --weight-decay 0.05 --adam-beta2 0.98 \
        --packed runs/packed --workers 0 "${@:3}"
}
frozen=(--tunable-parts mm_mlp_adapter mm_language_model)
few=(--questions-at-once 3 --mirror 0.5)

# Other houses, and the benchmark's.
for seed in 1 2 4; do vlnbench data houses --seed $seed --data-root houses$seed; done
vlnbench data houses --envdrop
vlnbench data questions --data-root houses1 --out trajectory_data/Views --frame-width 128 --views 30000 --semantic --workers 2
experts Some1 --data-root houses1 --tours 500
experts Other1 --data-root houses1 --workers 2
experts Other2 --data-root houses2 --workers 2
experts R2R --workers 2
experts EnvDrop --set envdrop --tours 3000 --workers 2
vlnbench collect --benchmark results/matrices/benchmarks/houses-rxr-en-128.yaml --set rxr --out trajectory_data/RxR \
    --disturbance 0.05 --tours 3000 --workers 2

# 1. Look at other houses. 2. Walk. EnvDrop and RxR give their words.
train look preset:streamvln-tiny --sets Views Some1:4 --vocabulary-of R2R EnvDrop RxR --steps 3000 --batch 8 \
    --inflection-weight 3.2 --learning-rate 2e-3 --semantic-weight 5
train walk runs/look/model --sets R2R Views:0.1 --steps 2000 --batch 8 --inflection-weight 3.2 --learning-rate 2e-3 \
    --semantic-weight 5

# 3. and 4. DAgger, alone.
alone DAgger1 runs/walk/model --longest 150 --seed 1 --tours 2000 --workers 6
train dagger1 runs/walk/model --sets R2R DAgger1:2 Views:0.05 --steps 4800 --batch 4 --learning-rate 1.2e-3 \
    --semantic-weight 5
alone DAgger2 runs/dagger1/model --longest 150 --seed 2 --tours 2000 --workers 6
train dagger2 runs/dagger1/model --sets R2R DAgger1 DAgger2 Other1:0.5 Views:0.05 --mirror 0.5 --steps 7200 --batch 4 \
    --learning-rate 1.2e-3 --semantic-weight 5

# 5. Look again, three questions at once. 6. and 7. Walk again.
train look2 runs/dagger2/model --sets Views R2R:0.05 "${few[@]}" --steps 3000 --batch 16 --learning-rate 2e-3 \
    --semantic-weight 5
overruled DAgger3
overruled Overruled2 --data-root houses2
train walk2 runs/look2/model --sets R2R Other1:0.5 Other2:0.5 DAgger3 Overruled2 Views:0.15 "${few[@]}" "${frozen[@]}" \
    --steps 9000 --batch 4 --learning-rate 1.2e-3
train walk3 runs/walk2/model --sets R2R Other1:0.5 Other2:0.5 Views:0.1 "${few[@]}" "${frozen[@]}" \
    --steps 3000 --batch 4 --learning-rate 8e-4

# 8. and 9. DAgger beside the expert, in more and more houses.
beside Beside runs/walk3/model --seed 5
beside Beside4 runs/walk3/model --seed 5 --data-root houses4
train beside1 runs/walk3/model --sets R2R Other1:0.5 Other2:0.5 Beside:1.5 Beside4:1.5 Views:0.1 "${few[@]}" "${frozen[@]}" \
    --steps 4000 --batch 4 --learning-rate 1e-3
beside Again runs/beside1/model --seed 6
beside Again1 runs/beside1/model --seed 6 --data-root houses1
beside Again2 runs/beside1/model --seed 6 --data-root houses2
beside Again4 runs/beside1/model --seed 7 --data-root houses4
train streamvln-tiny runs/beside1/model --sets R2R:0.7 Beside Beside4 Again Again1 Again2 Again4 Views:0.2 "${few[@]}" \
    --steps 5000 --batch 4 --learning-rate 1e-3 --semantic-weight 5
