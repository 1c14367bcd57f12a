# Two images from one recipe. Neither was built while this was written: no Docker was at hand.
#
#   docker build --target cpu -t alphazero-llm-trainer .
#   docker run --rm alphazero-llm-trainer vf-eval alphazero-llm-trainer
#
#   docker build --target cuda -t alphazero-llm-trainer:cuda .
#   docker run --rm --gpus all alphazero-llm-trainer:cuda alphazero-llm-trainer info
FROM python:3.11-slim AS base
# cc builds the CPU kernels at first use, and Triton's launchers on CUDA.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv
ENV PATH=/app/.venv/bin:$PATH UV_LINK_MODE=copy
WORKDIR /app
COPY . .

FROM base AS cpu
RUN uv sync --no-dev --no-cache
WORKDIR /data
CMD ["alphazero-llm-trainer", "info"]

# PyTorch's wheels bring CUDA's libraries; the host brings the driver and the NVIDIA container toolkit.
FROM base AS cuda
RUN uv sync --no-dev --no-cache --extra gpu
WORKDIR /data
CMD ["alphazero-llm-trainer", "info"]
