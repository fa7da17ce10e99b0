"""What an operator sees: metrics, logs and the periodic line of figures."""
