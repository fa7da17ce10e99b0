"""How the tokens of a step are shared between prompts and decodes."""
