"""Drawing tokens from logits. One feature a file; `sampler.py` puts them together, row by row.

The order is vLLM's (v1/sample/sampler.py): log-probabilities of the raw logits; bad words, min_tokens,
logit bias; repetition, then frequency and presence penalties; greedy choice, or temperature, min-p,
top-k, top-p and the draw.
"""
