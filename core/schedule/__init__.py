"""Requests, rows, the scheduler, the guard that keeps a policy honest, the ledger."""
