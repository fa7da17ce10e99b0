"""The OpenAI API: its bodies, what they ask for, and the answers to them."""
