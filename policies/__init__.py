"""What an operator changes without touching the engine: order, victims, budgets, admission."""
