"""What the CPU implementations share: Numba's set-up, and vector code that Numba's Python cannot express."""
