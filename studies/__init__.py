"""The knowledge archive, the closed loop and its records."""
