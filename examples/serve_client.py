"""Ask a server that searches: `uv run python examples/serve_client.py URL`.

Start one with `uv run alphazero-llm-trainer serve --model embedded --port 8000`; URL is then http://127.0.0.1:8000/v1.
"""

import sys

from openai import OpenAI, OpenAIError

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = OpenAI(base_url=url, api_key="none")
question = (
    "There are 20 apples in the room of Ana. She sells 4 of the apples. She splits the apples "
    "equally into 2 boxes."
    " How many apples are in each box?"
)
for model, options in (("student", {"temperature": 0}), ("student@mcts", {"budget_tokens": 200})):
    try:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            extra_body=options,
        )
    except OpenAIError as error:
        raise SystemExit(
            f"{url} doesn't answer ({error}): is `serve` there, and does URL end in /v1?"
        ) from None
    text = answer.choices[0].message.content
    print(f"{model}: {text.splitlines()[-1]} ({answer.usage.completion_tokens} tokens)")
