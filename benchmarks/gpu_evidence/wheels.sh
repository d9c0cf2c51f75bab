#!/bin/sh
# wheels.sh PYTHON FOLDER: wheels of what vlnbench needs beside PyTorch, transformers, numpy, numba and scipy, for a
# machine without network. PYTHON is the version there, such as 3.12. Run it where pip has a network.
set -eu
python=$1 folder=$2
mkdir -p "$folder"
platforms="--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64"
# shellcheck disable=SC2086  # several options
pip download --no-deps --only-binary=:all: --python-version "$python" --implementation cp $platforms \
    --platform manylinux1_x86_64 --dest "$folder" \
    tyro docstring-parser pydantic pydantic-core annotated-types typing-inspection hjson nvidia-ml-py \
    habitat-lab 'hydra-core==1.3.*' 'omegaconf==2.3.*' gym-notices numpy-quaternion
# These come as source only; all are plain Python once built.
DS_BUILD_OPS=0 pip wheel --no-deps --wheel-dir "$folder" 'deepspeed==0.19.8' 'gym==0.23.0' 'antlr4-python3-runtime==4.9.3'
