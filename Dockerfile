# docker build -t alphazero-llm-trainer . && docker run --rm alphazero-llm-trainer train --num-examples 96
FROM python:3.12-slim
COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . .
RUN uv sync --no-dev --extra train
ENV PATH="/app/.venv/bin:$PATH"
ENTRYPOINT ["alphazero-llm-trainer"]
CMD ["--help"]
