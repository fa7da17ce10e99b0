"""The engine: configuration, requests, KV blocks, scheduler, step loop, model, sampling, server."""
