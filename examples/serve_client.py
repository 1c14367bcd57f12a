"""Ask a server that searches: `uv run python examples/serve_client.py URL`.

Start one with `uv run alphazero-llm-trainer serve --model embedded --port 8000`; URL is then http://127.0.0.1:8000/v1.
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = OpenAI(base_url=url, api_key="none")
question = (
    "There are 6 apples in each of the 2 bags of Lily. She splits the apples equally into 4 bags."
    " How many apples are in each bag?"
)
for model, options in (("student", {}), ("student@mcts", {"budget_tokens": 200})):
    found = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        extra_body=options,
    )
    text = found.choices[0].message.content
    print(f"{model}: {text.splitlines()[-1]} ({found.usage.completion_tokens} tokens)")
