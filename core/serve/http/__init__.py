"""What lies below any API: the protocol, the gate that every request passes, bodies and errors."""
