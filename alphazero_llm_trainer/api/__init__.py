"""What `import alphazero_llm_trainer as az` offers, and what the commands call themselves."""
