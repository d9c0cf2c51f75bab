# vlnbench on habitat-sim, from conda.
#
#   pip wheel --no-deps --wheel-dir dist .
#   docker build -f containers/habitat-sim.Dockerfile -t vlnbench:habitat-sim .
#   docker run --rm --gpus all -v "$PWD:/work" vlnbench:habitat-sim eval --benchmark r2r-ce --split val_unseen
FROM mambaorg/micromamba:2-debian12
COPY --chown=$MAMBA_USER:$MAMBA_USER containers/habitat-sim.yml /tmp/habitat-sim.yml
RUN micromamba install --yes --name base --file /tmp/habitat-sim.yml && micromamba clean --all --yes
ARG MAMBA_DOCKERFILE_ACTIVATE=1
COPY dist/*.whl /tmp/dist/
# pip keeps conda's numpy, against which habitat-sim was built.
RUN python -c "import numpy; print('numpy==' + numpy.__version__)" > /tmp/constraints.txt && \
    pip install --no-cache-dir --constraint /tmp/constraints.txt torch==2.13.0 /tmp/dist/*.whl && \
    pip install --no-cache-dir --force-reinstall --no-deps opencv-python-headless==4.11.0.86
# habitat-sim draws through EGL, which the NVIDIA container toolkit brings.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility
WORKDIR /work
ENTRYPOINT ["/usr/local/bin/_entrypoint.sh", "vlnbench"]
CMD ["--help"]
